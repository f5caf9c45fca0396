"""An app reduced to its guard and one worker, for tests that kill it.

Prints the pids of guard and worker as one line, then waits to be killed (a minute at most).
"""

import asyncio

from tests.fakes.guard_bench import GuardBench


async def main() -> None:
    bench = GuardBench()
    await bench.client.start()
    worker = await bench.hog("--mib", "32", "--hold", "60")
    print(bench.client.pid, worker.message.pid, flush=True)
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main())
