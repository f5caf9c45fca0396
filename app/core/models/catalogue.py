"""Models that can be fetched by a short name: `resources/catalogue.yaml`, typed. From any thread."""

import re
from functools import lru_cache

import msgspec
import yaml

from app.core.errors import ModelUnknown
from app.core.paths import resource

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Outline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of a model that memory follows from, for a plan before it is fetched.

    Attributes:
        feed_forward: width of the feed-forward part, of one expert where there are experts.
        is_tied: the token embeddings serve as output layer.
    """

    architecture: str
    context_tokens: int
    layers: int
    embedding: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    is_tied: bool = False
    window_tokens: int = 0
    experts: int = 0
    experts_used: int = 0


class CatalogueEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model and where it comes from; sizes in bytes, 0 where only the source knows.

    Attributes:
        file: its name in the repository and here; empty picks the file by `quantization`.
        wheel: a requirement for pip; `wheel_member` the model's file in it.
        outline: what its memory follows from; None where that is not known.
    """

    name: str
    title: str = ""
    text: str = ""
    parameters: int = 0
    quantization: str = ""
    licence: str = ""
    file: str = ""
    size_bytes: int = 0
    sha256: str = ""
    wheel: str = ""
    wheel_member: str = ""
    wheel_bytes: int = 0
    repo: str = ""
    outline: Outline | None = None


class _Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: tuple[CatalogueEntry, ...]


@lru_cache(maxsize=1)
def catalogue() -> tuple[CatalogueEntry, ...]:
    """What is shipped, the starter model first."""
    text = resource("catalogue.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), _Catalogue).models


def starter() -> CatalogueEntry:
    """The model that is fetched where there is none."""
    return catalogue()[0]


def entry_for(name: str) -> CatalogueEntry:
    """An entry by its name, or one made of `OWNER/REPO` or `OWNER/REPO:FILE-or-QUANTIZATION`.

    Raises:
        ModelUnknown: it is neither.
    """
    for entry in catalogue():
        if entry.name == name.lower():
            return entry
    repo, _, which = name.partition(":")
    if _REPO.fullmatch(repo):
        is_file = which.lower().endswith(".gguf")
        return CatalogueEntry(
            name=name,
            title=repo,
            repo=repo,
            file=which if is_file else "",
            quantization="" if is_file else which.upper(),
        )
    names = ", ".join(entry.name for entry in catalogue())
    raise ModelUnknown(
        f"There is no model {name!r} in the catalogue. It has {names}; anything else on the Hub is "
        "named as OWNER/REPO or OWNER/REPO:QUANTIZATION.",
        model=name,
    )
