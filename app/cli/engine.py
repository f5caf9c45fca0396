"""`coolhead engine list | install KIND | remove KIND`: which engines there are, and more of them.

A build goes into a folder of its own under the data folder and never touches the environment that
Coolhead itself runs in.
"""

import argparse
import dataclasses
import json
import os
import shlex
import sys
from typing import Any

from app.core.backends import builds
from app.core.backends.choose import choose_engine
from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.backends.mlx import MlxBackend
from app.core.errors import EngineMissing
from app.core.hardware.probe import probe_machine
from app.core.paths import user_paths
from app.core.settings_file import SettingsFile


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("engine", help="which engines are installed; install another")
    steps = parser.add_subparsers(dest="step", required=True)
    listing = steps.add_parser("list", help="the engines found, and which one would be taken")
    listing.add_argument("--json", action="store_true")
    install = steps.add_parser("install", help="fetch a build for this machine's GPU")
    install.add_argument("kind", choices=builds.KINDS)
    install.add_argument("--dry-run", action="store_true", help="print the command and stop")
    install.add_argument(
        "--index",
        "--from",
        dest="source",
        default="",
        metavar="URL",
        help="the index named in xllamacpp's documentation, or a folder of wheels; otherwise the "
        "setting engine.index, or what the installed xllamacpp's own documentation says",
    )
    remove = steps.add_parser("remove", help="delete a fetched build")
    remove.add_argument("kind", choices=builds.KINDS)


def run(args: argparse.Namespace) -> int:
    """0, or 1 when it could not be done."""
    if args.step == "list":
        return _list(as_json=args.json)
    paths = user_paths()
    engines = paths.engines
    if args.step == "remove":
        if not builds.remove(args.kind, engines):
            raise EngineMissing(f"No {args.kind} build was fetched, so there is none to remove.")
        print(f"removed {engines / args.kind}")
        return 0
    cmake_args = os.environ.get("CMAKE_ARGS", "")
    machine = probe_machine()
    build = builds.build_for(args.kind, machine, cmake_args)
    source = args.source
    if not source and build.needs_index:
        source = SettingsFile(paths.settings_file).load().settings.engine.index
    builds.check_driver(source, machine)
    if build.note:
        print(build.note, file=sys.stderr)
    if args.dry_run:
        print(shlex.join(builds.command(build, engines / build.kind, source)))
        return 0
    done = builds.install(build, engines, source)
    print(f"{done.engine} {done.version} ({done.kind}) is in {done.folder}")
    return 0


def _list(*, as_json: bool) -> int:
    paths = user_paths()
    settings = SettingsFile(paths.settings_file).load().settings
    infos = LlamaCppBackend(lambda: settings, engines_folder=paths.engines).engines()
    mlx = MlxBackend(engines_folder=paths.engines).engines()
    gpus = [gpu.name for gpu in probe_machine().gpus]
    choice = choose_engine(infos, settings.engine.engine, gpus)
    if as_json:
        engines = [dataclasses.asdict(info) for info in (*infos, *mlx)]
        chosen = dataclasses.asdict(choice.engine) if choice.engine else None
        told = {"reason": choice.reason, "warning": choice.warning}
        print(json.dumps({"engines": engines, "chosen": chosen, **told}, indent=2))
        return 0
    for info in (*infos, *mlx):
        what = info.version if info.usable else f"not usable: {info.reason}"
        where = ", ".join(info.devices) or ("processor" if info.usable else "")
        print(f"{info.name:<18} {what}  {where}  {info.path}".rstrip())
    print(f"\nGGUF models: {choice.reason}")
    if choice.warning:
        print(choice.warning)
    return 0
