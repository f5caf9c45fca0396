"""`coolhead routes lint|path|reload|schema`: check the routing rules, put them into force."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from app.cli.client import find_running, need_running
from app.core.errors import RoutesInvalid
from app.core.models.library import ModelLibrary
from app.core.paths import Paths, resource, user_paths
from app.core.router.router import Router
from app.core.settings_file import SettingsFile


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("routes", help="check or reload the routing rules")
    actions = parser.add_subparsers(dest="action", required=True)
    linting = actions.add_parser("lint", help="name mistakes, and rules that can never match")
    linting.add_argument("file", nargs="?", type=Path, help="another file than the user's")
    linting.add_argument("--json", action="store_true")
    linting.add_argument("--strict", action="store_true", help="fail on warnings, too")
    actions.add_parser("path", help="where the file is")
    actions.add_parser("reload", help="put the file into force in the running Coolhead")
    actions.add_parser("schema", help="where the JSON schema for editors is")


def run(args: argparse.Namespace) -> int:
    """Raises: RoutesInvalid or NotRunning where a reload is refused."""
    paths = user_paths()
    if args.action == "path":
        print(paths.routes_file)
        return 0
    if args.action == "schema":
        print(resource("routes.schema.json"))
        return 0
    if args.action == "reload":
        need_running(paths).call("POST", "/admin/routes/reload", {})
        print(f"The rules of {paths.routes_file} are in force.")
        return 0
    return _lint(args, paths)


def _lint(args: argparse.Namespace, paths: Paths) -> int:
    """0 when all is well, 1 with mistakes (and with warnings where that was asked for)."""
    file = args.file or paths.routes_file
    rules = 0
    try:
        router = Router.from_config(file)
    except RoutesInvalid as error:
        told = error.details.get("problems")
        problems = (
            told if isinstance(told, list) else [{"severity": "error", "text": error.message}]
        )
    else:
        rules = len(router.rules.rules)
        running = find_running(paths)
        found = router.lint(_models(paths), () if running is None else (running.port,))
        problems = [problem.as_dict() for problem in found]
    errors = sum(problem["severity"] == "error" for problem in problems)
    if args.json:
        tree = {"file": str(file), "rules": rules, "errors": errors, "problems": problems}
        print(json.dumps(tree, indent=2, ensure_ascii=False))
    else:
        for problem in problems:
            print(_line(problem))
        warnings = len(problems) - errors
        print(f"{file}: {rules} rules, {errors} errors, {warnings} warnings")
    return 1 if errors or (args.strict and problems) else 0


def _line(problem: dict[str, Any]) -> str:
    if not problem.get("file"):
        return f"{problem['severity']}: {problem['text']}"
    where = f"{problem['file']}:{problem['line']}" if problem["line"] else problem["file"]
    key = f"{problem['key']}: " if problem["key"] else ""
    return f"{where}: {problem['severity']}: {key}{problem['text']}"


def _models(paths: Paths) -> list[str]:
    folders = SettingsFile(paths.settings_file).load().settings.model.folders
    library = ModelLibrary(paths, [Path(part) for part in folders.split(os.pathsep) if part])
    return [spec.model_id for spec in library.specs()]
