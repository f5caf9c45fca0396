"""The guard with a hog on a desktop-like machine: caps of systemd, the guard asleep, oomd, fallbacks."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from app.core.errors import GuardError
from app.core.lifecycle import CapKind, ExitCause
from app.guard.lines import MIB
from app.guard.options import GuardOptions
from tests.fakes import guard_bench
from tests.fakes.guard_bench import GuardBench, is_alive
from tests.vm.payload.facts import (
    ask,
    check,
    failures,
    finish,
    group_of,
    read,
    say,
    vmstat,
    wait_for,
)

ABOVE = GuardOptions(kernel_above_bytes=32 * MIB)
CAP_MIB = 160
WEIGHTS = "/home/user/weights"
Story = Callable[[GuardBench], Awaitable[None]]


async def runaway(bench: GuardBench) -> None:
    before = vmstat("pswpout")
    worker = await bench.hog("--mib", "400", "--rate", "40", own_mib=CAP_MIB)
    group = group_of(worker.message.pid)
    limits = (
        read(group, "memory.max"),
        read(group, "memory.swap.max"),
        read(group, "memory.oom.group"),
    )
    check(
        "scope: limits read back",
        holds=limits == (str((CAP_MIB + 32) * MIB), "0", "1") and group.name.endswith(".scope"),
        seen=(group.name, *limits),
    )
    exited = await bench.exited()
    check(
        "runaway: stopped by the guard",
        holds=exited.cause is ExitCause.CAP_EXCEEDED,
        seen=exited.sentence,
    )
    swapped = vmstat("pswpout") - before
    check("runaway: pswpout", holds=swapped == 0, seen=swapped)


async def guard_asleep(bench: GuardBench) -> None:
    before = vmstat("pswpout")
    worker = await bench.hog("--mib", "500", "--rate", "60", own_mib=CAP_MIB)
    os.kill(bench.client.pid, signal.SIGSTOP)
    gone = await asyncio.to_thread(wait_for, lambda: not is_alive(worker.message.pid), 60)
    swapped = vmstat("pswpout") - before
    os.kill(bench.client.pid, signal.SIGCONT)
    check("guard stopped: the kernel ends the worker", holds=gone, seen=worker.message.cap.kind)
    check("guard stopped: pswpout", holds=swapped == 0, seen=swapped)
    exited = await bench.exited()
    check(
        "guard stopped: named right",
        holds=exited.cause is ExitCause.KERNEL_OOM,
        seen=exited.sentence,
    )


async def scope_killed(bench: GuardBench) -> None:
    worker = await bench.hog("--mib", "16", "--hold", "600", own_mib=CAP_MIB)
    unit = group_of(worker.message.pid).name
    await asyncio.to_thread(ask, "systemctl", "--user", "kill", "--signal=KILL", unit)
    exited = await bench.exited()
    check(
        "scope killed: no one of ours",
        holds=exited.cause is ExitCause.UNKNOWN,
        seen=exited.sentence,
    )
    check("scope killed: guard alive", holds=is_alive(bench.client.pid), seen=bench.client.pid)


async def oomd(bench: GuardBench) -> None:
    """oomd watches app.slice and finds a worker that thrashes: it must take that scope alone."""
    told = await asyncio.to_thread(
        ask,
        *("systemctl", "--user", "set-property", "--runtime", "app.slice"),
        *("ManagedOOMMemoryPressure=kill", "ManagedOOMMemoryPressureLimit=1%"),
    )
    worker = await bench.hog(
        "--kind", "file", "--file", WEIGHTS, "--hold", "600", own_mib=64, mapped_mib=0
    )
    began_s = time.monotonic()
    gone = await asyncio.to_thread(wait_for, lambda: not is_alive(worker.message.pid), 150)
    seen = f"{gone} after {time.monotonic() - began_s:.0f} s {told}"
    if not gone:
        print(
            await asyncio.to_thread(ask, "oomctl"),
            read(group_of(worker.message.pid), "memory.pressure"),
        )
    check("oomd: ends the scope that thrashes", holds=gone, seen=seen)
    check("oomd: guard alive", holds=is_alive(bench.client.pid), seen=bench.client.pid)
    if gone:
        exited = await bench.exited()
        check("oomd: no one of ours", holds=exited.cause is ExitCause.UNKNOWN, seen=exited.sentence)


async def too_small(bench: GuardBench) -> None:
    try:
        await bench.hog("--mib", "8", own_mib=10)
    except GuardError as error:
        check("too small: refused before it is set", holds="64 MiB" in str(error), seen=error)
    else:
        check("too small: refused before it is set", holds=False, seen="it was started")


async def guard_killed(bench: GuardBench) -> None:
    worker = await bench.hog("--mib", "16", "--hold", "600", own_mib=CAP_MIB)
    os.kill(bench.client.pid, signal.SIGKILL)
    began_s = time.monotonic()
    gone = await asyncio.to_thread(wait_for, lambda: not is_alive(worker.message.pid), 30)
    check("guard killed -9: worker gone", holds=gone, seen=f"{time.monotonic() - began_s:.2f} s")


async def no_manager(bench: GuardBench) -> None:
    assert bench.client.ready is not None
    tried = bench.client.ready.tried
    worker = await bench.hog("--mib", "8", "--hold", "600", own_mib=CAP_MIB)
    cap = worker.message.cap
    check(
        "no user manager: the fallback is named",
        holds=cap.kind is CapKind.RLIMIT_DATA
        and any("no systemd user manager" in one for one in cap.tried),
        seen=(cap.kind, cap.limit_bytes, tried),
    )


async def run(name: str, story: Story, options: GuardOptions | None = None) -> None:
    bench = GuardBench(options)
    began_s = time.monotonic()
    try:
        await bench.client.start()
        await story(bench)
    except Exception as error:  # noqa: BLE001 - one story that fails must not cost the others
        check(name, holds=False, seen=repr(error))
    finally:
        await bench.client.stop()
    say(f"{name} took {time.monotonic() - began_s:.0f} s")


def make_weights() -> None:
    """256 MiB on the disk and nowhere else: what is in memory already is charged to who wrote it."""
    with Path(WEIGHTS).open("wb") as file:
        file.write(os.urandom(MIB) * 256)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def main() -> None:
    guard_bench.BOUND_S = 120
    state = await asyncio.to_thread(ask, "systemctl", "is-active", "systemd-oomd")
    check("oomd is active", holds=state == "active", seen=state)
    await run("runaway", runaway, ABOVE)
    await run("guard stopped", guard_asleep, ABOVE)
    await run("scope killed", scope_killed)
    await run("too small", too_small)
    await run("guard killed", guard_killed)
    await run("oomd", oomd, GuardOptions(watch=False, kernel_above_bytes=64 * MIB))
    for name in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"):
        os.environ.pop(name, None)
    await run("no user manager", no_manager)
    print(f"{len(failures)} failed")


if __name__ == "__main__":
    make_weights()
    asyncio.run(main())
    finish()
