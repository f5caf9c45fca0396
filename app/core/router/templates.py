"""Prompts from the user's jinja2 files, in a sandbox. Pure but for reading the file.

Compiled when rules are read, rendered by the dispatcher. jinja2 is imported only where a rule names
a template.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.core.errors import RoutesInvalid

_LARGEST_FILE_BYTES = 1 << 20
_LARGEST_PROMPT_CHARACTERS = 4 << 20


class TemplateBrokenError(Exception):
    """The file cannot be used; `line` counts from 1, 0 where there is none."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.line = line


class PromptTemplate:
    """A compiled template."""

    __slots__ = ("_template", "path")

    def __init__(self, path: Path, template: Any) -> None:
        self.path = path
        self._template = template

    @classmethod
    def read(cls, path: Path) -> "PromptTemplate":
        """Reads and compiles a file.

        Raises:
            TemplateBrokenError: when it is missing, too large, or not a template.
        """
        from jinja2 import TemplateSyntaxError

        try:
            if path.stat().st_size > _LARGEST_FILE_BYTES:
                raise TemplateBrokenError("is larger than 1 MiB")
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise TemplateBrokenError(f"cannot be read: {reason}") from error
        try:
            return cls(path, _environment().from_string(source))
        except TemplateSyntaxError as error:
            raise TemplateBrokenError(f"{error.message}", error.lineno) from error

    def render(self, values: Mapping[str, Any]) -> str:
        """The text.

        Raises:
            RoutesInvalid: when the template fails on these values, or asks for what the sandbox
                does not allow.
        """
        from jinja2 import TemplateError

        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(**values):
                length += len(piece)
                if length > _LARGEST_PROMPT_CHARACTERS:
                    raise RoutesInvalid(f"{self.path} makes a prompt longer than 4 MiB.")
                pieces.append(piece)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise RoutesInvalid(
                f"The template {self.path} failed: {error}.", path=str(self.path)
            ) from error
        return "".join(pieces)


def _environment() -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    # Blocks as chat templates expect them; prompts are not HTML, so nothing is escaped.
    environment = ImmutableSandboxedEnvironment(
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.globals["raise_exception"] = raise_exception
    return environment
