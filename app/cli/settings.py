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
from app.core.settings_meta import Description, Needs


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
    print(f"{args.key} = {_shown(known, value)}" + ("" if running is None else _when(known)))
    return 0


def _when(known: Description) -> str:
    match known.meta.needs:
        case Needs.RELOAD:
            return "; loaded models were loaded again with it"
        case Needs.RESTART:
            return "; in force from the next start"
        case Needs.NOTHING:
            return ""


def _shown(known: Description, value: object) -> str:
    """A value as people read it; a key is not shown."""
    if known.key == "server.api_key" and value:
        return "(set)"
    if not value and value is not False and known.meta.zero_means:
        return f"auto ({known.meta.zero_means})"
    return str(value) if value not in {"", None} else "-"


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
        is_default = value == ({} if known.per_device else known.default)
        mark = " " if is_default else "*"
        shown = "-" if value == {} else _shown(known, value)
        rows.append((mark, known.key, shown, known.meta.unit, known.meta.text))
    print(table(rows))
    print("\n* differs from the default")
    return 0
