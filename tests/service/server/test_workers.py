"""What a server knows of the workers of its directory."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from uuid import uuid4

import pytest

from stateline.server.state.workers import Workers
from stateline.server.wire.time_limits import TimeLimits
from support.processes.query_server import OwningWorker
from support.run.other_user import listens_at, open_to_all
from support.run.patience import HANGING_S


def test_the_lease_of_a_task_ends_when_its_worker_gives_it_back_and_not_when_that_begins_anew(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)

    async def said(workers: Workers, generation: int, *tasks: str) -> list[str]:
        """Of which tasks a lease holds when the worker says that it runs these."""
        file, member = worker._registration, None if generation < 0 else "member"
        file.update(tmp_path / f"{worker.name}.sock", dict.fromkeys(tasks, "running"), uuid4(), member, generation)
        await workers.refresh()
        async with asyncio.timeout(HANGING_S):
            while not workers._connections[worker.name].owns_tasks:
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


def test_a_worker_is_reached_in_a_directory_that_is_deeper_than_a_sockets_address(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path / ("a" * 90) / ("b" * 90))

    async def scene() -> None:
        workers = Workers(worker.application, lambda: None, TimeLimits())
        await workers.refresh()
        assert workers.is_connected(worker.name)
        await workers.close()

    asyncio.run(scene())
    worker.close()


def test_a_process_of_another_user_is_not_asked_in_the_place_of_a_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has moved the worker's socket away, and listens there itself."""
    worker = OwningWorker(tmp_path)
    path = tmp_path / f"{worker.name}.sock"

    async def scene() -> None:
        workers = Workers(worker.application, lambda: None, TimeLimits())
        path.rename(tmp_path / "aside")
        with open_to_all(tmp_path), caplog.at_level(logging.WARNING), listens_at(path):
            for _ in range(3):
                await workers.refresh()
                assert not workers.is_connected(worker.name)
        path.unlink()
        (tmp_path / "aside").rename(path)
        await workers.refresh()
        assert workers.is_connected(worker.name)
        await workers.close()

    asyncio.run(scene())
    assert [record.levelname for record in caplog.records if "user 65534" in record.message] == ["WARNING"]
    worker.close()
