"""Which device holds which layer.

Pure; called by `plan.py`. Source: `llama_model_base::load_tensors` (llama-model.cpp): the last
`gpu_layers` layers, the output layer counted as one, go to GPUs, shared by `tensor_split`; token
embeddings stay in RAM.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.models.load_settings import LoadSettings
from app.core.models.plan_shape import Shape


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices by number: -1 for RAM, else an index into the GPUs.

    Attributes:
        layers: of each layer; `output` of the output layer.
    """

    layers: tuple[int, ...]
    output: int


def place(shape: Shape, settings: LoadSettings, gpus: Sequence[str]) -> Placement:
    count = len(shape.layers)
    offloaded = min(max(0, settings.gpu_layers), count + 1) if gpus else 0
    if not offloaded:
        return Placement((-1,) * count, -1)
    first = count + 1 - offloaded
    limits = _limits(settings.tensor_split, len(gpus))

    def device(number: int) -> int:
        if number < first:
            return -1
        share = (number - first) / offloaded
        return next((gpu for gpu, limit in enumerate(limits) if share < limit), len(gpus) - 1)

    return Placement(tuple(device(number) for number in range(count)), device(count))


def _limits(split: Sequence[float], gpus: int) -> tuple[float, ...]:
    """Where each GPU's share ends, from 0 to 1; equal shares where none is given."""
    shares = [max(0.0, share) for share in split[:gpus]]
    shares += [0.0] * (gpus - len(shares))
    if sum(shares) <= 0:
        shares = [1.0] * gpus
    total = sum(shares)
    limits = []
    reached = 0.0
    for share in shares:
        reached += share
        limits.append(reached / total)
    return tuple(limits)
