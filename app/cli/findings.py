"""What `coolhead doctor` found: one line each, with what to do. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """`blocks`: nothing will run until it is mended."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do; empty where nothing is."""

    subject: str
    grade: Grade
    text: str
    advice: str = ""
