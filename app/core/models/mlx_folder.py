"""A model in MLX's form: a folder with `config.json` and safetensors files. Blocking.

Called by the library. Only the heads of the files are read: sizes and element counts, no tensor data.
"""

import json
import struct
from pathlib import Path
from typing import Any

from app.core.errors import ModelFileInvalid
from app.core.models.spec import ModelSpec

MAX_HEAD_BYTES = 64 * 1024 * 1024
MAX_ELEMENTS = 2**50
MAX_CONFIG_BYTES = 4 * 1024 * 1024


def is_mlx_folder(path: Path) -> bool:
    """Whether MLX could load it: weights as safetensors beside a configuration."""
    try:
        return (path / "config.json").is_file() and bool(_weights(path))
    except OSError:
        return False


def _weights(path: Path) -> tuple[Path, ...]:
    # A pipe of that name would be waited for.
    return tuple(sorted(file for file in path.glob("*.safetensors") if file.is_file()))


def read_mlx_spec(path: Path, model_id: str = "") -> ModelSpec:
    """Describes the folder.

    Raises:
        ModelFileInvalid: a part of it cannot be read as what it is named.
    """
    config = _config(path)
    files = _weights(path)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    bits = config.get("quantization", {})
    bits = bits.get("bits") if isinstance(bits, dict) else None
    return ModelSpec(
        model_id=model_id or path.name,
        path=path,
        files=files,
        size_bytes=sum(file.stat().st_size for file in files),
        format="mlx",
        architecture=str(config.get("model_type", "")),
        name=path.name,
        quantization=f"{bits}bit" if isinstance(bits, int) else "F16",
        parameters=sum(_elements(file) for file in files),
        trained_context_tokens=_number(text, "max_position_embeddings"),
        layers=_number(text, "num_hidden_layers"),
        has_chat_template=_has_template(path),
        header=None,
    )


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError("it is too large")
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _invalid(file, str(error)) from error
    if not isinstance(config, dict):
        raise _invalid(file, "it is no JSON object")
    return config


def _number(config: Any, key: str) -> int:
    value = config.get(key, 0) if isinstance(config, dict) else 0
    return value if isinstance(value, int) and value > 0 else 0


def _has_template(path: Path) -> bool:
    if (path / "chat_template.jinja").is_file() or (path / "chat_template.json").is_file():
        return True
    file = path / "tokenizer_config.json"
    try:
        if not file.is_file() or file.stat().st_size > MAX_HEAD_BYTES:
            return False
        return '"chat_template"' in file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def _elements(file: Path) -> int:
    """Weights in a safetensors file; packed ones counted by their bits, scales left out."""
    try:
        size = file.stat().st_size
        with file.open("rb") as head:
            (length,) = struct.unpack("<Q", head.read(8))
            if length > min(MAX_HEAD_BYTES, size):
                raise ValueError(f"its head claims {length} bytes")
            table = json.loads(head.read(length))
        count = 0
        for name, row in table.items():
            if name == "__metadata__" or name.endswith((".scales", ".biases")):
                continue
            elements = 1
            for extent in row["shape"]:
                elements *= int(extent)
                if elements > MAX_ELEMENTS:
                    raise ValueError(f"{name} claims more weights than there are files for")
            if row["dtype"] == "U32":  # packed: the scales tell how many to a word
                scales = table.get(name.removesuffix("weight") + "scales")
                elements = _unpacked(scales, elements)
            count += elements
        return count
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise _invalid(file, str(error)) from error


def _unpacked(scales: Any, words: int) -> int:
    """MLX packs groups of 64 weights to one scale; without a scale, eight 4-bit ones to a word."""
    if not scales:
        return words * 8
    groups = 1
    for extent in scales["shape"]:
        groups *= int(extent)
    return groups * 64


def _invalid(path: Path, reason: str) -> ModelFileInvalid:
    return ModelFileInvalid(
        f"{path} is not a usable part of a model: {reason}.",
        path=str(path),
        offset=0,
        reason=reason,
    )
