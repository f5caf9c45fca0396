"""What is on disk: one model, described from its files alone.

Called by the library, the plan and the dry run, from any thread; `read_spec` blocks on the disk.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.core.models.ggml_types import FILE_TYPES
from app.core.models.gguf import GgufHeader, read_header
from app.core.models.gguf_parser import invalid_file
from app.core.models.plan_shape import Shape, shape_of

_WORD = re.compile(r"[a-z0-9.]+")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
ModelFormat = Literal["gguf", "mlx"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model on disk.

    Attributes:
        model_id: the name that clients use.
        path: the file (or folder) that names it; `files` all of its parts.
        name: for people.
        quantization: llama.cpp's name for the mixture (Q4_K_M), or the commonest tensor type.
        parameters: elements of all tensors.
        header: of GGUF models; None for others.
        shape: what the memory plan needs of it.
    """

    model_id: str
    path: Path
    files: tuple[Path, ...]
    size_bytes: int
    format: ModelFormat
    architecture: str
    name: str
    quantization: str
    parameters: int
    trained_context_tokens: int
    layers: int
    has_chat_template: bool
    header: GgufHeader | None
    shape: Shape | None = None


def read_spec(path: Path, model_id: str = "") -> ModelSpec:
    """Describe the model at `path`.

    Args:
        path: a GGUF file, or any part of a split one.
        model_id: the name that clients use; the file's stem if empty.

    Raises:
        ModelFileMissing: it or a part of it is not there.
        ModelFileInvalid: it is no model, or damaged.
    """
    return spec_of(read_header(path), path, model_id)


def spec_of(header: GgufHeader, path: Path, model_id: str = "") -> ModelSpec:
    """Describe the model that `header` was read from.

    Raises:
        ModelFileInvalid: it names no architecture, so that no engine could run it.
    """
    architecture = header.text("general.architecture")
    if not architecture:
        raise invalid_file(path, 0, "it does not say of what architecture it is")
    return ModelSpec(
        model_id=model_id or path.stem,
        path=header.files[0],
        files=header.files,
        size_bytes=header.size_bytes,
        format="gguf",
        architecture=architecture,
        name=_title(header.text("general.name"), header.files[0].stem),
        quantization=_quantization(header),
        parameters=sum(tensor.elements for tensor in header.tensors),
        trained_context_tokens=header.integer(f"{architecture}.context_length"),
        layers=header.integer(f"{architecture}.block_count"),
        has_chat_template="tokenizer.chat_template" in header.metadata,
        header=header,
        shape=shape_of(header),
    )


def _title(name: str, stem: str) -> str:
    """The name inside the file where the file's own bears it out, else the file's.

    Converters write what the folder was called in which a model was trained.
    """
    words = _WORD.findall(name.lower())
    return name if words and all(word in stem.lower() for word in words) else _SPLIT.sub("", stem)


def _quantization(header: GgufHeader) -> str:
    # Bit 1024 marks a guess (llama_ftype's LLAMA_FTYPE_GUESSED).
    named = FILE_TYPES.get(header.integer("general.file_type", -1) & ~1024)
    if named is not None and "general.file_type" in header.metadata:
        return named
    sizes: Counter[str] = Counter()
    for tensor in header.tensors:
        sizes[tensor.type.name] += tensor.size_bytes
    return sizes.most_common(1)[0][0].upper() if sizes else ""
