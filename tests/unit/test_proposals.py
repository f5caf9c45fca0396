"""Whatever is refused: what is proposed fits, and so does what its settings lead to."""

import itertools

import pytest

from app.core.hardware.machine import imagined_machine
from app.core.models.fit import judge, limits_from, propose
from app.core.models.plan import plan_memory
from app.core.models.presets import choose
from app.core.models.spec import ModelSpec, read_spec
from app.core.settings import Settings
from tests.fakes import gguf_models

GIB = 1 << 30
MACHINES = ((0, 8), (0, 16), (6, 16), (8, 32), (12, 32), (24, 64))
ASKED = ((131072, 1), (32768, 8), (8192, 32), (2048, 64))
MAKERS = {
    "1B": gguf_models.llama_1b,
    "8B": gguf_models.llama_8b,
    "27B-swa": gguf_models.gemma3_27b,
    "30B-A3B": gguf_models.qwen3moe_30b,
    "hybrid": gguf_models.granite_hybrid_7b,
}


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: read_spec(gguf_models.write_model(make(), folder / f"{name}.gguf"))
        for name, make in MAKERS.items()
    }


@pytest.mark.parametrize("placement", ["auto", "gpu_only", "may_use_ram", "cpu_only"])
@pytest.mark.parametrize("name", MAKERS)
def test_proposal_fits_and_so_do_the_settings_it_names(
    name: str, placement: str, specs: dict[str, ModelSpec]
) -> None:
    spec = specs[name]
    refused = 0
    for (gpu, ram), (context, slots) in itertools.product(MACHINES, ASKED):
        where = imagined_machine(ram * GIB, [gpu * GIB] if gpu else [])
        settings = Settings().replace(
            {
                "model.context_tokens": context,
                "model.slots": slots,
                "model.placement": placement,
            }
        )
        limits = limits_from(settings, where)
        choice = choose(spec, where, settings)
        if judge(plan_memory(spec, choice.load, choice.gpus), where, limits).fits:
            continue
        refused += 1
        proposal = propose(spec, choice.load, where, limits, choice.gpus)
        if proposal is None or not proposal.changes:
            # Only where even the least of this very file is too much for the machine.
            assert spec.size_bytes > (ram - 4) * GIB
            continue
        load = proposal.load
        assert load.context_tokens <= context
        assert load.slots <= slots
        assert load.context_tokens >= 512
        accepted = choose(spec, where, settings.replace(dict(proposal.changes)))
        verdict = judge(plan_memory(spec, accepted.load, accepted.gpus), where, limits)
        assert verdict.fits, f"{gpu}/{ram} {context} x {slots}: {proposal.sentence} {verdict}"
        assert accepted.load.context_tokens == load.context_tokens
        assert accepted.load.slots == load.slots
        assert accepted.load.kv_type_k == load.kv_type_k
    assert refused or placement == "may_use_ram" or name in {"1B", "hybrid"}
