"""Nodes of several builds: what they speak, whom they link with, and what is asked of whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from stateline.deployment.nodes_topic import NodeEntry
from stateline.deployment.workers.entries import StandbysEntry, WorkerEntry
from stateline.query.values import CopyStatus, Entry, PartitionAnswer, QueryRows, Terms
from stateline.server.nodes.greeting import LINK, WIRE_VERSIONS, Hello
from stateline.server.routing.for_nodes import as_asked
from stateline_store import IsolationLevel, KeyQuery, Position, StatelineError, VersionedRecord, Windowed
from support.processes.linked_nodes import LinkedNode, run, until, with_secret

NEWEST = max(WIRE_VERSIONS)
COPY = CopyStatus("active", 0, 0, 0)


async def told_of_each_other(*nodes: LinkedNode) -> None:
    for node in nodes:
        for other in nodes:
            if other is not node:
                node.hear_of(other.nodes.own.node, other.entry)


async def settled(one: LinkedNode, two: LinkedNode) -> None:
    """Each is linked with the other, or knows why not."""
    names = [(one, two.nodes.own.node), (two, one.nodes.own.node)]
    await until(lambda: all(node.is_linked_with(name) or node.fault(name) for node, name in names))


def test_two_speak_the_newest_version_that_both_understand(tmp_path: Path) -> None:
    async def scene() -> None:
        config = with_secret(tmp_path)
        nodes = [
            LinkedNode("now", config),
            LinkedNode("new", config, wire=(NEWEST + 1, *WIRE_VERSIONS)),
            LinkedNode("newer", config, wire=(NEWEST + 2, NEWEST + 1, *WIRE_VERSIONS)),
        ]
        await told_of_each_other(*nodes)
        await until(lambda: all(len(list(node.nodes.links())) == 2 for node in nodes))
        spoken = {node.nodes.own.node: {name: link.wire for name, link in node.nodes.links()} for node in nodes}
        assert spoken == {
            "now": {"new": NEWEST, "newer": NEWEST},
            "new": {"now": NEWEST, "newer": NEWEST + 1},
            "newer": {"now": NEWEST, "new": NEWEST + 1},
        }
        for node in nodes:
            await node.close()

    run(scene())


def test_two_that_have_no_version_in_common_do_not_link_and_say_who_speaks_what(tmp_path: Path) -> None:
    async def scene() -> None:
        config = with_secret(tmp_path)
        one, two = LinkedNode("one", config), LinkedNode("two", config, wire=(98, 99))
        await told_of_each_other(one, two)
        await settled(one, two)
        assert not one.is_linked_with("two")
        assert not two.is_linked_with("one")
        own = ", ".join(map(str, sorted(WIRE_VERSIONS)))
        assert "'two' runs Stateline 1.0 and speaks version 98, 99 of the wire" in one.fault("two")
        assert f"'one' runs 1.0 and speaks {own}: they do not understand each other" in one.fault("two")
        for node in (one, two):
            await node.close()

    run(scene())


@pytest.mark.parametrize(
    ("tasks", "is_linked"),
    [("same", True), ("other", False)],
)
def test_nodes_link_whose_stores_differ_in_timestamps_alone(tmp_path: Path, tasks: str, *, is_linked: bool) -> None:
    async def scene() -> None:
        config = with_secret(tmp_path)
        one = LinkedNode("one", config, topology="plain", tasks="same")
        two = LinkedNode("two", config, topology="stamped", tasks=tasks)
        await told_of_each_other(one, two)
        await settled(one, two)
        assert (one.is_linked_with("two"), two.is_linked_with("one")) == (is_linked, is_linked)
        if is_linked:
            ((_, link),) = one.nodes.links()
            assert not link.declares_the_same, "what it answers a client is not this node's answer"
            terms = Terms("store", IsolationLevel.READ_COMMITTED)
            await link.query(terms, 0, KeyQuery(b"k"), 0, None, timestamped=True)
            assert [request.timestamped for request in two.answers.asked] == [True]
        assert (one.nodes.other_topologies() == []) is (tasks == "same")
        for node in (one, two):
            await node.close()

    run(scene())


ENTRY = NodeEntry("http://one", "one:1", "d", "1.0", "t", "r", "k", (2, 1))


@pytest.mark.parametrize(
    "entry",
    [ENTRY, WorkerEntry("t", "d", {"zone": "a"}, "k"), StandbysEntry(frozenset({"0_1"}), joining=True)],
    ids=lambda entry: type(entry).__name__,
)
def test_what_a_newer_build_says_besides_is_passed_over(entry: Any) -> None:
    said = orjson.loads(entry.encode())
    assert type(entry).decode(orjson.dumps({**said, "of a newer build": [1, {"two": None}]})) == entry
    hello = asdict(Hello("a", "n", "d", "9", "t", "", (9, 1), "k", LINK, "c"))
    assert Hello.of({**hello, "wire": [9, 1], "of a newer build": 1}) == Hello(**hello)


def test_an_entry_that_lacks_a_member_or_has_it_otherwise_is_none() -> None:
    said = orjson.loads(ENTRY.encode())
    for wrong in ({"wire": 1}, {"wire": ["1"]}, {"tasks": 1}):
        assert NodeEntry.decode(orjson.dumps({**said, **wrong})) is None
    for name in said:
        assert NodeEntry.decode(orjson.dumps({each: said[each] for each in said if each != name})) is None


class Pages:
    """A rest of three more values, one a page."""

    def __init__(self, values: Iterable[bytes]) -> None:
        self.left: Iterator[bytes] = iter(values)
        self.is_closed = False

    async def more(self, limit: int) -> QueryRows:
        return QueryRows([(b"k", next(self.left))], rest=self)

    def close(self) -> None:
        self.is_closed = True


def answer(value: bytes, rest: Pages | None = None) -> PartitionAnswer:
    entries: list[Entry] = [(b"k", value), (Windowed(b"w", 1, 2), value), (b"v", VersionedRecord(b"version", 3, None))]
    return PartitionAnswer(QueryRows(entries, 1, 2, rest), Position(), COPY)


UNKNOWN, KNOWN = b"\xff" * 8, (7).to_bytes(8)


@pytest.mark.parametrize(
    ("has", "wants", "stored", "shown"),
    [
        (True, False, KNOWN + b"value", b"value"),
        (False, True, b"value", UNKNOWN + b"value"),
        (True, True, KNOWN + b"value", KNOWN + b"value"),
        (False, False, b"value", b"value"),
        (True, None, KNOWN + b"value", KNOWN + b"value"),
    ],
)
def test_values_have_timestamps_where_who_asks_has_declared_them(
    has: bool, wants: bool | None, stored: bytes, shown: bytes
) -> None:
    pages = Pages([stored] * 3)
    found = as_asked(answer(stored, pages), has_timestamps=has, wants_timestamps=wants)
    assert isinstance(found, PartitionAnswer)
    assert (found.rows.entries, found.rows.count, found.rows.interval_ms) == (answer(shown).rows.entries, 1, 2)

    async def scene() -> None:
        rest = found.rows.rest
        for _ in range(3):
            assert rest is not None
            rows = await rest.more(1)
            assert rows.entries == [(b"k", shown)]
            rest = rows.rest
        assert rest is not None
        rest.close()
        assert pages.is_closed

    run(scene())


def test_a_value_that_should_have_a_timestamp_and_has_none_is_damage() -> None:
    with suppress(StatelineError):
        as_asked(answer(b"short"), has_timestamps=True, wants_timestamps=False)
        pytest.fail("it was taken for a value")
