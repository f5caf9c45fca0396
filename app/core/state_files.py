"""What the app leaves in its state folder for its own command line: where it listens, and the token.

Written by the composition, read by `cli/client.py`. Both files can be read by this user alone.
"""

import contextlib
import json
import os
import secrets
from pathlib import Path

import psutil

from app.core.errors import FolderUnusable
from app.core.paths import Paths

TOKEN_BYTES = 32


def write_endpoint(paths: Paths, *, host: str, port: int, admin_port: int, url: str) -> None:
    """Says where this process listens; `port` 0 for a closed endpoint.

    Raises:
        FolderUnusable: when the file cannot be written.
    """
    told = {
        "host": host,
        "port": port,
        "admin_port": admin_port,
        "url": url,
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
    }
    write_private(paths.endpoint_file, json.dumps(told))


def admin_token(path: Path) -> str:
    """The token of the state folder, made when there is none.

    Raises:
        FolderUnusable: when it cannot be written.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    if len(token) < TOKEN_BYTES:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        write_private(path, token)
    return token


def write_private(path: Path, text: str) -> None:
    """Writes a file that only this user may read, in one rename.

    Raises:
        FolderUnusable: when it cannot be written.
    """
    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        scratch.unlink(missing_ok=True)
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise FolderUnusable(
            f"{path} cannot be written: {error.strerror}. Make the folder writable.", path=str(path)
        ) from error
