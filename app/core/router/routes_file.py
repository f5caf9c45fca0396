"""`routes.yaml`: read, checked, and turned into rules. Only ever read: the file is the user's.

Called by `router.py` and the command line. A file of thousands of rules takes a second or so to read,
so a running app does it in an executor. Every mistake is named with file, line and key path.
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from app.core.errors import RoutesInvalid
from app.core.paths import resource
from app.core.router.decision import AUTO, TargetKind
from app.core.router.entries import Report, kinds_of, pool_of, remote_of, rule_of
from app.core.router.marked_yaml import KeyPath, Marked, MarkedYamlError, load
from app.core.router.problems import Problem, invalid
from app.core.router.routes_schema import (
    MOST_RULES,
    CacheEntry,
    FallbacksEntry,
    PoolEntry,
    RemoteEntry,
    RoutesEntry,
    RuleEntry,
    ThenEntry,
    WhenEntry,
    WordsEntry,
)
from app.core.router.rules import PoolTarget, RemoteTarget, RoutingRules, Rule

DEFAULT_FILE = "routes.yaml"
_LARGEST_FILE_BYTES = 32 << 20

_EntryT = TypeVar("_EntryT", RemoteEntry, PoolEntry, RuleEntry)
_SectionT = TypeVar("_SectionT", dict[str, Any], list[Any])

# Which entry stands under a key of another one.
_INNER: Mapping[tuple[type[msgspec.Struct], str], type[msgspec.Struct]] = {
    (RuleEntry, "when"): WhenEntry,
    (RuleEntry, "then"): ThenEntry,
    (WhenEntry, "tags"): WordsEntry,
    (WhenEntry, "keywords"): WordsEntry,
    (ThenEntry, "cache"): CacheEntry,
    (ThenEntry, "fallbacks"): FallbacksEntry,
}
_SECRET_KEYS = frozenset({"key", "api_key", "apikey", "token", "password", "secret"})


def read_routes(path: Path) -> RoutingRules:
    """The rules of a file.

    Raises:
        RoutesInvalid: with every mistake; also when the file cannot be read.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise RoutesInvalid(f"{path} is larger than 32 MiB, which is no list of rules.")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RoutesInvalid(f"{path} cannot be read: {error.strerror}.", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise RoutesInvalid(f"{path} is not UTF-8.", path=str(path)) from error
    return parse_routes(text, source=str(path), folder=path.parent)


def parse_routes(text: str, source: str = "", folder: Path = Path()) -> RoutingRules:
    """The rules in `text`; `folder` is where the templates that it names are looked for.

    Raises:
        RoutesInvalid: with every mistake.
    """
    try:
        marked = load(text)
    except MarkedYamlError as error:
        raise invalid(
            [Problem(source, error.line, key_path(error.key), error.text, "syntax")]
        ) from error
    reader = _Reader(marked, source, folder)
    rules = reader.read()
    if reader.problems:
        raise invalid(sorted(reader.problems, key=lambda problem: problem.line))
    return rules


def write_default(path: Path) -> bool:
    """Writes the commented default file where there is none; False where there is one.

    Raises:
        RoutesInvalid: when the file cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(resource(DEFAULT_FILE).read_text(encoding="utf-8"))
    except FileExistsError:
        return False
    except OSError as error:
        raise RoutesInvalid(
            f"{path} cannot be written: {error.strerror}.", path=str(path)
        ) from error
    return True


def key_path(key: KeyPath) -> str:
    """`rules[3].when.model`."""
    said = ""
    for step in key:
        said += f"[{step}]" if isinstance(step, int) else f".{step}" if said else step
    return said


class _Reader:
    """One reading of one file; collects mistakes instead of stopping at the first."""

    def __init__(self, marked: Marked, source: str, folder: Path) -> None:
        self.problems: list[Problem] = []
        self._marked = marked
        self._source = source
        self._folder = folder

    def read(self) -> RoutingRules:
        data = {} if self._marked.data is None else self._marked.data
        if not isinstance(data, dict):
            self._say((), "The file has to be a list of keys, such as `rules:`.", "value")
            return RoutingRules(source=self._source)
        self._check_keys(data, RoutesEntry, ())
        if data.get("version", 1) != 1:
            self._say(("version",), "This Coolhead reads version 1.", "value")
        remotes = self._section(data, "remotes", dict)
        pools = self._section(data, "pools", dict)
        kinds = kinds_of(remotes, pools)
        for section, names in (("remotes", remotes), ("pools", pools)):
            for name in names:
                if name == AUTO or (section == "pools" and name in remotes):
                    self._say((section, name), f"The name {name!r} is taken.", "value")
        return RoutingRules(
            rules=self._rules(self._section(data, "rules", list), kinds),
            remotes=self._remotes(remotes),
            pools=self._pools(pools, kinds),
            source=self._source,
        )

    def _rules(self, given: list[Any], kinds: Mapping[str, TargetKind]) -> tuple[Rule, ...]:
        made: list[Rule] = []
        if len(given) > MOST_RULES:
            self._say(("rules",), f"{MOST_RULES:,} rules is the most.", "value")
            return ()
        names: dict[str, int] = {}
        for at, data in enumerate(given):
            key = ("rules", at)
            entry = self._entry(key, data, RuleEntry)
            if entry is None:
                continue
            if entry.name in names:
                self._say(
                    (*key, "name"),
                    f"There is another rule {entry.name!r}, rules[{names[entry.name]}].",
                    "value",
                )
            names[entry.name] = at
            rule = rule_of(entry, kinds, self._folder, self._marked.line(key), self._reporter(key))
            if entry.enabled:
                made.append(rule)
        return tuple(made)

    def _remotes(self, given: Mapping[str, Any]) -> dict[str, RemoteTarget]:
        made: dict[str, RemoteTarget] = {}
        for name, data in given.items():
            key = ("remotes", name)
            entry = self._entry(key, data, RemoteEntry)
            if entry is not None:
                line = self._marked.line(key)
                made[name] = remote_of(name, entry, line, self._reporter(key))
        return made

    def _pools(
        self, given: Mapping[str, Any], kinds: Mapping[str, TargetKind]
    ) -> dict[str, PoolTarget]:
        made: dict[str, PoolTarget] = {}
        for name, data in given.items():
            key = ("pools", name)
            entry = self._entry(key, data, PoolEntry)
            if entry is not None:
                line = self._marked.line(key)
                made[name] = pool_of(name, entry, kinds, line, self._reporter(key))
        return made

    def _section(self, data: Mapping[str, Any], name: str, kind: type[_SectionT]) -> _SectionT:
        found = data.get(name)
        if found is None:
            return kind()
        if not isinstance(found, kind):
            wanted = "a list" if kind is list else "names with what they stand for"
            self._say((name,), f"It takes {wanted}.", "value")
            return kind()
        return found

    def _entry(self, key: KeyPath, data: Any, kind: type[_EntryT]) -> _EntryT | None:
        before = len(self.problems)
        cleaned = self._check_keys(data, kind, key)
        try:
            entry = msgspec.convert(cleaned, kind)
        except msgspec.ValidationError as error:
            text, _, where = str(error).partition(" - at ")
            # A map's key stands as [...] in the path: its map is near enough.
            steps = re.findall(r"\.(\w+)|\[(\d+)\]", where.partition("[...]")[0])
            inner: KeyPath = tuple(name or int(index) for name, index in steps)
            self._say((*key, *inner), _in_words(text), "value")
            return None
        return entry if len(self.problems) == before else None

    def _check_keys(self, data: Any, kind: type[msgspec.Struct], key: KeyPath) -> Any:
        """Names keys that no entry of this kind has; returns `data` without them."""
        if not isinstance(data, dict):
            return data
        known = kind.__struct_fields__
        cleaned: dict[str, Any] = {}
        for name, value in data.items():
            if name in known:
                below = _INNER.get((kind, name))
                cleaned[name] = self._check_keys(value, below, (*key, name)) if below else value
            elif kind is RemoteEntry and name.lower() in _SECRET_KEYS:
                self._say(
                    (*key, name),
                    "Keys do not belong in this file: name an environment variable in `key_env`, "
                    "or a key of the keyring in `key_keyring`.",
                    "secret",
                )
            else:
                near = difflib.get_close_matches(name, known, 1, cutoff=0.6)
                hint = f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(known)}."
                self._say((*key, name), f"There is no key `{name}` here. {hint}", "unknown_key")
        return cleaned

    def _reporter(self, key: KeyPath) -> Report:
        return lambda inner, text, kind: self._say((*key, *inner), text, kind)

    def _say(self, key: KeyPath, text: str, kind: str) -> None:
        self.problems.append(
            Problem(self._source, self._marked.line(key), key_path(key), text, kind)
        )


_TYPE_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "keys with values",
    "null": "nothing",
}


def _in_words(text: str) -> str:
    """What msgspec says, in the words of someone who writes YAML."""
    if text.startswith("Object missing required field"):
        return f"The key {text.rpartition(' ')[2]} is missing."
    said = re.sub(
        r"`([a-z |]+)`",
        lambda found: (
            " or ".join(
                _TYPE_WORDS.get(name, name)
                for name in found.group(1).split(" | ")
                if name != "null"
            )
            or "nothing"
        ),
        text,
    )
    hint = ""
    if said.startswith("Expected text") and said.endswith(
        ("got true or false", "got a whole number")
    ):
        hint = " Put it in quotes."
    return said + "." + hint
