"""What a server knows of the workers of its directory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from stateline.server.state.workers import Workers
from stateline.server.wire.time_limits import TimeLimits
from support.processes.query_server import OwningWorker


def test_the_lease_of_a_task_ends_when_its_worker_gives_it_back_and_not_when_that_begins_anew(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)

    async def said(workers: Workers, generation: int, *tasks: str) -> list[str]:
        """Of which tasks a lease holds when the worker says that it runs these."""
        file, member = worker._registration, None if generation < 0 else "member"
        file.update(tmp_path / f"{worker.name}.sock", dict.fromkeys(tasks, "running"), uuid4(), member, generation)
        await workers.refresh()
        async with asyncio.timeout(20):
            while not workers._connections[worker.name].holds_lease:
                await asyncio.sleep(0.01)
        return [task for task in ("0_0", "0_1") if workers.lease_holds(task)]

    async def scene() -> None:
        workers = Workers(worker.application, lambda: None, TimeLimits())
        assert await said(workers, 3, "0_0", "0_1") == ["0_0", "0_1"]
        assert await said(workers, 3, "0_0") == ["0_0"], "the other was given back"
        assert await said(workers, -1) == ["0_0"], "a process that began anew has not been given its tasks yet"
        assert await said(workers, 4, "0_1") == ["0_1"], "it was given another"
        await workers.close()

    asyncio.run(scene())
    worker.close()
