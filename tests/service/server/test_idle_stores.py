"""A scan process opens a store when it is asked for, and closes what nobody asks for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stateline.config.loading import load_config
from stateline.server.serving import Serving
from support.processes.query_server import PARTITIONS, OwningWorker, make_app
from support.run.patience import HANGING_S

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def open_files(under: Path) -> int:
    """How many files of stores under this directory this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(link).startswith(str(under))
        except FileNotFoundError:
            continue
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANGING_S):
        while not condition():
            await asyncio.sleep(0.05)


async def test_a_store_that_nobody_asks_for_is_closed_and_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.server.state.store_watch._IDLE_S", HANGING_S)
    state = tmp_path / "state"
    worker = OwningWorker(state)
    app = make_app()
    config = load_config(app.application_id, environment={}, overrides=[f"state.dir={state}"])
    (scratch := tmp_path / "scratch").mkdir()
    try:
        worker.put_all({f"N{number}": {"seats": number} for number in range(50)})
        worker.commit()
        serving = Serving(app.topology(), config, scratch, scans_only=True)
        watching = asyncio.create_task(serving.store_watch.follow())
        await until(lambda: bool(serving.stores.names))
        store = serving.stores.get("aircraft")
        at_rest = open_files(state)
        for _ in range(2):
            monkeypatch.setattr("stateline.server.state.store_watch._IDLE_S", HANGING_S)
            for partition in range(PARTITIONS):
                serving.partitions.open(store, partition)
            assert open_files(state) > at_rest
            monkeypatch.setattr("stateline.server.state.store_watch._IDLE_S", 0.1)
            await until(lambda: serving.partitions.open_count == 0)
            assert open_files(state) <= at_rest
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await serving.close()
    finally:
        worker.close()
