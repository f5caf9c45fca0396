"""What the benchmarks of the HTTP path share: parties in processes of their own, percentiles, CPU time."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent

_NGINX = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr error;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    client_body_buffer_size 1m;
    keepalive_requests 1000000;
    upstream worker {{ server 127.0.0.1:{worker}; keepalive 64; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://worker;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Returns once something listens on `port`."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"a party on port {port} ended with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    sys.exit(f"nothing listens on {port}")


@contextmanager
def running(*argv: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ends with the benchmark."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(argv, env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Party:
    """Somebody who answers on a port. `pid` is 0 where we did not start it."""

    def __init__(self, name: str, port: int, pid: int = 0) -> None:
        self.name = name
        self.port = port
        self.pid = pid

    def cpu_s(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


def python_party(stack: ExitStack, name: str, script: str, *arguments: str) -> Party:
    port = free_port()
    process = stack.enter_context(
        running(sys.executable, f"benchmarks/{script}", str(port), *arguments)
    )
    wait_for_port(port, process)
    return Party(name, port, process.pid)


def nginx_party(stack: ExitStack, worker_port: int) -> Party | None:
    """A plain nginx proxy, connections kept, nothing buffered; None where it is not installed."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        return None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    port = free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(worker=worker_port, port=port))
    process = stack.enter_context(
        running(program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr")
    )
    wait_for_port(port, process)
    return Party("nginx", port, process.pid)


def report(result: dict[str, object], *, as_json: bool) -> None:
    """Prints a result: one JSON object, or one line per entry."""
    if as_json:
        print(json.dumps(result, indent=2))
        return
    for key, value in result.items():
        print(f"{key}: {json.dumps(value)}")
