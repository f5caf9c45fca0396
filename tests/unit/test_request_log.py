import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from app.core.router.request_log import NAME, RequestLine, RequestLog


def line(number: int = 0) -> RequestLine:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return RequestLine(at=at, path="/v1/chat/completions", status=200 + number)


def written(log: RequestLog, *lines: RequestLine) -> None:
    async def write() -> None:
        log.open()
        for one in lines:
            log.write(one)
        log.close()

    asyncio.run(write())


def test_request_log_writes_lines_and_rotates_by_size(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, file_bytes=400, files_kept=3)
    written(log, *(line(number) for number in range(60)))
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [NAME, f"{NAME}.1", f"{NAME}.2"]
    assert all(file.stat().st_size < 600 for file in files)
    last = json.loads((tmp_path / NAME).read_text().splitlines()[-1])
    assert last["status"] == 259
    assert log.dropped == 0


def test_request_log_starts_a_new_file_each_day(tmp_path: Path) -> None:
    old = tmp_path / NAME
    old.write_text("{}\n")
    os.utime(old, (1e9, 1e9))
    log = RequestLog(tmp_path)
    written(log, line())
    assert (tmp_path / f"{NAME}.1").read_text() == "{}\n"
    assert json.loads(old.read_text())["path"] == "/v1/chat/completions"


def test_request_log_without_a_folder_or_with_a_broken_one_harms_nobody(tmp_path: Path) -> None:
    log = RequestLog(None)
    written(log, line())
    broken = RequestLog(tmp_path / "missing")
    written(broken, line())
    assert broken.dropped == 1
