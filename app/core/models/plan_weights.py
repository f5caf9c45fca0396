"""Where a model's weights lie, in bytes: on GPUs, mapped in RAM, or owned in RAM.

Pure; called by `plan.py`.
"""

from dataclasses import dataclass

from app.core.models.load_settings import LoadSettings
from app.core.models.plan_place import Placement
from app.core.models.plan_shape import Shape


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights by place, in bytes.

    Attributes:
        mapped_bytes: in RAM, pages of the file.
        owned_bytes: in RAM, copies.
        gpus_bytes: of each GPU.
    """

    mapped_bytes: int
    owned_bytes: int
    gpus_bytes: tuple[int, ...]


def place_weights(
    shape: Shape, settings: LoadSettings, placement: Placement, gpu_count: int
) -> Weights:
    """Sum the weights by place.

    Source: `load_tensors` and `make_cpu_buft_list` (llama-model.cpp): token embeddings stay in
    RAM and are copied where the output layer lies if they serve as that; experts of the first
    `experts_in_ram` layers stay in RAM; with no GPU in use, matrices of some types are copied
    into the CPU backend's own layout, mapped or not.
    """
    repacks = gpu_count == 0
    gpus = [0] * gpu_count
    in_ram = shape.input_bytes
    repacked = 0
    for number, (layer, device) in enumerate(zip(shape.layers, placement.layers, strict=True)):
        experts_device = -1 if number < settings.experts_in_ram else device
        if device < 0:
            in_ram += layer.weights_bytes
            repacked += layer.repack_bytes
        else:
            gpus[device] += layer.weights_bytes
        if experts_device < 0:
            in_ram += layer.expert_bytes
            repacked += layer.expert_repack_bytes
        else:
            gpus[experts_device] += layer.expert_bytes
    copied = 0
    if placement.output < 0:
        in_ram += shape.output_bytes
        repacked += shape.output_repack_bytes
        copied = shape.tied_bytes if repacks and shape.tied_repack else 0
    else:
        gpus[placement.output] += shape.output_bytes + shape.tied_bytes
    if not repacks:
        repacked = 0
    owned = copied + (repacked if settings.mmap else in_ram)
    return Weights(in_ram + copied - owned, owned, tuple(gpus))


def repacked_share(shape: Shape) -> float:
    """How much of the weights, 0 to 1, the CPU backend lays out anew where it runs alone.

    The pages of the file that they were read from stay mapped, and are never looked at again.
    """
    layers = shape.layers
    whole = shape.input_bytes + shape.output_bytes
    whole += sum(layer.weights_bytes + layer.expert_bytes for layer in layers)
    repacked = shape.output_repack_bytes
    repacked += sum(layer.repack_bytes + layer.expert_repack_bytes for layer in layers)
    return repacked / whole if whole else 0.0
