"""Memory and processors out of /proc and /sys trees made here."""

from pathlib import Path

from app.core.hardware.probe import probe_machine
from app.core.hardware.probe_linux import read_cores, read_memory

KIB = 1024
MEMINFO = "MemTotal: 16000000 kB\nMemFree: 100 kB\nMemAvailable: 9000000 kB\nCached: 50 kB\nSwapTotal: 2000 kB\nSwapFree: 500 kB\n"


def proc_tree(root: Path, meminfo: str = MEMINFO, group: str = "") -> Path:
    (root / "self").mkdir(parents=True)
    (root / "meminfo").write_text(meminfo)
    if group:
        (root / "self" / "cgroup").write_text(f"0::{group}\n")
    return root


def group_tree(root: Path, group: str, limit: str, used: int, inactive: int) -> None:
    folder = root / "fs" / "cgroup" / group.strip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_memory_is_the_kernels_own_reckoning(tmp_path: Path) -> None:
    memory = read_memory(proc_tree(tmp_path / "proc"), tmp_path / "sys")
    assert memory.total_bytes == 16_000_000 * KIB
    assert memory.available_bytes == 9_000_000 * KIB
    assert (memory.swap_total_bytes, memory.swap_free_bytes) == (2000 * KIB, 500 * KIB)


def test_memory_old_kernel_falls_back_to_free_and_cache(tmp_path: Path) -> None:
    old = "MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 50 kB\n"
    memory = read_memory(proc_tree(tmp_path / "proc", old), tmp_path / "sys")
    assert memory.available_bytes == 150 * KIB


def test_memory_limit_of_the_container_counts(tmp_path: Path) -> None:
    proc = proc_tree(tmp_path / "proc", group="/box/inner")
    limit = 4_000_000 * KIB
    group_tree(tmp_path / "sys", "box", str(limit), 3_000_000 * KIB, 1_000_000 * KIB)
    group_tree(tmp_path / "sys", "box/inner", "max", 3_000_000 * KIB, 0)
    memory = read_memory(proc, tmp_path / "sys")
    assert memory.total_bytes == limit
    assert memory.available_bytes == 2_000_000 * KIB


def test_cores_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, core in enumerate((0, 0, 1, 1)):
        folder = tmp_path / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{core}\n")
    cores = read_cores(tmp_path, [0, 1, 2, 3])
    assert (cores.physical, cores.logical) == (2, 4)
    assert read_cores(tmp_path, [0, 1]).physical == 1


def test_cores_without_topology_count_each(tmp_path: Path) -> None:
    cores = read_cores(tmp_path, [0, 1, 2])
    assert (cores.physical, cores.logical) == (3, 3)


def test_probe_of_this_machine_is_plausible() -> None:
    machine = probe_machine()
    assert 0 < machine.ram_available_bytes <= machine.ram_total_bytes
    assert 1 <= machine.physical_cores <= machine.logical_cores
