"""How a verb, or a second start, talks to the Coolhead that runs: over the endpoint's admin part.

The endpoint file and the token in the state folder say where and with what right. Blocking; used by
the command line only.
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from app.core.errors import CoolheadError, NotRunning
from app.core.paths import Paths

CONNECT_TIMEOUT_S = 30.0
ADMIN_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RunningApp:
    """A Coolhead whose process was seen alive.

    `host` and `port` are the endpoint's, 0 while it is closed; `admin_port` is there all the time.
    """

    host: str
    port: int
    admin_port: int
    pid: int
    token: str
    url: str = ""

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Any:
        """One admin or API call; the decoded JSON.

        Raises:
            NotRunning: when nobody answers.
            CoolheadError: with the app's own words when it refuses.
        """
        connection, response = self.open(method, path, body, timeout_s)
        try:
            payload = response.read()
        except OSError as error:
            raise NotRunning(f"Coolhead went away while it answered ({error}).") from error
        finally:
            connection.close()
        return self.decode(response, payload)

    def open(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        timeout_s: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """The same, not yet read; the caller closes the connection.

        Raises:
            NotRunning: when nobody answers.
        """
        host, port = self.host, self.port
        if path.startswith("/admin/"):
            host, port = ADMIN_HOST, self.admin_port
        elif not port:
            raise NotRunning(
                "Coolhead is stopped: its endpoint is closed. `coolhead start` opens it again."
            )
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        headers = {"Authorization": f"Bearer {self.token}"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, data, headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NotRunning(
                f"Coolhead (process {self.pid}) does not answer at {host}:{port}: {error}."
            ) from error

    @staticmethod
    def decode(response: http.client.HTTPResponse, payload: bytes) -> Any:
        """The JSON of an answer.

        Raises:
            CoolheadError: with the words of the error envelope for any status from 400 on; its code
                is in the details.
        """
        try:
            tree = json.loads(payload) if payload else {}
        except ValueError:
            tree = {}
        if response.status >= 400:
            problem = tree.get("error", {}) if isinstance(tree, dict) else {}
            words = problem.get("message") if isinstance(problem, dict) else str(problem)
            code = problem.get("code") if isinstance(problem, dict) else ""
            raise CoolheadError(
                words or f"Coolhead answered with status {response.status}.", code=code
            )
        return tree


def find_running(paths: Paths) -> RunningApp | None:
    """The Coolhead of this user, or None; a left-over endpoint file of a dead one counts as none."""
    try:
        told = json.loads(paths.endpoint_file.read_text(encoding="utf-8"))
        token = paths.token_file.read_text(encoding="utf-8").strip()
        running = RunningApp(
            str(told["host"]),
            int(told["port"]),
            int(told["admin_port"]),
            int(told["pid"]),
            token,
            str(told["url"]),
        )
        process = psutil.Process(running.pid)
        # A pid may have been given to another program since; its start time tells.
        if abs(process.create_time() - float(told["started"])) > 2:
            return None
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return running


def need_running(paths: Paths) -> RunningApp:
    """The Coolhead of this user.

    Raises:
        NotRunning: when there is none.
    """
    running = find_running(paths)
    if running is None:
        raise NotRunning(
            "No Coolhead is running. Start one with `coolhead` or `coolhead --headless`."
        )
    return running
