"""Tables of many partitions in a cut: each partition is opened when its rows are due, so few are open at a time."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline.rows.selection import RowSelection
from stateline.server.snapshots.open_checkpoints import OpenCheckpoints
from stateline.server.snapshots.part_rows import rows_of_parts
from stateline_store import CursorExpiredError
from stateline_store.clock import now_ms
from stateline_store.snapshots.snapshot import Snapshot
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory
from support.processes.query_server import PARTITIONS, OwningWorker, make_app
from support.processes.served_here import served_here

ROWS = 300
MOST_OPEN = 2
EVERYTHING = RowSelection(("key",))
JOIN = "select count(*) as n from aircraft a left join counts c on a.key = c.key::varchar"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    """A server that has at most `MOST_OPEN` partitions of snapshots open, fewer than a store has."""
    state = tmp_path_factory.mktemp("cut-parts") / "state"
    worker = OwningWorker(state)
    try:
        worker.put_all({f"N{number:04d}": {"seats": number} for number in range(ROWS)})
        worker.commit()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("stateline.server.snapshots.sweeper.MAX_OPEN", MOST_OPEN)
            with served_here(state, "server.scan.processes=0") as here:
                yield here.client, worker.application
    finally:
        worker.close()


def rows(client: httpx.Client, sql: str, **members: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/sql", json={"sql": sql, "max_age_ms": 0, **members})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def test_tables_of_more_partitions_than_may_be_open_are_joined(running: tuple[httpx.Client, Path]) -> None:
    client, _ = running
    assert 2 * PARTITIONS > MOST_OPEN
    assert rows(client, JOIN) == [{"n": ROWS}]
    named = f"{JOIN} where a.key in ('N0001', 'N0002', 'N0003', 'N0004')"
    assert rows(client, named) == [{"n": 4}]


def test_a_statement_that_ends_early_leaves_no_partition_open_for_itself(running: tuple[httpx.Client, Path]) -> None:
    client, _ = running
    for number in range(MOST_OPEN + 1):
        assert len(rows(client, f"select a.key from aircraft a, aircraft b limit 1 -- {number}")) == 1
        failing = {"sql": f"select a.key::int from aircraft a, aircraft b -- {number}", "max_age_ms": 0}
        assert client.post("/v1/sql", json=failing).status_code == 422
    assert rows(client, JOIN) == [{"n": ROWS}]


def test_a_statement_whose_cut_is_lost_is_to_be_asked_again(
    running: tuple[httpx.Client, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> None:
        raise CursorExpiredError("The snapshot is gone.")

    client, _ = running
    monkeypatch.setattr(OpenCheckpoints, "acquire", lost)
    answer = client.post("/v1/sql", json={"sql": JOIN, "max_age_ms": 0})
    assert (answer.status_code, answer.json()["reason"]) == (503, "NOT_READY"), answer.text
    assert "could not be read to its end: ask again" in answer.json()["detail"]


@pytest.fixture
def snapshot(running: tuple[httpx.Client, Path]) -> Iterator[tuple[SnapshotDirectory, Snapshot]]:
    client, application = running
    made = client.post("/v1/snapshots", json={"stores": ["aircraft"]}).json()
    directory = SnapshotDirectory(application)
    yield directory, directory.find(made["id"], now_ms())
    client.delete(f"/v1/snapshots/{made['id']}")


def test_a_node_gives_its_partitions_one_after_the_other(snapshot: tuple[SnapshotDirectory, Snapshot]) -> None:
    directory, found = snapshot
    checkpoints = OpenCheckpoints(directory.path, 1)
    given = (checkpoints, found.id, found.parts, make_app().topology().stores["aircraft"], EVERYTHING)

    async def read() -> int:
        count = 0
        async for batch in rows_of_parts(*given):
            count += batch.num_rows
            assert len(checkpoints) == 1
        return count

    async def leave() -> None:
        async with aclosing(rows_of_parts(*given)) as some:
            await anext(some)

    async def main() -> None:
        assert await read() == ROWS
        await leave()
        assert await read() == ROWS
        shutil.rmtree(directory.path / found.id / found.parts[1].directory)
        with pytest.raises(CursorExpiredError):
            await read()
        checkpoints.close()

    asyncio.run(main())
