"""What is MLX's own: memory within its limit over many prompts, and weights that were carried over right."""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.backends.mlx import MlxBackend
from app.core.models.load_settings import LoadSettings
from app.core.models.mlx_folder import read_mlx_spec
from app.core.models.plan import plan_memory
from tests.engines.conftest import MAKER
from tests.engines.engine_bench import MIB, ask, bench, chat_body
from tests.engines.f32_gguf import write_f32
from tests.engines.fetch import FETCH_TIMEOUT_S

pytestmark = [pytest.mark.real, pytest.mark.timeout(FETCH_TIMEOUT_S * 2)]
LOAD = LoadSettings(context_tokens=512, slots=2, threads=1, batch_tokens=128, ubatch_tokens=128)
PROMPTS = 20
GREEDY_TOKENS = 12
TEXT = "The capital of France is"
MLX_GREEDY = """
import json, sys
import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache
model, tokenizer = load(sys.argv[1])
tokens = json.loads(sys.argv[2])
cache, found, step = make_prompt_cache(model), [], mx.array([tokens])
for _ in range(int(sys.argv[3])):
    token = int(mx.argmax(model(step, cache=cache)[0, -1]))
    found.append(token)
    step = mx.array([[token]])
print(json.dumps(found))
"""


def test_mlx_twenty_distinct_prompts_stay_within_the_limit(
    mlx_folder: Path, smollm2_mlx: Path
) -> None:
    spec = read_mlx_spec(smollm2_mlx, "m")
    plan = plan_memory(spec, LOAD)

    async def story() -> None:
        async with bench(MlxBackend(mlx_folder), {"m": smollm2_mlx}, LOAD, bound_s=280) as made:
            worker = await made.supervisor.ensure_ready("m")
            for n in range(PROMPTS):
                answer = await ask(
                    worker, "/v1/chat/completions", chat_body(f"{n} {n * 7} {n * 31}", 1)
                )
                assert answer.status == 200
            told = (await ask(worker, "/memory")).data
            limit = sum(part.total_bytes for part in plan.devices)
            assert 0 < told["peak_bytes"] <= limit
            assert told["cache_bytes"] <= max(64 * MIB, limit // 10)
            view = made.supervisor.worker("m")
            assert view is not None
            assert view.own_bytes <= view.cap_bytes

    asyncio.run(story())


def test_mlx_unquantised_conversion_gives_llama_cpps_greedy_tokens(
    mlx_folder: Path, smollm2: Path, tmp_path: Path
) -> None:
    pytest.importorskip("xllamacpp")
    folder = tmp_path / "f32"
    env = {**os.environ, "PYTHONPATH": str(mlx_folder)}
    argv = [sys.executable, str(MAKER), str(smollm2), str(folder), "0"]
    subprocess.run(argv, check=True, timeout=200, env=env)

    # On quantised weights llama.cpp rounds activations too, and near ties fall otherwise.
    exact = tmp_path / "f32.gguf"
    write_f32(smollm2, exact)
    load = dataclasses.replace(LOAD, kv_type_k="f32", kv_type_v="f32", flash_attention=False)

    async def llama_cpp() -> tuple[list[int], list[int]]:
        from app.core.backends.engine_xllamacpp import Xllamacpp
        from app.core.backends.llama_cpp import LlamaCppBackend

        backend = LlamaCppBackend(engines=[Xllamacpp()])
        async with bench(backend, {"m": exact}, load) as made:
            worker = await made.supervisor.ensure_ready("m")
            prompt = (await ask(worker, "/tokenize", {"content": TEXT})).data["tokens"]
            body = {
                "prompt": prompt,
                "n_predict": GREEDY_TOKENS,
                "temperature": 0.0,
                "return_tokens": True,
            }
            answer = await ask(worker, "/completion", body)
            return prompt, answer.data["tokens"]

    prompt, expected = asyncio.run(llama_cpp())
    said = subprocess.run(
        [
            *(sys.executable, "-c", MLX_GREEDY, str(folder), json.dumps(prompt)),
            str(GREEDY_TOKENS),
        ],
        check=True,
        timeout=200,
        env=env,
        capture_output=True,
        text=True,
    )
    exact.unlink()  # half a gibibyte each, which pytest would keep
    (folder / "model.safetensors").unlink()
    assert json.loads(said.stdout.splitlines()[-1]) == expected
