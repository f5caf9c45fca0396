"""The guard process itself: what it imports, what it holds, how it takes bad input."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.core.lifecycle import ExitCause
from app.guard.link import LinkClosed, Packet
from app.guard.link_posix import PosixLink
from app.guard.protocol import Ready, decode_to_app
from tests.fakes.guard_bench import GuardBench, with_guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
ROOT = Path(__file__).parent.parent.parent
BOUND_S = 20.0


def of_process(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def descriptors_of(pid: int) -> set[str]:
    return {entry.name for entry in Path(f"/proc/{pid}/fd").iterdir()}


def test_guard_process_imports_neither_qt_nor_asyncio_nor_threads_of_its_own() -> None:
    code = (
        "import sys; import app.guard.__main__, app.guard.spawn_linux, app.guard.sampler_linux, "
        "app.guard.link_posix, app.guard.reader_process\n"
        "heavy = {'asyncio', 'PySide6', 'psutil', 'pynvml', 'platformdirs', 'yaml', 'subprocess_'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_guard_process_is_small_single_threaded_and_inherits_nothing() -> None:
    async def test(bench: GuardBench) -> None:
        await bench.hog("--mib", "8", "--hold", "60")
        await bench.until(lambda: bool(bench.samples()))
        status = of_process(bench.client.pid, "status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(fields["VmRSS"].split()[0]) < 30 * 1024
        assert fields["Threads"].strip() == "1"
        worker = bench.samples()[-1].workers[0]
        assert worker.own_bytes > 0

    with_guard(test)


def test_worker_has_only_its_three_descriptors_and_low_priority() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60")
        pid = worker.message.pid
        # An interpreter that starts has a module open now and then.
        await bench.until(lambda: descriptors_of(pid) == {"0", "1", "2"})
        assert of_process(pid, "oom_score_adj").strip() == "900"
        assert os.getpriority(os.PRIO_PROCESS, pid) == 10
        assert os.getsid(pid) == pid

    with_guard(test)


def test_guard_survives_packets_that_are_no_message() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "app", "guard", "--fd", str(theirs.fileno())],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
    )
    theirs.close()
    link = PosixLink(ours)
    link.send(b"\xc1 nonsense")
    link.send(b"\x81\xa4type\xa4none")
    packets: list[Packet] = []
    deadline = time.monotonic() + BOUND_S
    while len(packets) < 2 and time.monotonic() < deadline:
        link.wait(1.0, [])
        packets += link.receive()
    assert isinstance(decode_to_app(packets[0].data), Ready)
    assert process.poll() is None
    link.close()
    assert process.wait(BOUND_S) == 0
    assert process.stderr is not None
    assert b"no message" in process.stderr.read()
    process.stderr.close()


def test_guard_ignores_polite_signals() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60")
        for number in (2, 15, 1):
            os.kill(bench.client.pid, number)
        await asyncio.sleep(0.2)
        assert bench.lost == []
        ended = await bench.client.kill(worker.message.worker_id, ExitCause.UNLOADED)
        assert ended is not None

    with_guard(test)


def test_link_framed_carries_descriptors_with_their_packet() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours, theirs = PosixLink(left, is_framed=True), PosixLink(right, is_framed=True)
    read_end, write_end = os.pipe()
    large = b"x" * 200_000
    ours.send(b"plain")
    ours.send(b"with one", [write_end])
    ours.send(large)
    got: list[Packet] = []
    while len(got) < 3:
        ours.flush()
        theirs.wait(1.0, [])
        got += theirs.receive()
    assert [packet.data for packet in got] == [b"plain", b"with one", large]
    assert [len(packet.descriptors) for packet in got] == [0, 1, 0]
    os.write(got[1].descriptors[0], b"through")
    assert os.read(read_end, 10) == b"through"
    for descriptor in (read_end, write_end, got[1].descriptors[0]):
        os.close(descriptor)
    ours.close()
    with pytest.raises(LinkClosed):
        theirs.receive()
    with pytest.raises(LinkClosed):
        theirs.send(b"x")
    theirs.close()


def test_link_that_is_not_read_keeps_what_matters_and_drops_samples() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, theirs = PosixLink(left), PosixLink(right)
    for number in range(3000):
        ours.send(b"%d" % number + b"." * 2000)
        ours.send(b"sample", may_drop=True)
    got: list[bytes] = []
    while len([one for one in got if one != b"sample"]) < 3000:
        ours.flush()
        theirs.wait(0.05, [])
        got += [packet.data for packet in theirs.receive()]
    numbers = [int(one.rstrip(b".")) for one in got if one != b"sample"]
    assert numbers == list(range(3000))
    assert got.count(b"sample") < 3000
    ours.close()
    theirs.close()


def test_mapped_model_that_does_not_stay_in_memory_is_stopped(tmp_path: Path) -> None:
    from app.guard.options import GuardOptions

    file = tmp_path / "weights"
    with file.open("wb") as out:
        for _ in range(256):
            out.write(os.urandom(1 << 20))
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    async def test(bench: GuardBench) -> None:
        worker = await bench.hog(
            "--kind", "file", "--file", str(file), "--hold", "60", own_mib=64, mapped_mib=110
        )
        if "cgroup" not in worker.message.cap.kind and "scope" not in worker.message.cap.kind:
            pytest.skip("no control group here")
        exited = await bench.exited()
        assert exited.cause is ExitCause.THRASHING
        assert bench.verdicts()[0].step == "close_admission"
        assert "again" in exited.sentence

    with_guard(test, GuardOptions(kernel_above_bytes=0))
