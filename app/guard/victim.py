"""Which worker goes when the machine runs out: ours only, and only if it helps. Pure."""

from collections.abc import Sequence

from app.guard.lines import MIB
from app.guard.readings import WorkerReading

PLAN_SLACK_BYTES = 64 * MIB
PLAN_SLACK_RATIO = 0.05
"""How exactly a plan can be expected to be met."""


def excess_bytes(worker: WorkerReading) -> int:
    """What a worker has beyond its plan and the plan's own margin; 0 or less is within."""
    if not worker.planned_own_bytes:
        return 0
    slack = max(PLAN_SLACK_BYTES, int(worker.planned_own_bytes * PLAN_SLACK_RATIO))
    return worker.own_bytes - worker.planned_own_bytes - slack


def choose_victim(
    workers: Sequence[WorkerReading], available_bytes: int, line_bytes: int
) -> WorkerReading | None:
    """The worker to stop for the machine's sake.

    One that is over its plan goes first, by how much; of the others an idle one, then the largest,
    and only one whose end alone lifts `available_bytes` over `line_bytes`. None: it is not us.
    Mapped weights count as available already, so they clear nothing; they only break a tie.
    """
    alive = [worker for worker in workers if not worker.is_ending]
    over = [worker for worker in alive if excess_bytes(worker) > 0]
    if over:
        return max(over, key=excess_bytes)
    helping = [worker for worker in alive if available_bytes + worker.own_bytes >= line_bytes]
    return max(
        helping,
        key=lambda worker: (worker.is_idle, worker.own_bytes, worker.mapped_bytes),
        default=None,
    )


def least_recently_used(workers: Sequence[WorkerReading], needed_bytes: int) -> list[WorkerReading]:
    """Idle workers in the order to unload them, as many as give `needed_bytes` back."""
    idle = sorted(
        (worker for worker in workers if worker.is_idle and not worker.is_ending),
        key=lambda worker: worker.last_used_s,
    )
    chosen: list[WorkerReading] = []
    freed = 0
    for worker in idle:
        if freed >= needed_bytes:
            break
        chosen.append(worker)
        freed += worker.own_bytes
    return chosen
