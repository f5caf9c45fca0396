"""What is loaded beside a model: a vision encoder, a draft model, adapters.

Called by `plan.py`; reads their headers, which are kept once read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.core.models.gguf import GgufHeader
from app.core.models.load_settings import LoadSettings
from app.core.models.spec import ModelSpec, read_spec


@dataclass(frozen=True, slots=True)
class Companion:
    """A file loaded beside the model."""

    kind: Literal["draft", "mmproj", "adapter"]
    spec: ModelSpec
    weights_bytes: int
    compute_bytes: int


def companions(settings: LoadSettings) -> tuple[Companion, ...]:
    """What `settings` names.

    Raises:
        ModelFileMissing: one of the files is gone.
        ModelFileInvalid: one is damaged.
    """
    found = []
    if settings.draft:
        found.append(Companion("draft", read_spec(Path(settings.draft)), 0, 0))
    if settings.mmproj:
        spec = read_spec(Path(settings.mmproj))
        compute = _encoder_compute_bytes(spec.header) if spec.header else 0
        found.append(Companion("mmproj", spec, spec.size_bytes, compute))
    for adapter in settings.adapters:
        spec = read_spec(Path(adapter))
        found.append(Companion("adapter", spec, spec.size_bytes, 0))
    return tuple(found)


def _encoder_compute_bytes(header: GgufHeader) -> int:
    """The encoder's buffer for one image of full size.

    Source: `clip_graph` (tools/mtmd/clip.cpp): patches of the image as tokens, attention without
    a window, f32; as in a language model, five residual-sized rows and three of the feed-forward
    width, and the scores of all heads.
    """
    side = header.integer("clip.vision.image_size") // (
        header.integer("clip.vision.patch_size") or 1
    )
    patches = min(side, 1024) ** 2
    heads = header.integer("clip.vision.attention.head_count")
    rows = 5 * header.integer("clip.vision.embedding_length") + 3 * header.integer(
        "clip.vision.feed_forward_length"
    )
    return 4 * patches * (rows + patches * heads)
