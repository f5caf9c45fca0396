"""`coolhead models [list|pull NAME|rm NAME|path]`: what is installed, and fetching and removing it."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.cli.ask import progress_bar
from app.cli.plan import library_of
from app.cli.text import size, table
from app.core.hardware.machine import Machine
from app.core.hardware.probe import probe_machine
from app.core.models.catalogue import CatalogueEntry, catalogue, entry_for
from app.core.models.download import fetch, origin
from app.core.models.family import FamilyChoice, choose_quantization
from app.core.models.library import ModelLibrary
from app.core.models.outline import can_outline, outlined
from app.core.models.presets_file import presets
from app.core.models.removal import remove
from app.core.models.spec import ModelSpec
from app.core.paths import Paths, user_paths
from app.core.settings import Settings
from app.core.settings_file import SettingsFile


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("models", help="installed models: list, pull, rm, path")
    parser.add_argument("--json", action="store_true")
    actions = parser.add_subparsers(dest="action")
    listing = actions.add_parser("list", help="installed models, and those that can be pulled")
    pulling = actions.add_parser("pull", help="fetch a model")
    pulling.add_argument("name", help="of the catalogue, or OWNER/REPO[:QUANTIZATION or :FILE]")
    removing = actions.add_parser("rm", help="delete a model's files")
    removing.add_argument("name", help="its id, as in `coolhead models list`")
    path = actions.add_parser("path", help="where models are kept")
    for action in (listing, pulling, removing, path):
        # A flag before the verb must not be undone by its absence after it.
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Raises: ModelUnknown, DownloadFailed, FolderUnusable."""
    paths = user_paths()
    if args.action == "path":
        print(json.dumps({"path": str(paths.models)}) if args.json else paths.models)
        return 0
    settings = SettingsFile(paths.settings_file).load().settings
    library = library_of(paths, settings)
    if args.action == "pull":
        return _pull(args, paths, library, settings)
    if args.action == "rm":
        return _remove(args, paths, library)
    return _list(args, library)


def _list(args: argparse.Namespace, library: ModelLibrary) -> int:
    specs, damaged = library.specs(), library.damaged()
    if args.json:
        rows = [_as_json(spec) for spec in specs]
        broken = [
            {"id": each.model_id, "path": str(each.path), "reason": each.error.message}
            for each in damaged
        ]
        known = [
            {
                "name": entry.name,
                "title": entry.title,
                "text": entry.text,
                "about_bytes": _about_bytes(entry),
                "is_installed": _is_installed(entry, specs),
            }
            for entry in catalogue()
        ]
        print(json.dumps({"models": rows, "damaged": broken, "catalogue": known}, indent=2))
        return 0
    if specs:
        head = ("model", "size", "quantization", "parameters", "context", "file")
        print(table([head, *(_row(spec) for spec in specs)]))
    else:
        print("No model is installed.")
    for each in damaged:
        print(f"! {each.model_id}: {each.error.message}")
    rest = [entry for entry in catalogue() if not _is_installed(entry, specs)]
    if rest:
        print(
            "\n`coolhead models pull NAME` fetches one; `coolhead plan NAME` tells first what it takes:"
        )
        print(table([_offer(entry) for entry in rest], indent="  "))
        print("Anything else on the Hub: OWNER/REPO, or OWNER/REPO:QUANTIZATION.")
    return 0


def _is_installed(entry: CatalogueEntry, specs: Sequence[ModelSpec]) -> bool:
    return any(spec.model_id.startswith(entry.name) for spec in specs)


def _about_bytes(entry: CatalogueEntry) -> int:
    if entry.size_bytes or not can_outline(entry):
        return entry.size_bytes
    return outlined(entry).size_bytes


def _offer(entry: CatalogueEntry) -> tuple[str, ...]:
    about = _about_bytes(entry)
    told = size(about) if about else ""
    return (entry.name, told if entry.size_bytes else f"~ {told}", entry.quantization, entry.text)


def _row(spec: ModelSpec) -> tuple[str, ...]:
    return (
        spec.model_id,
        size(spec.size_bytes),
        spec.quantization,
        _count(spec.parameters),
        f"{spec.trained_context_tokens:,}",
        str(spec.path),
    )


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"


def _as_json(spec: ModelSpec) -> dict[str, Any]:
    return {
        "id": spec.model_id,
        "name": spec.name,
        "path": str(spec.path),
        "files": [str(file) for file in spec.files],
        "size_bytes": spec.size_bytes,
        "format": spec.format,
        "architecture": spec.architecture,
        "quantization": spec.quantization,
        "parameters": spec.parameters,
        "context_tokens": spec.trained_context_tokens,
        "has_chat_template": spec.has_chat_template,
    }


def _pull(args: argparse.Namespace, paths: Paths, library: ModelLibrary, settings: Settings) -> int:
    entry = entry_for(args.name)
    paths.prepare()

    def pick(sizes: dict[str, int]) -> str:
        choice = for_this_machine(sizes, probe_machine(), settings)
        if choice is None:
            return ""
        print(choice.reason, file=sys.stderr)
        return choice.quantization

    with progress_bar(origin(entry, paths)) as shown:
        path = fetch(entry, paths, shown, pick=pick)
    spec = next((spec for spec in library.specs() if path in spec.files), None)
    if args.json:
        print(json.dumps({"path": str(path), "id": spec.model_id if spec else None}))
    elif spec is not None:
        print(f"{spec.model_id} is installed ({size(spec.size_bytes)}).")
    else:
        broken = next((each for each in library.damaged() if each.path == path), None)
        if broken is not None:
            raise broken.error
        print(f"{path} is fetched; it goes with a model and is none by itself.")
    return 0


def for_this_machine(
    sizes: dict[str, int], machine: Machine, settings: Settings
) -> FamilyChoice | None:
    """What of a repository suits the machine; None where nothing can be said."""
    known = [(presets().bits(name), size) for name, size in sizes.items() if size]
    if not known:
        return None
    # How many weights there are, by the file whose weights are the largest.
    bits, size_bytes = max(known)
    return choose_quantization(size_bytes * 8 / bits, machine, settings, list(sizes))


def _remove(args: argparse.Namespace, paths: Paths, library: ModelLibrary) -> int:
    broken = next((each for each in library.damaged() if each.model_id == args.name), None)
    files: tuple[Path, ...]
    if broken is not None:
        files, path = (broken.path,), broken.path
    else:
        spec = library.find(args.name)
        files, path = spec.files, spec.path
    freed = remove(path, files, paths.models)
    if args.json:
        print(json.dumps({"removed": [str(file) for file in files], "freed_bytes": freed}))
    else:
        print(f"{args.name} is deleted, {size(freed)} freed.")
    return 0
