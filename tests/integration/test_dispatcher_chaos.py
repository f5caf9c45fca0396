"""Clients that leave, workers that die, doors that close, all at once: everything comes to rest."""

import asyncio
import random

import httpx2

from app.core.lifecycle import ExitCause, PressureLevel
from tests.fakes.endpoint_bench import CHAT, EndpointBench, body, run
from tests.fakes.fake_backends import until

CLIENTS = 60


def test_dispatcher_chaos_ends_with_no_request_no_slot_and_no_task_held() -> None:
    chance = random.Random(7)
    outcomes: dict[str, int] = {}

    async def client(bench: EndpointBench, number: int) -> None:
        await asyncio.sleep(chance.random() * 2)
        asked = body(
            f"hello {number}",
            model=chance.choice("mn"),
            stream=chance.random() < 0.7,
            max_tokens=chance.randint(1, 60),
        )
        patience_s = chance.choice([0.05, 0.3, 1.0, 30.0, 30.0])
        try:
            answer = await bench.client.post(CHAT, json=asked, timeout=patience_s)
            outcome = str(answer.status_code)
            if answer.status_code == 200 and asked["stream"]:
                assert answer.text.endswith("data: [DONE]\n\n"), "a broken stream ended cleanly"
        except httpx2.TimeoutException:
            outcome = "left"
        except httpx2.TransportError:
            outcome = "broken off"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    async def trouble(bench: EndpointBench) -> None:
        kills = 0
        for _ in range(12):
            await asyncio.sleep(0.2)
            what = chance.choice(["kill", "kill", "pause", "press", "unload", "break"])
            if what == "kill" and kills < 2:  # after a third the supervisor takes a pause
                kills += 1
                for view in bench.supervisor.workers():
                    if view.pid and not bench.supervisor.worker_exit(view.worker_id).done():
                        sentence = "It fell over."
                        bench.guard.kill_for(view.worker_id, ExitCause.EXITED, sentence)
                        break
            elif what == "pause":
                bench.endpoint.pause(not bench.endpoint.is_paused)
            elif what == "press":
                bench.endpoint.press(PressureLevel.ELEVATED, "Memory is low.")
                await asyncio.sleep(0.1)
                bench.endpoint.press(PressureLevel.NORMAL)
            elif what == "unload":
                bench.endpoint.unload(chance.choice("mn"))
            else:
                bench.endpoint.kill_newest(chance.choice("mn"), "Memory is low.")
        bench.endpoint.pause(False)

    async def story(bench: EndpointBench) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(trouble(bench))
            for number in range(CLIENTS):
                group.create_task(client(bench, number))
        assert sum(outcomes.values()) == CLIENTS
        assert set(outcomes) <= {"200", "503", "left", "broken off"}
        await until(lambda: bench.endpoint.in_flight == 0, "every slot to be given back")
        assert bench.endpoint.queued == 0
        assert bench.endpoint.running == 0
        assert (await bench.chat()).status_code == 200

    run(story, options={"token_s": "0.005"})
    print(outcomes)
