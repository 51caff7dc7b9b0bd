"""A scan process opens a store when it is asked for, and closes what nobody asks for."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.types import Scope

from stateline.config.loading import load_config
from stateline.deployment.unix_sockets import connected, trusted_users
from stateline.server.contract.request_id import KEY
from stateline.server.relay.frames import END, encode_request, read_frame
from stateline.server.scan_process import _relayed
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
            await until(lambda: open_files(state) <= at_rest)  # its worker, too, opens files and closes them
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await serving.close()
    finally:
        worker.close()


REQUEST: Scope = {
    "method": "GET",
    "raw_path": b"/v1/stores/aircraft/range",
    "query_string": b"format=csv&isolation_level=read_committed",  # the worker answers read_uncommitted
    "headers": [],
    "client": None,
    KEY: "",
}


async def test_the_scan_process_closes_what_is_idle_and_opens_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each secondary has its log open in a directory of its process. Files of stores say less: the worker of this test
    opens and closes them, too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (scratch := tmp_path / "scratch").mkdir()
    worker = OwningWorker(tmp_path / "state")
    app = make_app()
    config = load_config(app.application_id, environment={}, overrides=[f"state.dir={tmp_path / 'state'}"])
    try:
        worker.put_all({f"N{number}": {"seats": number} for number in range(50)})
        worker.commit()
        async with _relayed(app, config):
            assert open_files(scratch) == 0
            for _ in range(2):
                monkeypatch.setattr("stateline.server.state.store_watch._IDLE_S", HANGING_S)
                assert await rows_of(worker.application) == 50
                assert open_files(scratch) >= PARTITIONS
                monkeypatch.setattr("stateline.server.state.store_watch._IDLE_S", 0.1)
                await until(lambda: open_files(scratch) == 0)
    finally:
        worker.close()


async def rows_of(application: Path) -> int:
    """How many rows the scan process answers."""
    (listening,) = (application / "servers").glob("*.scans-*.sock")
    connection = connected(listening, trusted_users(application))
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    writer.write(encode_request(REQUEST, b""))
    while (frame := await read_frame(reader)).kind != END:
        pass
    writer.close()
    return frame.rows
