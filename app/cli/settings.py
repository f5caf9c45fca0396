"""`coolhead settings get|set|reset|path`: the same settings as the panel's, checked the same way."""

import argparse
import json
from typing import Any

from app.cli.client import find_running
from app.cli.text import table
from app.core.autostart import apply, autostart
from app.core.paths import user_paths
from app.core.settings import all_settings, describe
from app.core.settings_file import SettingsFile


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("settings", help="read and change settings")
    actions = parser.add_subparsers(dest="action", required=True)
    getting = actions.add_parser("get", help="one setting, or all")
    getting.add_argument("key", nargs="?", help="as in server.port")
    getting.add_argument("--json", action="store_true")
    setting = actions.add_parser("set", help="change a setting")
    setting.add_argument("key")
    setting.add_argument("value")
    resetting = actions.add_parser("reset", help="back to the default")
    resetting.add_argument("key")
    actions.add_parser("path", help="where the file is")


def run(args: argparse.Namespace) -> int:
    """Raises: SettingsInvalid for an unknown key or a wrong value; the file stays as it was."""
    paths = user_paths()
    file = SettingsFile(paths.settings_file)
    if args.action == "path":
        print(file.path)
        return 0
    loaded = file.load()
    for problem in loaded.problems:
        print(f"note: {problem}")
    if args.action == "get":
        return _get(args, loaded.settings)
    known = describe(args.key)
    value = known.check(args.value) if args.action == "set" else known.default
    running = find_running(paths)
    if running is not None:
        running.call("POST", "/admin/settings", {"changes": {args.key: value}}, timeout_s=600)
    else:
        file.save(loaded.settings.replace({args.key: value}))
        if known.key == "desktop.autostart":
            # A start at login that waits for a start would never come.
            apply(autostart(), is_wanted=bool(value), is_change=True)
    print(f"{args.key} = {value}" + ("" if running is None else f" (needs {known.meta.needs})"))
    return 0


def _get(args: argparse.Namespace, settings: Any) -> int:
    if args.key:
        value = settings.value(args.key)
        print(json.dumps(value) if args.json else value)
        return 0
    if args.json:
        print(
            json.dumps({known.key: settings.value(known.key) for known in all_settings()}, indent=2)
        )
        return 0
    rows = []
    for known in all_settings():
        value = settings.value(known.key)
        shown = known.meta.zero_means if not value and known.meta.zero_means else str(value)
        rows.append((known.key, shown or "-", known.meta.unit, known.meta.text))
    print(table(rows))
    return 0
