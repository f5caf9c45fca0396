"""What is wrong with a rules file: where, and in words. Pure.

Made by `routes_file.py` (errors) and `lint.py` (warnings); printed by the command line, announced
after a reload, shown in the panel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.core.errors import RoutesInvalid

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake or doubt.

    Attributes:
        file: its path; empty where rules were made in code.
        line: from 1; 0 where there is none.
        key: such as `rules[3].when.model`.
        text: one sentence.
        kind: a word for programs: `syntax`, `unknown_key`, `value`, `shadowed`, ...
    """

    file: str
    line: int
    key: str
    text: str
    kind: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = (
            f"{self.file or 'rules'}:{self.line}: " if self.line else f"{self.file or 'rules'}: "
        )
        return where + (f"{self.key}: " if self.key else "") + self.text

    def as_dict(self) -> dict[str, object]:
        return {
            "file": self.file,
            "line": self.line,
            "key": self.key,
            "text": self.text,
            "kind": self.kind,
            "severity": self.severity,
        }


def invalid(problems: Sequence[Problem]) -> RoutesInvalid:
    """The error for a file with `problems`; says the first and counts the rest."""
    message = str(problems[0])
    if len(problems) > 1:
        rest = len(problems) - 1
        message += f" And {rest} more mistake{'s' if rest > 1 else ''}."
    return RoutesInvalid(message, problems=[problem.as_dict() for problem in problems])
