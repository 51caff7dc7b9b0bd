"""Scans that a worker keeps for a server are let go of when nobody reads them on, however the asker went away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from stateline.config.loading import load_config
from stateline.query.values import PartitionAnswer, Terms
from stateline.server.serving import Serving
from stateline.server.state.worker_connection import WorkerConnection
from stateline.server.wire.exchange import Exchange
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import CursorExpiredError, IsolationLevel, Position, PositionBound, PrefixQuery, TopicPartition
from support.http.paging import Rows
from support.processes.query_server import TOPIC, OwningWorker, make_app, wait_until

SCAN = PrefixQuery(b"s-")
TERMS = Terms("cache", IsolationLevel.READ_UNCOMMITTED, limit=1)
DECLARED = make_app().topology().stores["cache"].description


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwningWorker]:
    worker = OwningWorker(tmp_path_factory.mktemp("s"))
    Rows(worker, "s-")
    yield worker
    worker.close()


def kept(worker: OwningWorker) -> int:
    """How many scans the worker keeps, once it has looked at all that was sent to it."""
    return int(worker.run(lambda: (worker.socket.let_in(), len(worker.socket.scans))[1]))


class Cancelling(Exchange):
    """Cancels who asks in the very moment in which the reply has come and was not taken."""

    asking: asyncio.Task[Any] | None = None

    def _dispatch(self, message: dict[str, Any]) -> None:
        super()._dispatch(message)
        if self.asking is not None and {"outcome", "rows"} & message.keys():
            self.asking.cancel()


async def connected(worker: OwningWorker, monkeypatch: pytest.MonkeyPatch) -> tuple[WorkerConnection, Cancelling]:
    monkeypatch.setattr("stateline.server.state.worker_connection.Exchange", Cancelling)
    connection = await WorkerConnection.open(worker.application.parent / "w1.sock", lambda: None, TimeLimits())
    return connection, cast(Cancelling, connection._exchange)


def test_a_query_that_is_cancelled_as_its_answer_arrives_leaves_no_scan(
    worker: OwningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        connection, cancelling = await connected(worker, monkeypatch)
        cancelling.asking = asyncio.create_task(connection.query(TERMS, 0, SCAN, 0, DECLARED))
        with pytest.raises(asyncio.CancelledError):
            await cancelling.asking
        await asyncio.to_thread(wait_until, lambda: kept(worker) == 0)
        await connection.close()

    asyncio.run(ask())


def test_reading_on_that_is_cancelled_as_its_answer_arrives_leaves_no_scan(
    worker: OwningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        connection, cancelling = await connected(worker, monkeypatch)
        answer = await connection.query(TERMS, 0, SCAN, 0, DECLARED)
        assert isinstance(answer, PartitionAnswer)
        rest = answer.rows.rest
        assert rest is not None
        assert kept(worker) == 1
        cancelling.asking = asyncio.ensure_future(rest.more(1))
        with pytest.raises(asyncio.CancelledError):
            await cancelling.asking
        with pytest.raises(CursorExpiredError):
            await rest.more(1)
        await asyncio.to_thread(wait_until, lambda: kept(worker) == 0)
        await connection.close()

    asyncio.run(ask())


def test_a_query_of_several_partitions_that_is_cancelled_leaves_none_of_those_that_answered(
    worker: OwningWorker, tmp_path: Path
) -> None:
    async def ask() -> None:
        config = load_config("flights-app", environment={}, overrides=[f"state.dir={worker.application.parent}"])
        serving = Serving(make_app().topology(), config, tmp_path)
        await serving.workers.refresh()
        behind = Position.of({TopicPartition(TOPIC, 1): worker.offset(1) + 1})
        terms = Terms("cache", IsolationLevel.READ_UNCOMMITTED, PositionBound(behind), limit=1)
        deadline_s = asyncio.get_running_loop().time() + 60
        asking = asyncio.create_task(
            serving.routing.ask(serving.stores.get("cache"), terms, dict.fromkeys((0, 1, 2), SCAN), deadline_s)
        )
        await asyncio.to_thread(wait_until, lambda: kept(worker) == 2)
        pending = serving.workers._connections["w1"]._exchange._pending
        await asyncio.to_thread(wait_until, lambda: len(pending) == 1)  # both answers have arrived
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        del asking
        await asyncio.to_thread(wait_until, lambda: kept(worker) == 0)
        await serving.close()

    asyncio.run(ask())
