"""A Hub on loopback with one repository, as far as huggingface_hub asks for it; and a silent index."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def hub(repo: str, files: dict[str, bytes]) -> Iterator[str]:
    """Serves the files; the address to give as HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET(with_body=False)

        def do_GET(self, *, with_body: bool = True) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{repo}"):
                siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
                body = json.dumps(
                    {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}
                ).encode()
                self._answer(200, body, {"Content-Type": "application/json"}, with_body=with_body)
                return
            name = path.removeprefix(f"/{repo}/resolve/main/")
            name = name.removeprefix(f"/{repo}/resolve/{COMMIT}/")
            if name not in files:
                headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no such repository"}
                self._answer(404, b"{}", headers, with_body=with_body)
                return
            data = files[name]
            headers = {
                "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Repo-Commit": COMMIT,
                "Accept-Ranges": "bytes",
            }
            self._answer(200, data, headers, with_body=with_body)

        def _answer(
            self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool
        ) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with _serving(Handler) as address:
        yield address


@contextlib.contextmanager
def silent_index() -> Iterator[tuple[str, threading.Event]]:
    """An index that takes requests and says nothing; and an event that is set once one has come."""
    asked, leaving = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            leaving.wait(60)

        def log_message(self, *_: object) -> None:
            pass

    with _serving(Handler) as address:
        try:
            yield address, asked
        finally:
            leaving.set()


@contextlib.contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)
