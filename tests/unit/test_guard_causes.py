"""Why a worker ended, told apart by evidence."""

import pytest

from app.core.lifecycle import ExitCause
from app.guard.causes import KillRecord, name_cause, refine
from app.guard.child import ExitStatus
from app.guard.protocol import EXIT_ALLOCATION_FAILED, Evidence, Exited

OURS = KillRecord(ExitCause.CAP_EXCEEDED, "too much", oom_kills=0)
KILLED = ExitStatus(None, 9)


@pytest.mark.parametrize(
    ("record", "status", "delta", "cause"),
    [
        (OURS, KILLED, 0, ExitCause.CAP_EXCEEDED),
        (OURS, ExitStatus(None, 9, group_oom_kills=1), 1, ExitCause.CAP_EXCEEDED),
        (
            KillRecord(ExitCause.CAP_EXCEEDED, "too much", oom_kills=1),
            ExitStatus(None, 9, group_oom_kills=1),
            1,
            ExitCause.KERNEL_OOM,
        ),
        (OURS, ExitStatus(None, 11), 0, ExitCause.CRASHED),
        (None, ExitStatus(None, 9, group_oom_kills=2), 0, ExitCause.KERNEL_OOM),
        (None, KILLED, 1, ExitCause.KERNEL_OOM),
        (None, KILLED, 0, ExitCause.UNKNOWN),
        (None, ExitStatus(None, 15), 3, ExitCause.UNKNOWN),
        (None, ExitStatus(None, 6), 0, ExitCause.CRASHED),
        (None, ExitStatus(0, None), 0, ExitCause.EXITED),
        (None, ExitStatus(3, None), 5, ExitCause.EXITED),
        (None, ExitStatus(EXIT_ALLOCATION_FAILED, None), 0, ExitCause.ALLOCATION_FAILED),
    ],
)
def test_cause_is_named_by_evidence(
    record: KillRecord | None, status: ExitStatus, delta: int, cause: ExitCause
) -> None:
    assert name_cause(record, status, delta).cause is cause


def exited(cause: ExitCause, code: int | None = 1, signal: int | None = None) -> Exited:
    return Exited("w", 1, cause, "It ended.", Evidence(exit_code=code, exit_signal=signal))


def test_refine_reads_a_failed_allocation_from_the_last_words() -> None:
    words = "loading\nterminate called after throwing an instance of 'std::bad_alloc'\nAborted"
    found = refine(exited(ExitCause.CRASHED, None, 6), words)
    assert found.cause is ExitCause.ALLOCATION_FAILED
    assert "bad_alloc" in found.sentence
    assert found.sentence.startswith("It ended.")
    assert found.sentence.endswith("'std::bad_alloc'.")


def test_refine_leaves_what_is_known_or_unsaid() -> None:
    for one in (
        exited(ExitCause.CAP_EXCEEDED, None, 9),
        exited(ExitCause.UNKNOWN, None, 9),
        exited(ExitCause.EXITED, 0),
    ):
        assert refine(one, "std::bad_alloc") is one
    crash = exited(ExitCause.CRASHED, None, 11)
    assert refine(crash, "all is well") is crash
