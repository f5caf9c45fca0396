"""YAML that remembers its lines, so that a mistake can be named where it stands.

Called by `routes_file.py`. Unlike plain loading it refuses a key given twice (the first would be lost
without a word) and values that refer to themselves.
"""

from dataclasses import dataclass
from typing import Any

import yaml

KeyPath = tuple[str | int, ...]

# An alias may repeat what it names; a file of a few lines must not grow to gigabytes.
_MOST_NODES = 2_000_000


class MarkedYamlError(Exception):
    """Not YAML, or a key given twice. `line` counts from 1."""

    def __init__(self, text: str, line: int, key: KeyPath = ()) -> None:
        super().__init__(text)
        self.text = text
        self.line = line
        self.key = key


@dataclass(frozen=True, slots=True)
class Marked:
    """A document as plain Python data, and the nodes that it came from."""

    data: Any
    node: yaml.Node | None

    def line(self, key: KeyPath) -> int:
        """Where `key` stands, or the last of its ancestors that the file has; 0 for an empty file."""
        node = self.node
        if node is None:
            return 0
        line = node.start_mark.line
        for step in key:
            found: yaml.Node | None = None
            if isinstance(node, yaml.MappingNode):
                for name, value in node.value:
                    if getattr(name, "value", None) == str(step):
                        # The key's own line: a block value begins below it.
                        line, found = name.start_mark.line, value
            elif (
                isinstance(node, yaml.SequenceNode)
                and isinstance(step, int)
                and step < len(node.value)
            ):
                found = node.value[step]
                line = found.start_mark.line
            if found is None:
                break
            node = found
        return line + 1


def load(text: str) -> Marked:
    """Reads one document.

    Raises:
        MarkedYamlError: with the line of the first mistake.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Marked(None, None)
        return Marked(_Builder(loader).build(node, ()), node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = " ".join(part for part in (error.problem, error.context) if part)
        raise MarkedYamlError(f"Not YAML: {words}.", mark.line + 1 if mark else 1) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise MarkedYamlError(
            f"A character that YAML does not allow: {error.reason}.", line
        ) from error
    except RecursionError as error:
        raise MarkedYamlError("Nested too deeply.", 1) from error
    finally:
        loader.dispose()


class _Builder:
    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._open: set[int] = set()
        self._flat: set[int] = set()
        self._nodes = 0

    def build(self, node: yaml.Node, key: KeyPath) -> Any:
        self._nodes += 1
        line = node.start_mark.line + 1
        if self._nodes > _MOST_NODES:
            raise MarkedYamlError("Aliases make this file too large.", line, key)
        if isinstance(node, yaml.ScalarNode):
            try:
                return self._loader.construct_object(node)
            except ValueError as error:
                raise MarkedYamlError(f"{node.value!r} has no such type.", line, key) from error
        if id(node) in self._open:
            raise MarkedYamlError("This value contains itself.", line, key)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*key, at)) for at, item in enumerate(node.value)]
            return self._mapping(node, key)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, key: KeyPath) -> dict[str, Any]:
        if id(node) not in self._flat:
            # Once only: after merging, a key of its own may stand beside the one it overrides.
            self._flat.add(id(node))
            _refuse_twins(node, key)
            self._loader.flatten_mapping(node)
        found: dict[str, Any] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                line = name_node.start_mark.line + 1
                raise MarkedYamlError("A key has to be a word.", line, key)
            # The key as written: `on` and `no` are words here, not booleans.
            name = name_node.value
            found[name] = self.build(value_node, (*key, name))
        return found


def _refuse_twins(node: yaml.Node, key: KeyPath) -> None:
    seen: dict[str, int] = {}
    for name_node, _ in node.value:
        name, line = getattr(name_node, "value", None), name_node.start_mark.line + 1
        if isinstance(name, str) and name != "<<":
            if name in seen:
                raise MarkedYamlError(
                    f"`{name}` is given twice, first in line {seen[name]}.", line, (*key, name)
                )
            seen[name] = line
