"""Kernel caps on fake control groups: what is set, read back, and named when it does not hold."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.lifecycle import CapKind
from app.guard import cap_linux
from app.guard.cap_linux import CapPlace, CgroupTree
from app.guard.caps import CapTooSmall, KernelLimits, kernel_limits
from app.guard.environment import worker_environment
from app.guard.lines import MIB
from app.guard.protocol import Caps

LIMITS = KernelLimits(600 * MIB, 640 * MIB, 600 * MIB, on_gpu=False)
GROUPS_ONLY = (CapKind.SYSTEMD_SCOPE, CapKind.CGROUP_V2, CapKind.CGROUP_V1)
ROOT_READS_ALL = os.geteuid() == 0


def place(tree: CgroupTree, kinds: Sequence[CapKind] = GROUPS_ONLY) -> CapPlace:
    return CapPlace(
        tree=tree,
        kinds=tuple(kinds),
        group_name="coolhead-1-1-1",
        has_user_manager=False,
        run_bus=lambda _argv: (1, "no bus"),
        own_groups=lambda: tree,
    )


def fill(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        group, _, rest = name.partition("_")
        (folder / f"{group}.{rest.replace('__', '.')}").write_text(text)
    return folder


@pytest.fixture
def v2(tmp_path: Path) -> CgroupTree:
    """A user's slice with a delegated memory controller, and us in a scope below it."""
    root = fill(tmp_path, cgroup_controllers="cpu memory", cgroup_procs="1\n")
    fill(
        root / "user.slice/app.slice",
        cgroup_controllers="cpu memory",
        cgroup_subtree_control="memory",
        cgroup_procs="",
    )
    fill(
        root / "user.slice/app.slice/app.scope",
        cgroup_controllers="memory",
        cgroup_subtree_control="",
        cgroup_procs="77\n",
    )
    return CgroupTree(v2=root, own_v2="/user.slice/app.slice/app.scope")


def test_limits_lie_above_the_guards_own_line() -> None:
    limits = kernel_limits(Caps(1024 * MIB, 2048 * MIB, 512 * MIB, threads=4))
    assert limits.group_bytes == (1024 + 2048 + 512) * MIB
    assert limits.data_bytes == (1024 + 512 + 32) * MIB
    assert limits.commit_bytes == (1024 + 512) * MIB
    assert not limits.on_gpu


@pytest.mark.parametrize("caps", [Caps(1), Caps(64 * MIB - 1), Caps(900 * MIB, -1)])
def test_limits_that_cannot_work_are_refused(caps: Caps) -> None:
    with pytest.raises(CapTooSmall):
        kernel_limits(caps)


def test_cap_delegated_group_is_made_with_swap_forbidden(v2: CgroupTree) -> None:
    assert v2.v2 is not None
    group = v2.v2 / "user.slice/app.slice/coolhead-1-1-1"
    fill(group, memory_swap__max="max")
    held = cap_linux.hold_self(LIMITS, place(v2))
    assert held.kind is CapKind.CGROUP_V2
    assert held.limit_bytes == 600 * MIB
    assert held.swap_forbidden
    assert held.group == str(group)
    assert (group / "cgroup.procs").read_text() == str(os.getpid())
    assert (group / "memory.oom.group").read_text() == "1"
    assert not (group / "memory.high").exists()
    assert held.tried == ("systemd_scope: no systemd user manager",)


def test_cap_group_without_processes_hands_the_controller_down(v2: CgroupTree) -> None:
    assert v2.v2 is not None
    control = v2.v2 / "user.slice/app.slice/cgroup.subtree_control"
    control.write_text("")
    assert cap_linux.delegated_parent(v2) == control.parent
    assert control.read_text() == "+memory"


def test_cap_group_with_processes_everywhere_is_named(v2: CgroupTree) -> None:
    assert v2.v2 is not None
    fill(v2.v2 / "user.slice/app.slice", cgroup_subtree_control="", cgroup_procs="5\n")
    (v2.v2 / "cgroup.subtree_control").mkdir()  # cannot be written
    held = cap_linux.hold_self(LIMITS, place(v2))
    assert held.kind is CapKind.WATCH_ONLY
    assert "memory controller down" in held.tried[1] or "cannot be split" in held.tried[1]


def test_cap_limit_that_does_not_read_back_does_not_hold(
    v2: CgroupTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cap_linux, "_write", lambda _path, _text: None)
    assert v2.v2 is not None
    fill(v2.v2 / "user.slice/app.slice/coolhead-1-1-1", memory_max="max")
    held = cap_linux.hold_self(LIMITS, place(v2))
    assert held.kind is CapKind.WATCH_ONLY
    assert "it reads max" in held.tried[1]


def test_cap_v1_group_limits_memory_and_swap(tmp_path: Path) -> None:
    tree = CgroupTree(v1_memory=tmp_path, own_v1="/")
    group = fill(tmp_path / "coolhead-1-1-1")
    (group / "memory.memsw.limit_in_bytes").write_text("0")
    held = cap_linux.hold_self(LIMITS, place(tree))
    assert held.kind is CapKind.CGROUP_V1
    assert held.swap_forbidden
    assert (group / "memory.memsw.limit_in_bytes").read_text() == str(600 * MIB)
    assert len(held.tried) == 2


def test_cap_v1_without_swap_account_says_so(tmp_path: Path) -> None:
    held = cap_linux.hold_self(LIMITS, place(CgroupTree(v1_memory=tmp_path)))
    assert held.kind is CapKind.CGROUP_V1
    assert not held.swap_forbidden


def test_cap_without_any_group_names_every_reason() -> None:
    held = cap_linux.hold_self(LIMITS, place(CgroupTree()))
    assert held.kind is CapKind.WATCH_ONLY
    assert [reason.split(":")[0] for reason in held.tried] == [
        "systemd_scope",
        "cgroup_v2",
        "cgroup_v1",
        "rlimit_data",
    ]


def test_cap_address_space_limit_is_not_set_on_gpu_workers() -> None:
    limits = replace(LIMITS, on_gpu=True)
    held = cap_linux.hold_self(limits, place(CgroupTree(), [CapKind.RLIMIT_DATA]))
    assert held.kind is CapKind.WATCH_ONLY
    assert "GPU" in held.tried[-1]


def test_cap_expectation_makes_nothing(v2: CgroupTree) -> None:
    assert v2.v2 is not None
    before = sorted(v2.v2.rglob("*"))
    assert cap_linux.expect(place(v2)).kind is CapKind.CGROUP_V2
    assert sorted(v2.v2.rglob("*")) == before
    assert cap_linux.expect(place(CgroupTree())).kind is CapKind.WATCH_ONLY
    everything = place(CgroupTree(), list(CapKind))
    assert cap_linux.expect(everything).kind is CapKind.RLIMIT_DATA


@pytest.fixture
def scope(v2: CgroupTree, monkeypatch: pytest.MonkeyPatch) -> CapPlace:
    """A user manager that makes the scope it is asked for."""
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/busctl")
    path = "/user.slice/app.slice/app-coolhead-1-1-1.scope"

    def run_bus(argv: Sequence[str]) -> tuple[int, str]:
        assert v2.v2 is not None
        wanted = argv[argv.index("MemoryMax") + 2]
        fill(v2.v2 / path.lstrip("/"), memory_max=wanted, memory_swap__max="0")
        assert argv[argv.index("MemorySwapMax") + 2] == "0"
        assert argv[argv.index("PIDs") + 3] == str(os.getpid())
        assert "MemoryHigh" not in argv
        return 0, ""

    return replace(
        place(v2),
        has_user_manager=True,
        run_bus=run_bus,
        own_groups=lambda: replace(v2, own_v2=path),
    )


def test_cap_scope_is_asked_for_and_read_back(scope: CapPlace) -> None:
    held = cap_linux.hold_self(LIMITS, scope)
    assert held.kind is CapKind.SYSTEMD_SCOPE
    assert held.limit_bytes == 600 * MIB
    assert held.swap_forbidden
    assert held.tried == ()
    assert cap_linux.expect(scope).kind is CapKind.SYSTEMD_SCOPE


def test_cap_scope_that_is_refused_falls_back_with_the_reason(scope: CapPlace) -> None:
    held = cap_linux.hold_self(LIMITS, replace(scope, run_bus=lambda _argv: (1, "Access denied")))
    assert held.kind is CapKind.CGROUP_V2
    assert "Access denied" in held.tried[0]


def test_cap_scope_that_never_comes_falls_back(
    scope: CapPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cap_linux, "BUS_TIMEOUT_S", 0.02)
    held = cap_linux.hold_self(LIMITS, replace(scope, own_groups=lambda: scope.tree))
    assert held.kind is CapKind.CGROUP_V2
    assert "in time" in held.tried[0]


def test_bus_command_that_is_missing_or_slow_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cap_linux.run_bus(["/nonexistent/busctl"])[0] == 1
    monkeypatch.setattr(cap_linux, "BUS_TIMEOUT_S", 0.05)
    assert cap_linux.run_bus(["sleep", "5"])[0] == 1


def test_tree_is_read_from_the_mounts(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(
        "30 1 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
        "31 1 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    (tmp_path / "cgroup").write_text("4:memory:/a/b\n1:name=systemd:/x\n0::/c\n")
    tree = cap_linux.find_tree(tmp_path)
    assert tree == CgroupTree(
        Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/memory"), "/c", "/a/b"
    )
    assert cap_linux.find_tree(tmp_path / "nowhere") == CgroupTree()


def test_user_manager_is_looked_for_in_the_runtime_folder(tmp_path: Path) -> None:
    assert not cap_linux.has_user_manager({})
    assert not cap_linux.has_user_manager({"XDG_RUNTIME_DIR": str(tmp_path)})
    (tmp_path / "bus").touch()
    (tmp_path / "systemd").mkdir()
    assert cap_linux.has_user_manager({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_sweep_removes_groups_of_dead_guards_only(tmp_path: Path) -> None:
    ours = cap_linux.guard_prefix(os.getpid(), cap_linux.start_ticks(os.getpid()))
    for name in (f"{ours}3", "coolhead-999999999-5-1", f"coolhead-{os.getpid()}-1-1", "other"):
        (tmp_path / name).mkdir()
    assert cap_linux.sweep(CgroupTree(v1_memory=tmp_path)) == 2
    left = {folder.name for folder in tmp_path.iterdir()}
    assert left == {f"{ours}3", "other"}


def test_environment_keeps_what_engines_need_and_no_secrets() -> None:
    given = {"PATH": "/bin", "CUDA_HOME": "/cuda", "LC_ALL": "C", "HF_TOKEN": "x", "MY_KEY": "y"}
    made = worker_environment({"PATH": "/ours", "EXTRA": "1"}, given)
    assert made == {"PATH": "/ours", "CUDA_HOME": "/cuda", "LC_ALL": "C", "EXTRA": "1"}
