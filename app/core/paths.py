"""Where our files live: the user's settings, our state, models, logs and shipped resources.

Every folder can be moved as one by `COOLHEAD_HOME` (tests, portable installs). Called from any thread.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from app.core.errors import FolderUnusable

HOME_VARIABLE = "COOLHEAD_HOME"


@dataclass(frozen=True, slots=True)
class Paths:
    """The four folders; nothing is created until `prepare`."""

    config: Path
    state: Path
    data: Path
    logs: Path

    @property
    def settings_file(self) -> Path:
        return self.config / "settings.yaml"

    @property
    def routes_file(self) -> Path:
        return self.config / "routes.yaml"

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def engines(self) -> Path:
        return self.data / "engines"

    @property
    def lock_file(self) -> Path:
        return self.state / "coolhead.lock"

    @property
    def endpoint_file(self) -> Path:
        """JSON: where the running app listens, its pid and start time."""
        return self.state / "endpoint.json"

    @property
    def events_file(self) -> Path:
        """JSON lines: what happened (`event_log.py`)."""
        return self.state / "events.jsonl"

    @property
    def token_file(self) -> Path:
        """The admin token, mode 0600."""
        return self.state / "admin-token"

    def prepare(self) -> None:
        """Creates the folders, the state folder private to the user.

        Settings and models may lie in folders that only others write to.

        Raises:
            FolderUnusable: when one cannot be created, or state or logs cannot be written.
        """
        for folder in (self.config, self.state, self.data, self.models, self.logs):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FolderUnusable(
                    f"Cannot create {folder}: {error.strerror}. Make it writable, or set "
                    f"{HOME_VARIABLE} to a folder that is.",
                    path=str(folder),
                ) from error
            is_ours = folder in {self.state, self.logs}
            if not os.access(folder, os.W_OK | os.X_OK if is_ours else os.R_OK | os.X_OK):
                raise FolderUnusable(
                    f"Cannot use {folder}. Make it {'writable' if is_ours else 'readable'}, or set {HOME_VARIABLE} to a "
                    "folder that is.",
                    path=str(folder),
                )
        if os.name == "posix":
            self.state.chmod(0o700)


def user_paths(environ: Mapping[str, str] | None = None) -> Paths:
    """The folders of this user on this system, or all under `COOLHEAD_HOME` where it is set."""
    home = (os.environ if environ is None else environ).get(HOME_VARIABLE)
    if home:
        root = Path(home).expanduser().absolute()
        return Paths(root / "config", root / "state", root / "data", root / "logs")
    dirs = platformdirs.PlatformDirs("coolhead", appauthor=False)
    return Paths(
        config=Path(dirs.user_config_dir),
        state=Path(dirs.user_state_dir),
        data=Path(dirs.user_data_dir),
        logs=Path(dirs.user_log_dir),
    )


def resource(name: str) -> Path:
    """A file shipped with us, beside the package in a checkout and inside it when installed."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "resources" / name
    return installed if installed.exists() else package.parent / "resources" / name
