"""The engine's log of a simulated load, read line by line."""

import pytest

from app.core.models.dry_run_table import MIB, Breakdown

CPU_LOG = """\
0.00.181.027 I load_tensors:          CPU model buffer size =     0.00 MiB
0.00.184.164 I llama_context:        CPU  output buffer size =     0.38 MiB
0.00.184.340 I llama_kv_cache: size =  180.00 MiB (  4096 cells,  30 layers,  2/2 seqs), K (f16):   90.00 MiB
0.00.184.341 I llama_memory_recurrent: size =   55.37 MiB (     1 cells,  40 layers,  1 seqs  0 rs_seq), R
0.00.188.000 I sched_reserve:        CPU compute buffer size =     7.00 MiB
0.00.188.615 I sched_reserve:        CPU compute buffer size =     9.32 MiB
0.00.188.700 I common_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |
0.00.188.701 I common_memory_breakdown_print: |   - Host               |                  281 =    92 +     180 +       9                |
0.00.188.702 I common_memory_breakdown_print: |   - CPU_REPACK         |                 2638 =  2638 +       0 +       0                |
0.00.209.476 I common_params_fit_impl: projected to use 281 MiB of host memory
0.00.310.701 I common_memory_breakdown_print: |   - Host               |                  1 =    1 +     0 +       0                |
"""
GPU_LOG = """\
0.00.1 I common_memory_breakdown_print: | memory breakdown [MiB]  | total    free     self   model   context   compute    unaccounted |
0.00.1 I common_memory_breakdown_print: |   - CUDA0 (RTX 4090)    | 24080 = 22990 + (  6132 =  4685 +    1024 +     423) +       -5043 |
0.00.1 I common_memory_breakdown_print: |   - CUDA1 (RTX (old))   |  8192 =  8000 + (   100 =    50 +      40 +      10) +          92 |
0.00.1 I common_memory_breakdown_print: |   - Host                |                    301 =   281 +       0 +      20                |
0.00.1 I other: line
"""


def _feed(log: str) -> tuple[Breakdown, int]:
    breakdown = Breakdown()
    for number, line in enumerate(log.splitlines()):
        if breakdown.feed(line):
            return breakdown, number
    return breakdown, -1


def test_cpu_table_is_whole_at_the_first_line_after_it() -> None:
    breakdown, number = _feed(CPU_LOG)
    assert number == 9
    assert [(row.name, row.is_gpu, row.model_bytes) for row in breakdown.rows] == [
        ("Host", False, 92 * MIB),
        ("CPU_REPACK", False, 2638 * MIB),
    ]
    assert breakdown.rows[0].context_bytes == 180 * MIB
    assert breakdown.caches_bytes == [180 * MIB, int(55.37 * MIB)]
    assert breakdown.computes_bytes == {"CPU": int(9.32 * MIB)}
    assert breakdown.output_bytes == int(0.38 * MIB)


def test_gpu_rows_give_what_is_ours_not_what_is_free() -> None:
    breakdown, number = _feed(GPU_LOG)
    assert number == 4
    found = [
        (row.name, row.is_gpu, row.model_bytes, row.context_bytes, row.compute_bytes)
        for row in breakdown.rows
    ]
    assert found == [
        ("CUDA0", True, 4685 * MIB, 1024 * MIB, 423 * MIB),
        ("CUDA1", True, 50 * MIB, 40 * MIB, 10 * MIB),
        ("Host", False, 281 * MIB, 0, 20 * MIB),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "0.00.1 E load: error loading model: unknown model architecture: 'x'",
            "architecture: 'x'",
        ),
        ("0.00.1 D llama_init_from_model: V cache needs it; requires flash_attn", "flash_attn"),
        ("/llama-model.cpp:1883: GGML_ASSERT(!ml.no_alloc) failed", "GGML_ASSERT"),
    ],
)
def test_complaints_are_kept(line: str, said: str) -> None:
    breakdown = Breakdown()
    assert not breakdown.feed(line)
    assert said in breakdown.complaints[0]


def test_lines_without_a_complaint_are_not_kept() -> None:
    breakdown = Breakdown()
    assert not breakdown.feed("0.00.1 I print_info: rope_finetuned = unknown")
    assert not breakdown.feed("0.00.1 D create_tensor: loading tensor blk.0.failed")
    assert breakdown.complaints == []
