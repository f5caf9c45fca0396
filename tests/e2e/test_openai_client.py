"""The real `openai` client against the real engine, through the whole app."""

import threading
from pathlib import Path

import openai
import pytest

from app.core.paths import Paths
from tests.e2e.app_process import AppProcess, install_model, wait_for

pytestmark = pytest.mark.real


def test_openai_client_lists_answers_streams_and_cancels(
    coolhead_home: Paths, smollm2: Path
) -> None:
    model_id = install_model(coolhead_home, smollm2)
    with (
        AppProcess(coolhead_home) as app,
        openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as client,
    ):
        assert model_id in [model.id for model in client.models.list()]

        answer = client.chat.completions.create(
            model=model_id,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=24,
            temperature=0,
        )
        assert len(answer.choices[0].message.content or "") > 10
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0

        completion = client.completions.create(
            model="auto", prompt="One, two, three,", max_tokens=6, temperature=0
        )
        assert completion.choices[0].text

        pieces = 0
        finish = None
        usage = None
        for chunk in client.chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "Write one sentence about rain."}],
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        ):
            if chunk.choices:
                pieces += bool(chunk.choices[0].delta.content)
                finish = chunk.choices[0].finish_reason or finish
            usage = chunk.usage or usage
        assert pieces > 3
        assert finish in {"stop", "length"}
        assert usage is not None

        stream = client.chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "Count to five hundred in words."}],
            max_tokens=3000,
            stream=True,
        )
        for seen, _chunk in enumerate(stream):
            if seen == 5:
                break
        stream.close()
        wait_for(lambda: app.status()["in_flight"] == 0, what="the slot to be given back")
        app.look()


def test_eight_first_requests_share_one_load(coolhead_home: Paths, smollm2: Path) -> None:
    install_model(coolhead_home, smollm2)
    answers: list[tuple[int, object]] = []
    with AppProcess(coolhead_home) as app:
        threads = [
            threading.Thread(target=lambda: answers.append(app.chat("Say hello.")))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        app.look()
        assert [status for status, _ in answers] == [200] * 8, answers
        workers = [member for member in app.alive() if "worker" in member.cmdline()]
        assert len(workers) == 1
        loads = app.log.read_text(errors="replace").count("worker launched")
        assert loads <= 1


def test_memory_of_our_own_is_small(coolhead_home: Paths, smollm2: Path) -> None:
    install_model(coolhead_home, smollm2)
    with AppProcess(coolhead_home) as app:
        assert app.chat("Hello")[0] == 200
        app.look()
        told = app.status()
        app_bytes = app.family[told["pid"]].memory_info().rss
        guard_bytes = app.family[told["guard_pid"]].memory_info().rss
        print(f"app {app_bytes / 2**20:.1f} MiB, guard {guard_bytes / 2**20:.1f} MiB")
        assert app_bytes < 80 * 2**20
        assert guard_bytes < 30 * 2**20
        # The status names what the user asked for: the plan, what was taken, and who enforces the cap.
        worker = told["workers"][0]
        assert worker["planned_bytes"]["RAM"] > 0
        assert worker["taken_bytes"]["RAM"] > 0
        assert worker["cap_bytes"] >= worker["own_bytes"] > 0
        assert worker["kernel_limit_bytes"] > worker["cap_bytes"]
        assert told["endpoint"] == f"{app.url}/v1"
        maps = Path(f"/proc/{told['pid']}/maps").read_text()
        assert "PySide6" not in maps
        assert "libQt6" not in maps
