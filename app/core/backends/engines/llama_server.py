"""The worker program in front of a llama-server binary: takes a port and a key, then becomes it.

Started by the guard as `coolhead worker llama-server`. It does not stay beside the engine: it replaces
itself, so that the process that the guard watches is the engine. The key goes over in a file that
exists in memory only, the port as a bound socket where the build can share it.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence

from app.core.backends.engines.link import ReadyLine, WorkerEnd


def main(argv: Sequence[str] = ()) -> int:
    """Never returns when all is well; 1 when the program cannot be started."""
    del argv
    link = WorkerEnd()
    start = link.start
    program = start.options["program"]
    flags: list[str] = json.loads(start.options["flags"])
    shares = start.options.get("reuse_port") == "1" and hasattr(socket, "SO_REUSEPORT")
    port = _take_port(keep=shares)
    argv_full = [
        *(program, "--model", start.path, "--alias", start.model_id),
        *flags,
        *("--port", str(port)),
        *(["--reuse-port"] if shares else []),
    ]
    env = dict(os.environ)
    if start.options.get("key_file") == "1" and sys.platform == "linux":
        argv_full += ["--api-key-file", _in_memory(start.key)]
    else:
        env["LLAMA_API_KEY"] = start.key
    link.ready(ReadyLine(port, start.load.context_tokens, start.load.slots))
    try:
        os.execve(program, argv_full, env)  # noqa: S606 - no shell, an argument list of our own
    except OSError as error:
        link.failed(f"{program} cannot be started: {error.strerror}")
        return 1


def _take_port(*, keep: bool) -> int:
    """A free port. Kept bound across the exec, no other program can take it in between."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if keep:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", 0))
    port = int(sock.getsockname()[1])
    if keep:
        os.set_inheritable(sock.detach(), True)
    else:
        sock.close()
    return port


def _in_memory(key: str) -> str:
    """The path of a file without a name on any disk, open in what we become."""
    fd = os.memfd_create("key", 0)
    os.write(fd, key.encode() + b"\n")
    return f"/proc/self/fd/{fd}"
