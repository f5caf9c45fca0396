"""The watchdog's loop over a fake system: no process, no kernel, a clock of our own."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

from app.core.lifecycle import CapKind, ExitCause
from app.guard.caps import Held
from app.guard.child import Child, ExitStatus, MachineMemory, SpawnFailed, WorkerMemory
from app.guard.lines import GIB, MIB
from app.guard.link import LINK_READY, LinkClosed, Packet
from app.guard.options import GuardOptions
from app.guard.protocol import (
    Activity,
    Caps,
    Closing,
    Done,
    Exited,
    Heartbeat,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Samples,
    ToApp,
    ToGuard,
    Verdict,
    decode_to_app,
    encode,
)
from app.guard.watchdog import LAUNCH_DEADLINE_S, Watchdog

HELD = Held(CapKind.CGROUP_V2, 2 * GIB, swap_forbidden=True, tried=("systemd_scope: none",))


class FakeSystem:
    """Link, spawner, sampler and clock in one; a worker is a line in a dict."""

    def __init__(self) -> None:
        self.at_s = 100.0
        self.inbox: list[Packet] = []
        self.sent: list[ToApp] = []
        self.is_gone = False
        self.is_reported = True
        self.own: dict[str, int] = {}
        self.ends: dict[str, ExitStatus] = {}
        self.killed: list[str] = []
        self.available = 10 * GIB
        self.refuses = ""

    # the link
    def send(self, data: bytes, descriptors: Sequence[int] = (), *, may_drop: bool = False) -> None:
        if self.is_gone:
            raise LinkClosed("gone")
        self.sent.append(decode_to_app(data))

    def flush(self) -> None:
        pass

    def receive(self) -> list[Packet]:
        packets, self.inbox = self.inbox, []
        if not packets and self.is_gone:
            raise LinkClosed("gone")
        return packets

    def wait(self, timeout_s: float, handles: Sequence[int]) -> frozenset[int]:
        if self.inbox or self.is_gone:
            return frozenset({LINK_READY})
        self.at_s += max(timeout_s, 0.001)
        return frozenset(handles) if self.ends else frozenset()

    def wait_handles(self, timeout_s: float, handles: Sequence[int]) -> None:
        self.at_s += timeout_s

    # the spawner
    def expected_cap(self) -> Held:
        return HELD

    def spawn(self, launch: Launch, stdio: tuple[int, int, int]) -> Child:
        if self.refuses:
            raise SpawnFailed(self.refuses)
        self.own[launch.worker_id] = 100 * MIB
        return Child(launch.worker_id, 4000 + len(self.own), 1.0, 9, report=8)

    def poll_report(self, child: Child) -> bool:
        if self.is_reported:
            child.held, child.report = HELD, -1
        return self.is_reported

    def kill(self, child: Child, *, release: bool = False) -> None:
        self.killed.append(child.worker_id)
        self.ends.setdefault(child.worker_id, ExitStatus(None, 9))

    def oom_kills(self, child: Child) -> int:
        return 0

    def reap(self, child: Child) -> ExitStatus | None:
        return self.ends.get(child.worker_id)

    def handle_to_send(self, child: Child) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        pass

    # the sampler
    def machine(self, *, slow: bool) -> MachineMemory:
        return MachineMemory(self.available, 16 * GIB, oom_kills=0)

    def available_bytes(self) -> int:
        return self.available

    def watch(self, child: Child) -> None:
        pass

    def forget(self, worker_id: str) -> None:
        self.own.pop(worker_id, None)

    def worker(self, worker_id: str, *, slow: bool) -> WorkerMemory | None:
        if worker_id in self.ends:
            return None
        own = self.own[worker_id]
        return WorkerMemory(own, 0, 0, own)

    # what tests ask
    def tell(self, message: ToGuard, descriptors: int = 0) -> None:
        given = tuple(os.open(os.devnull, os.O_RDONLY) for _ in range(descriptors))
        self.inbox.append(Packet(encode(message), given))

    def got(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


def make() -> tuple[FakeSystem, Watchdog]:
    system = FakeSystem()
    dog = Watchdog(system, system, system, GuardOptions(), now=lambda: system.at_s)
    return system, dog


def run(dog: Watchdog, system: FakeSystem, seconds: float) -> None:
    end_s = system.at_s + seconds
    while system.at_s < end_s:
        dog.turn()


def launch(name: str = "w") -> Launch:
    return Launch(name, "model", ["engine"], {}, "/", Caps(1 * GIB, 0, 512 * MIB))


def test_watchdog_launches_samples_and_reports_the_end() -> None:
    system, dog = make()
    system.tell(launch(), 3)
    run(dog, system, 1.0)
    (launched,) = system.got(Launched)
    assert launched.cap.kind is CapKind.CGROUP_V2
    assert launched.cap.tried == ["systemd_scope: none"]
    assert 3 <= len(system.got(Samples)) <= 5
    assert system.got(Heartbeat)
    system.ends["w"] = ExitStatus(0, None)
    run(dog, system, 0.2)
    (exited,) = system.got(Exited)
    assert exited.cause is ExitCause.EXITED
    assert exited.evidence.exit_code == 0
    assert exited.samples[-1].own_bytes == 100 * MIB


def test_watchdog_kills_over_the_cap_and_says_so_once() -> None:
    system, dog = make()
    system.tell(launch(), 3)
    run(dog, system, 0.5)
    system.own["w"] = 2 * GIB
    run(dog, system, 0.3)
    assert system.killed == ["w"]
    (exited,) = system.got(Exited)
    (verdict,) = [one for one in system.got(Verdict) if one.step == "killed"]
    assert exited.sentence == verdict.sentence
    assert exited.evidence.killed_at_s > 0
    assert verdict.kills_in_window == 1


def test_watchdog_only_watching_kills_nothing() -> None:
    system = FakeSystem()
    options = GuardOptions(watch=False)
    dog = Watchdog(system, system, system, options, now=lambda: system.at_s)
    system.tell(launch(), 3)
    run(dog, system, 0.3)
    system.own["w"] = 2 * GIB
    run(dog, system, 0.3)
    assert system.killed == []


@pytest.mark.parametrize(
    ("first", "descriptors", "reason"),
    [(None, 2, "did not arrive"), ("same", 3, "runs already"), ("refused", 3, "no room")],
)
def test_watchdog_launch_that_cannot_be_is_answered(
    first: str | None, descriptors: int, reason: str
) -> None:
    system, dog = make()
    if first == "same":
        system.tell(launch(), 3)
        run(dog, system, 0.2)
    system.refuses = "no room" if first == "refused" else ""
    system.tell(launch(), descriptors)
    run(dog, system, 0.2)
    assert reason in system.got(LaunchFailed)[-1].reason


def test_watchdog_launch_that_hangs_is_ended() -> None:
    system, dog = make()
    system.is_reported = False
    system.tell(launch(), 3)
    run(dog, system, LAUNCH_DEADLINE_S + 1)
    assert system.killed == ["w"]
    (failed,) = system.got(LaunchFailed)
    assert "not placed under its cap within 15 s" in failed.reason
    assert system.got(Exited) == []


def test_watchdog_takes_the_apps_word_for_kills_and_steps() -> None:
    system, dog = make()
    system.tell(launch(), 3)
    system.tell(Activity("w", is_loading=False, in_flight=1, last_used_s=0.0))
    run(dog, system, 0.3)
    system.available = 900 * MIB
    run(dog, system, 0.2)
    cancel = next(one for one in system.got(Verdict) if one.step == "cancel_newest")
    system.tell(Done(cancel.verdict_id, ok=True))
    system.tell(Done(999, ok=True))
    system.tell(Heartbeat(1.0))
    system.tell(Kill("none", ExitCause.UNLOADED))
    system.tell(Activity("none", is_loading=False, in_flight=1, last_used_s=0.0))
    system.available = 10 * GIB
    run(dog, system, 5)
    assert system.killed == []
    system.tell(Kill("w", ExitCause.UNLOADED))
    run(dog, system, 0.2)
    (exited,) = system.got(Exited)
    assert exited.cause is ExitCause.UNLOADED
    assert exited.sentence == "model was stopped to give its memory back."


def test_watchdog_counts_kills_by_the_kernel() -> None:
    system, dog = make()
    for number in range(3):
        system.tell(launch(f"w{number}"), 3)
        run(dog, system, 0.3)
        system.ends[f"w{number}"] = ExitStatus(None, 9, group_oom_kills=1)
        run(dog, system, 0.3)
    assert [one.cause for one in system.got(Exited)] == [ExitCause.KERNEL_OOM] * 3
    assert [one.step for one in system.got(Verdict)][-1] == "ask_user"


@pytest.mark.parametrize("how", ["gone", "closing"])
def test_watchdog_ends_every_worker_when_the_app_does(how: str) -> None:
    system, dog = make()
    for name in ("a", "b"):
        system.tell(launch(name), 3)
    run(dog, system, 0.3)
    if how == "gone":
        system.is_gone = True
    else:
        system.tell(Closing())
    dog.run()
    assert sorted(system.killed) == ["a", "b"]
    if how == "closing":
        assert {one.cause for one in system.got(Exited)} == {ExitCause.STOPPED_BY_USER}


def test_watchdog_idle_worker_is_glanced_at_until_it_moves() -> None:
    system, dog = make()
    system.tell(launch(), 3)
    system.tell(Activity("w", is_loading=False, in_flight=0, last_used_s=0.0))
    run(dog, system, 3)
    before = len(system.got(Samples))
    run(dog, system, 10)
    assert 4 <= len(system.got(Samples)) - before <= 6
    system.own["w"] = 2 * GIB
    run(dog, system, 0.6)
    assert system.killed == ["w"]
