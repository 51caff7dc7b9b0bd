"""What other nodes leave open here: how many scans are kept, for how long, and that they end with who wanted them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from stateline.config.loading import load_config
from stateline.processes.logging import FIELDS
from stateline.query import open_scans
from stateline.query.values import Failure, PartitionAnswer, Rest, Terms
from stateline.query.wire import LENGTH, frame
from stateline.server.contract import observation
from stateline.server.main import create_app
from stateline.server.nodes.answering import AskingNode
from stateline.server.nodes.link import Link
from stateline.server.nodes.traffic import Traffic
from stateline.server.serving import Serving
from stateline.server.state import cursors
from stateline.server.state.cursors import Cursor, Cursors
from stateline.server.wire.streams import Arrivals
from stateline_store import CursorExpiredError, IsolationLevel, RangeQuery
from support.http.paging import EndlessScan
from support.processes.linked_nodes import GREETING, PROVEN, link_to, until
from support.processes.query_server import OwningWorker, make_app
from support.run.patience import HANGING_S

TERMS = Terms("aircraft", IsolationLevel.READ_COMMITTED, limit=1)


async def no_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Nobody asks for any here."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwningWorker]:
    worker = OwningWorker(tmp_path_factory.mktemp("w"))
    worker.put_all({f"{n:02}": n for n in range(60)})
    worker.commit()
    yield worker
    worker.close()


class Asked:
    """A node with a worker's stores, and links to it."""

    def __init__(self, worker: OwningWorker, scratch: Path) -> None:
        config = load_config("flights-app", environment={}, overrides=[f"state.dir={worker.application.parent}"])
        self.serving = Serving(make_app().topology(), config, scratch)
        self.scans = self.serving.cursors.of_nodes
        self.answering: list[asyncio.Task[None]] = []

    async def accept(self, arrivals: Arrivals, writer: asyncio.StreamWriter) -> None:
        asking = AskingNode(arrivals, writer, GREETING, self.serving.for_nodes, no_http, Traffic(), PROVEN)
        await asking.begin()
        self.answering.append(asyncio.create_task(asking.ended()))
        await asyncio.gather(*self.answering, return_exceptions=True)
        writer.close()

    @contextlib.asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        async with link_to(self.accept) as link:
            yield link


async def begun(link: Link, partition: int = 0) -> Rest:
    answer = await link.query(TERMS, partition, RangeQuery(), 0, None)
    assert isinstance(answer, PartitionAnswer), answer
    assert answer.rows.rest is not None
    return answer.rows.rest


def run(worker: OwningWorker, scratch: Path, test: Callable[[Asked], Awaitable[None]]) -> None:
    async def bounded() -> None:
        asked = Asked(worker, scratch)
        async with asyncio.timeout(HANGING_S):
            await test(asked)
        await asked.serving.close()

    asyncio.run(bounded())


def test_scans_of_other_nodes_are_counted_by_partition_and_the_longest_unread_makes_room(
    worker: OwningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_scans, "MAX_OPEN_SCANS", 2)

    async def test(asked: Asked) -> None:
        async with asked.link() as link:
            rests = [await begun(link, partition) for _ in range(2) for partition in range(3)]
            for at in reversed(range(6)):
                rest = (await rests[at].more(1)).rest
                assert rest is not None
                rests[at] = rest
            link.hold()  # which says nothing of the order in which they are read
            another = await begun(link)
            with pytest.raises(CursorExpiredError):
                await rests.pop(3).more(1)
            for rest in (*rests, another):
                assert (await rest.more(1)).entries

    run(worker, tmp_path, test)


def test_what_another_node_wants_no_more_is_closed_and_what_it_wants_still_is_kept(
    worker: OwningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "_LEAST_LEASE_S", 0.0)

    async def test(asked: Asked) -> None:
        async with asked.link() as silent, asked.link() as there:
            gone, kept = await begun(silent), await begun(there)
            asked.serving.cursors.expire()
            assert len(asked.scans) == 2, "their lease is not over"
            asked.serving.cursors._ttl_s = 0.0
            for scan in asked.scans.kept.values():
                scan.wanted_at_s = float("inf")
            before = list(asked.scans.kept.values())
            there.hold()
            await until(lambda: any(scan.wanted_at_s != float("inf") for scan in before))
            for scan in before:  # the silent one has said nothing for long
                scan.wanted_at_s = 0.0 if scan.wanted_at_s == float("inf") else float("inf")
            asked.serving.cursors.expire()
            with pytest.raises(CursorExpiredError):
                await gone.more(1)
            assert (await kept.more(1)).entries

    run(worker, tmp_path, test)


def test_a_link_that_is_ended_here_leaves_nothing_open(worker: OwningWorker, tmp_path: Path) -> None:
    async def test(asked: Asked) -> None:
        async with asked.link() as link:
            rest = await begun(link)
            assert len(asked.scans) == 1
            asked.answering[0].cancel()
            await asyncio.gather(*asked.answering, return_exceptions=True)
            assert len(asked.scans) == 0
            with pytest.raises(CursorExpiredError):
                await rest.more(1)

    run(worker, tmp_path, test)


def test_on_a_full_disk_scans_of_a_node_that_has_more_end_before_cursors_of_here() -> None:
    kept = Cursors(bytes(32), ttl_s=60, most=9, most_bytes=0, on_disk=lambda: len(kept) + len(kept.of_nodes) - 5)

    async def test() -> None:
        for at in range(2):
            cursor: Any = Cursor(None, None, {}, EndlessScan(), 1, False, "here", opened_at_s=at)  # type: ignore[arg-type]
            await kept.begin(cursor)
        node = object()
        for partition in (0, 0, 0, 1):
            kept.of_nodes.keep(node, ("s", partition), EndlessScan())
        for _ in range(9):
            kept.expire()
        assert (len(kept), [scan.place[1] for scan in kept.of_nodes.kept.values()]) == (2, [0, 0, 1])

    asyncio.run(test())


def test_each_piece_of_a_large_answer_is_a_sign_of_life() -> None:
    async def test() -> None:
        go_on = asyncio.Event()
        message = frame({"id": 1, "ends": [[0, 1]], "filler": "x" * 1_000_000})

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(LENGTH.size)
            writer.write(message[: len(message) // 2])
            await go_on.wait()
            writer.write(message[len(message) // 2 :])
            await writer.drain()
            writer.close()

        async with asyncio.timeout(HANGING_S), link_to(answer) as link:
            link._exchange.heard_at_s = 0.0
            asking = asyncio.create_task(link.ends("aircraft", [0]))
            await until(lambda: link._exchange.heard_at_s > 0)
            go_on.set()
            assert await asking == {0: 1}

    asyncio.run(test())


def test_the_access_log_of_a_node_that_is_asked_has_the_id_of_the_client_s_request(
    worker: OwningWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = [f"state.dir={worker.application.parent}", "server.access.log=on"]
    serving = create_app(make_app(), load_config("flights-app", environment={}, overrides=given)).state.serving

    def lines() -> list[dict[str, object]]:
        told = (vars(record)[FIELDS] for record in caplog.records if record.name == "stateline.access")
        return [{name: each.get(name) for name in ("route", "store", "rows", "request_id", "node")} for each in told]

    async def test(asked: Asked) -> None:
        asked.serving = serving
        async with asked.link() as link:
            observation.begin("mine-7")
            await (await begun(link)).more(2)
            answer = await link.query(replace(TERMS, store="nowhere"), 0, RangeQuery(), 0, None)
            assert isinstance(answer, Failure)
            at_once: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            link.point(
                "/v1/stores/aircraft/keys/07", "isolation_level=read_committed", None, "mine-8", at_once.set_result
            )
            assert await at_once is not None
            observation.begin("no id at all")
            await begun(link)
            await until(lambda: len(lines()) == 5)

    caplog.set_level(logging.INFO, "stateline.access")
    run(worker, tmp_path, test)
    query = {"route": "link/query", "store": "aircraft", "rows": 1, "request_id": "mine-7", "node": GREETING.node}
    assert lines() == [
        query,
        {**query, "route": "link/more", "rows": 2},
        {**query, "store": "nowhere", "rows": 0},
        {**query, "route": "/v1/stores/{store}/keys/{key}", "request_id": "mine-8"},
        {**query, "request_id": None},
    ]
