"""Each operator against Kafka Streams' own: the same input, and everything that each commit of it leaves in topics:
results, records between subtopologies, and changelogs, as bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import pytest

from conformance.golden import section, unhex
from conformance.golden_topologies import TOPOLOGIES
from stateline import App
from stateline.log import interface
from stateline.processing.changelog import own_headers
from stateline.testing import TestDriver
from stateline.testing.records import TopicReader
from support.run.length import long_or_short

Left: TypeAlias = tuple[str, bytes | None, bytes | None, int, interface.Headers]
"""A record: topic, key, value, timestamp, headers."""
Place: TypeAlias = tuple[str, bytes | None]
OPERATORS = {history["name"]: history["left"] for history in section("operators")}
INPUT = section("operator_input")
AT_A_TIME = 5  # records per commit
SOME = long_or_short(len(INPUT), 100)  # of the input, of which any beginning leaves what there was until then
# Records between subtopologies stay until they have been read here, on a slow machine, too.
SETTINGS = {"repartition.purge.interval.ms": 3_600_000}
SESSIONS = ["cogroup_session"]
ON_CLOSE = "emit_on_close"
FINAL = ["final_tumbling", "final_session"]
# Of a commit's changes of a key, only the last is a row. Rows and tables are taken in the order of their times.
ONE_BY_ONE = (
    "transform_",
    "table_",
    "cogroup",
    "fk_",
    "suppress",
    "emit_",
    "final_",
    "keyed_table",
    "keyed_global",
    "grace_",
    "unlimited_",
    "topics_",
    "versioned_",
)
WITH_UNMATCHED = [name for name in TOPOLOGIES if name in ("stream_left", "stream_outer", "stream_lopsided")]


def is_unmatched(record: Left) -> bool:
    return b"null" in (record[2] or b"")


def both(name: str, count: int = len(INPUT)) -> Iterator[tuple[str, list[Left], list[Left]]]:
    """For each few of so many records of the input: which ones, what they leave here, and what they left in Kafka
    Streams. Changelogs have the last record of each key."""
    app = App("app")
    TOPOLOGIES[name](app)
    own = {"topology.optimization": "single.store.self.join"} if name == "stream_self_one_store" else {}
    with TestDriver(app, autocommit=False, config={**SETTINGS, **own}) as driver:
        topology = app.topology()
        read = {topic.name for part in topology.subtopologies for topic in part.sources}
        read |= {table.source.name for table in topology.global_tables.values() if table.source is not None}
        changelogs = {each.changelog("app"): each for each in topology.stores.values() if each.source is None}
        between = topology.topics_known().keys() - {"a", "b", "out"}
        topics = ["out", *sorted(between), *sorted(topic for topic in changelogs if topic)]
        # A row without a value leaves a record in Java's changelog of a join. It means nothing.
        duplicates = {topic for topic, store in changelogs.items() if store.retain_duplicates}
        reader, there = TopicReader(topology), (set[Place](), set[Place]())
        # Kafka Streams also forwards deletes of absent results.
        joins = ("versioned_join", "versioned_left", "versioned_outer", "versioned_fk_")
        is_table = name.startswith(("fk_", "transform_", *joins))
        step = 1 if name.startswith(ONE_BY_ONE) else AT_A_TIME
        for first in range(0, count, step):
            numbers = range(first, first + step)
            for record in (INPUT[number] for number in numbers):
                if record["topic"] in read:
                    headers = () if record["header"] is None else (("h", record["header"].encode()),)
                    key, value = record["key"], record["value"]
                    driver.pipe(record["topic"], key, value, timestamp_ms=record["timestamp"], headers=headers)
            driver.commit()
            left = [_left(each) for topic in topics for each in reader._raw(driver._place.log, topic)]
            expected = [_expected(each) for number in numbers for each in OPERATORS[name].get(str(number), ())]
            # A delete that changes nothing may be there only if Kafka Streams has it, too.
            left = [each for each in left if changes_something(each, there[0], is_table) or each not in expected]
            expected = [each for each in expected if each[2] is not None or each[0] not in duplicates]
            expected = [each for each in expected if each[0] in topics and changes_something(each, there[1], is_table)]
            expected.sort(key=lambda each: topics.index(each[0]))
            yield f"records {numbers}", _newest(left), _newest(expected)


@pytest.mark.parametrize(
    "name", [name for name in TOPOLOGIES if name not in (*WITH_UNMATCHED, *SESSIONS, *FINAL, ON_CLOSE)]
)
def test_records_leave_what_they_leave_in_kafka_streams(name: str) -> None:
    for records, ours, javas in both(name, SOME):
        assert ours == javas, records


def test_each_window_that_closes_leaves_once_and_all_that_leave_in_kafka_streams() -> None:
    """Kafka Streams loses windows that its store's retention hides when time jumps."""
    ours, javas = set[Any](), set[Any]()
    for records, *sides in both(ON_CLOSE):
        for found, left in zip((ours, javas), sides, strict=True):
            rows = [each[1:4] for each in left if each[0] == "out"]
            assert found.isdisjoint(rows), records
            found.update(rows)
        assert javas <= ours, records
        assert [each for each in sides[0] if each[0] != "out"] == [each for each in sides[1] if each[0] != "out"]
    assert len(javas) > 20


@pytest.mark.parametrize("name", FINAL)
def test_a_suppressed_window_leaves_once_as_in_kafka_streams(name: str) -> None:
    """Its headers are those of the record that closes it. In Kafka Streams they are those of the window's last change.
    A record without a value changes no session here, so a session that it closes leaves with the next change."""
    ours, javas = list[Any](), list[Any]()
    for records, *sides in both(name):
        for found, left in zip((ours, javas), sides, strict=True):
            found += sorted(each[1:4] for each in left if each[0] == "out")
        early = Counter(ours) - Counter(javas)
        assert not early, records
        assert name == "final_session" or ours == javas, records
    assert Counter(ours) == Counter(javas)
    assert len(ours) > 20


@pytest.mark.parametrize("name", SESSIONS)
def test_sessions_are_those_of_kafka_streams_after_each_record(name: str) -> None:
    """Kafka Streams also deletes a session that stays as it is, and forwards sessions without headers."""
    tables = dict[Place, Any](), dict[Place, Any]()
    for records, *sides in both(name):
        for table, left in zip(tables, sides, strict=True):
            for topic, key, value, at_ms, _ in left:
                table[topic, key] = None if value is None else (value, at_ms if topic == "out" else 0)
        ours, javas = ({place: row for place, row in table.items() if row is not None} for table in tables)
        assert ours == javas, records
    assert len(tables[0]) > 100


@pytest.mark.parametrize("name", WITH_UNMATCHED)
def test_a_row_without_a_partner_leaves_as_in_kafka_streams_or_earlier(name: str) -> None:
    """Kafka Streams looks for such rows from the latest time on that it saw among them, so they may stay for longer."""
    ours, javas, waiting = list[Left](), list[Left](), ([], [])  # type: ignore[var-annotated]
    for records, here, there in both(name):
        for mine, kept, left in ((ours, waiting[0], here), (javas, waiting[1], there)):
            mine += [each for each in left if each[0] == "out" and is_unmatched(each)]
            kept += [each[1:3] for each in left if "-shared-" in each[0] and each[2] is not None]
        certain = [
            [each for each in left if not is_unmatched(each) and "-shared-" not in each[0]] for left in (here, there)
        ]
        assert certain[0] == certain[1], records
    assert waiting[0] == waiting[1], "the rows that waited"
    unmatched = [Counter((key, value, at_ms) for _, key, value, at_ms, _ in of) for of in (ours, javas)]
    assert len(javas) > 20
    assert unmatched[0] == unmatched[1]


def changes_something(record: Left, there: set[Place], is_table: bool) -> bool:
    """Whether this is no delete of a key that its changelog, with the keys `there`, does not have.
    `is_table`: nor of one that the results do not have."""
    place = record[:2]
    if record[2] is not None:
        there.add(place)
    elif record[0].endswith("-changelog") or (is_table and record[0] == "out"):
        known = place in there
        there.discard(place)
        return known
    return True


def _newest(records: Iterable[Left]) -> list[Left]:
    """The last record of each key in a changelog, and all others."""
    records = list(records)
    kept = {each[:2]: each for each in records if each[0].endswith("-changelog")}
    return [each for each in records if not each[0].endswith("-changelog")] + sorted(kept.values())


def _left(record: interface.Record) -> Left:
    is_changelog = record.topic.endswith("-changelog")
    headers = own_headers(record.headers) if is_changelog else record.headers
    return record.topic, record.key, record.value, _time(record.topic, record.value, record.timestamp_ms), headers


def _expected(record: list[Any]) -> Left:
    topic, key, value, at_ms, headers = record
    return (
        topic,
        unhex(key),
        unhex(value),
        _time(topic, value, at_ms),
        tuple((name, unhex(header)) for name, header in headers),
    )


def _time(topic: str, value: object, at_ms: int) -> int:
    """The timestamp of a record; 0 for a delete in a changelog, which has that of the commit here, and for what
    is held back, which has none in Kafka Streams. Plain stores of
    functions have that of the commit here."""
    return (
        0
        if topic in ("app-s-store-changelog", "app-j-Buffer-changelog", "app-seen-changelog")
        or (value is None and topic.endswith("-changelog"))
        else at_ms
    )
