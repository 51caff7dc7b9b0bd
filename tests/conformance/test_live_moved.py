"""Of the same input, operators whose rows meet others, move to another key or wait leave what Kafka Streams' leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, TypeAlias

import pytest

from conformance.live import Rows, Sides, both_sides, difference
from conformance.live_app import JOINED, MOVED
from conformance.live_input import PARTITIONS, Input, write_input
from stateline.log.kafka import KafkaLog
from stateline.processing.changelog import own_headers
from support.kafka.java_streams import class_path
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import create, eventually, read_all
from support.run.length import long_only

pytestmark = long_only("test_golden_operators.py has what these operators leave in Kafka Streams")

Row: TypeAlias = tuple[bytes | None, bytes | None, int]
Change: TypeAlias = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
"""Partition, key, value, timestamp and headers of a changelog's record."""
WRITTEN = (*JOINED, "limited")


def written_input(servers: str, prefix: str) -> Input:
    """The input of the live conformance, and a second stream for joins."""
    results = [f"{prefix}{side}-{store}" for side in ("ours", "java") for store in WRITTEN]
    with closing(KafkaLog(servers)) as log:
        create(log, dict.fromkeys(results, PARTITIONS))
        return write_input(log, prefix, more={"others": "versioned"})


@pytest.fixture(scope="module", params=["at_least_once", "exactly_once_v2"])
def sides(
    kafka_broker: SharedBroker, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sides]:
    needed(class_path)
    servers = kafka_broker.bootstrap_servers
    given = written_input(servers, f"moved-{request.param}-")
    with both_sides(servers, given, request.param, "default", tmp_path_factory.mktemp("moved"), list(MOVED)) as made:
        yield made


def rows(sides: Sides, side: str, store: str) -> Counter[Row]:
    found = read_all(sides.log, f"{sides.given.prefix}{side}-{store}", PARTITIONS)
    return Counter((record.key, record.value, record.timestamp_ms) for record in found)


@pytest.mark.parametrize("store", ["joined", "limited"])
def test_rows_are_those_that_leave_in_kafka_streams(store: str, sides: Sides) -> None:
    theirs, ours = rows(sides, "java", store), rows(sides, "ours", store)
    assert theirs.total() > 100
    assert difference(dict(theirs), dict(ours)) == ""


def changes(sides: Sides, store: str) -> tuple[list[Change], list[Change]]:
    """Every record of Java's changelog of a store, and of ours."""
    topics = sides.java.changelog(store), sides.our_changelog(store)
    theirs, ours = (
        [
            (record.partition, record.key, record.value, record.timestamp_ms, tuple(own_headers(record.headers)))
            for record in read_all(sides.log, topic, PARTITIONS)
        ]
        for topic in topics
    )
    return theirs, ours


def last(found: list[Change]) -> Rows:
    """The last record of each key, none if that is a delete."""
    rows: Rows = {}
    for partition, key, *row in found:
        rows.pop((partition, key), None)
        if row[0] is not None:
            rows[partition, key] = row
    return rows


SHARED = {"joinedleft": "joinedleft-left-shared-join-store", "joinedouter": "joinedouter-outer-shared-join-store"}
"""By join, the store of rows that wait for a partner."""
_TIME, _SIDE = slice(8), slice(9, None)  # of its keys: the timestamp, a byte for the side, and the record's key


@pytest.mark.parametrize("store", SHARED)
def test_rows_with_a_partner_and_without_leave_as_in_kafka_streams_or_earlier(store: str, sides: Sides) -> None:
    """Kafka Streams looks once a second of its clock for rows whose window has closed. Until then they wait there, or
    meet a late partner."""
    theirs, ours = rows(sides, "java", store), rows(sides, "ours", store)
    assert theirs.total() > 100
    assert difference(dict(theirs - ours), {}) == ""
    there = last(changes(sides, SHARED[store])[0])
    waiting = {(name[_SIDE], int.from_bytes(name[_TIME])) for _, name in there}
    met = [(key, value) for key, value, at_ms in ours - theirs if (key, at_ms) not in waiting]
    for key, value in met:
        assert value is not None
        (half,) = {value.removesuffix(b"null"), value.removeprefix(b"null")} - {value}
        pairs = [pair for name, pair, _ in theirs if name == key and pair not in (None, value)]
        assert any(pair and half in (pair[: len(half)], pair[-len(half) :]) for pair in pairs), (key, value)
    assert len(met) < theirs.total() / 20


@pytest.mark.parametrize(
    "store",
    [
        "joined-this-join-store",
        "joined-other-join-store",
        "joinedleft-this-join-store",
        "joinedleft-outer-other-join-store",
        "joinedouter-outer-this-join-store",
        "joinedouter-outer-other-join-store",
    ],
)
def test_rows_of_joined_streams_have_the_changelog_of_javas(store: str, sides: Sides) -> None:
    """Kafka Streams has records besides, for rows without a value, and for those that are too late for the store."""
    theirs, ours = changes(sides, store)
    assert len(ours) > 500
    assert not Counter(ours) - Counter(theirs)
    retention_ms, newest_ms = sides.definition(store).retention_ms, Counter[int]()
    more = Counter(theirs) - Counter(ours)
    for each in theirs:
        partition, _, value, at_ms, _ = each
        if value is not None and each not in more:
            newest_ms[partition] = max(newest_ms[partition], at_ms)
        assert each not in more or value is None or at_ms <= newest_ms[partition] - retention_ms, each


@pytest.mark.parametrize("store", SHARED.values())
def test_rows_that_wait_for_a_partner_have_the_changelog_of_javas(store: str, sides: Sides) -> None:
    """Kafka Streams has records besides, of rows that came and went between two of our commits."""
    theirs, ours = (Counter(each for each in found if each[2] is not None) for found in changes(sides, store))
    assert ours.total() > 50
    assert not ours - theirs


def test_changes_that_wait_have_the_values_of_javas_changelog(sides: Sides) -> None:
    """Its records have the time of its clock."""

    def waiting() -> list[Rows]:
        found = map(last, changes(sides, "limited-store"))
        return [{key: [row[0], row[2]] for key, row in rows.items()} for rows in found]

    eventually(lambda: len(waiting()[0]) > 5 and difference(*waiting()) == "", "both have the same waiting changes")


def newest(sides: Sides, topic: str) -> dict[str, str]:
    """The rows of a table."""
    found: dict[str, str] = {}
    for record in read_all(sides.log, f"{sides.given.prefix}{topic}", PARTITIONS):
        if record.key is not None:
            found.pop(record.key.decode(), None)
            if record.value is not None:
                found[record.key.decode()] = record.value.decode()
    return found


def joined_by_foreign_key(sides: Sides, *, is_left: bool) -> dict[str, str]:
    right, found = newest(sides, "right"), {}
    for key, value in newest(sides, "left").items():
        other = None if value == "" or value.endswith("7") else right.get(f"key-{value[-2:]}")
        if is_left or other is not None:
            found[key] = f"{value}|{'null' if other is None else other}"
    return found


def work_off_answers(sides: Sides, store: str) -> None:
    """Wait until both have the rows of both tables. Java may keep a row whose order has changed before the answer came
    that there is no customer."""
    wanted = joined_by_foreign_key(sides, is_left=store == "foreignleft")
    assert len(wanted) > 10
    eventually(lambda: values(sides.our_rows(store)) == wanted, "the worker has all answers")

    def javas() -> dict[str, str]:
        found = values(sides.rows_of_java(store))
        return {key: value for key, value in found.items() if key in wanted or store == "foreignleft"}

    eventually(lambda: javas() == wanted, "Kafka Streams has all answers")


@pytest.mark.parametrize("store", ["foreignkey", "foreignleft"])
def test_a_join_by_foreign_key_has_the_rows_of_both_tables(store: str, sides: Sides) -> None:
    work_off_answers(sides, store)


def test_subscriptions_have_the_changelog_of_javas(sides: Sides) -> None:
    """Those of the left join: an inner one subscribes again after some stale answers."""
    work_off_answers(sides, "foreignleft")
    theirs, ours = map(last, changes(sides, "foreignleft-subscription-store"))
    assert len(theirs) > 50
    assert difference(theirs, ours) == ""


def test_a_sum_of_groups_is_that_of_kafka_streams(sides: Sides) -> None:
    totals = Counter[str]()
    for value in newest(sides, "left").values():
        totals[value[-2:]] += len(value)

    def sums(found: dict[str, Any]) -> Counter[str]:
        return +Counter(found)

    eventually(lambda: sums(values(sides.our_rows("groupsum"))) == totals, "the worker has all sums")
    eventually(lambda: sums(values(sides.rows_of_java("groupsum"))) == totals, "Kafka Streams has all sums")


def values(found: Rows) -> dict[str, Any]:
    """The values of rows by their keys."""
    return {key: row[0] for key, row in found.items()}
