"""Which records of a changelog a former owner wrote after another had taken over. On the embedded log."""

from __future__ import annotations

from contextlib import closing
from threading import Event
from typing import Any

import pytest

from service.worker.faults import (
    CHANGELOG,
    EXACTLY_ONCE,
    GUARANTEES,
    IN,
    NEVER_MS,
    Place,
    counting,
    entries,
    table_only,
)
from stateline import App, serdes, stores
from stateline.log import Record
from stateline.log.interface import Headers
from stateline.processing.changelog import owner_epoch, owner_headers, position_headers, without_former_owners
from stateline.server.changes.topic_reader import After, CommittedRecords
from stateline_store import Position
from stateline_store.rows.headers import split_headers
from support.processes.running_worker import create, produce, read_all


def of_owner(epoch: int | None, offset: int = 0) -> Record:
    return Record("log", 0, offset, 1, b"k", b"v", () if epoch is None else owner_headers(epoch))


def test_records_with_a_smaller_epoch_than_one_before_them_are_a_former_owners() -> None:
    records = [of_owner(epoch, at) for at, epoch in enumerate([3, 3, 7, 3, 7, 300, 299, 256, 300])]
    kept, newest = without_former_owners(records, 0)
    assert [record.offset for record in kept] == [0, 1, 2, 4, 5, 8]
    assert newest == 300
    assert without_former_owners(records[:2], newest) == ([], 300)


def test_records_without_an_epoch_are_nobodys_late_ones() -> None:
    others = [("e", b"short"), ("e", None), ("e", bytes(8)), ("e", b"\xff" * 8), ("e", bytes(9))]
    records = [of_owner(7), *(of_owner(None)._replace(headers=(each,)) for each in others), of_owner(None)]
    assert without_former_owners(records, 5) == (records, 7)
    assert owner_epoch(records) == 7


LIKE_A_COMMITS: list[Headers] = [
    (("e", (1 << 62).to_bytes(8, "big")),),
    (("e", bytes(8)),),
    (("h", b"1"), ("t", b"no types")),
    (("c", b"no position"),),
    (("v", b"\0"),),
    (("h", None), ("v", b"\0")),
]


def test_headers_of_kafka_streams_named_like_a_commits_stay_and_hide_no_later_record(place: Place) -> None:
    app = App("app")
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.string, "headers": True}
    kept = app.store(stores.timestamped_key_value("counts", **common))

    @app.process(app.topic("in", key=serdes.string, value=serdes.string), stores=[kept])
    def keep(record: Any, kept: Any) -> None:
        kept.put(record.key, record.value)

    create(place.log, {CHANGELOG: 1})
    theirs = {b"k%d" % number: headers for number, headers in enumerate(LIKE_A_COMMITS)}
    produce(place.log, CHANGELOG, [(key, b"v", 1, headers) for key, headers in theirs.items()])
    for count in (1, 2):  # the second worker restores from the changelog what the first has written
        produce(place.log, "in", [(b"own%d" % count, b"v", 1, (("e", bytes(8)),))])
        theirs[b"own%d" % count] = (("e", bytes(8)),)
        found = place.work_off(app, place.config(app), count - 1)
        rows = {key: split_headers(stored)[1] for key, stored in found.rows("counts", 1).items()}
        assert rows == theirs
        found.close()
        place.lose_disk(place.config(app))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_at_least_once_every_record_says_where_the_changelog_ended_when_its_owner_took_over(
    place: Place, guarantee: str
) -> None:
    app = counting()
    config = place.config(app, commit__interval__ms=NEVER_MS, processing__guarantee=guarantee)
    ends = [0]
    for n in (1, 2, 3):
        place.send(entries("abc"))
        place.commit_once(app, config, 3 * n)
        ends.append(place.admin.log_end(IN._replace(topic=CHANGELOG)))
    records = read_all(place.log, CHANGELOG, 1)
    epochs = [[value for name, value in record.headers if name == "e"] for record in records]
    wanted = [[b"\xff" + end.to_bytes(8, "big")] for end in ends[:3] for _ in "abc"]
    assert epochs == (wanted if guarantee == "at_least_once" else [[]] * 9)


def late_commit(place: Place, epoch: int, value: bytes, offset: int) -> None:
    """What a worker writes that owned the changelog since this epoch: `a` and `b`, and how far it had read."""
    rows = [(b"a", value, 1), (b"b", value, 1)]
    position = position_headers(Position.of({IN: offset}))
    with closing(place.log.producer()) as producer:
        producer.produce_all(CHANGELOG, 0, rows, position, owner_headers(epoch))
        producer.flush()


def test_a_disk_knows_who_owned_its_changelog_last_although_it_reads_only_what_came_later(place: Place) -> None:
    app = counting()
    config = place.config(app, commit__interval__ms=NEVER_MS)
    for n in (1, 2):
        place.send(entries("ab"))
        place.commit_once(app, config, 2 * n)
    late_commit(place, 0, b"77", 2)
    place.send(entries("a"))
    found = place.work_off(app, place.config(app), 4)
    assert found.rows("counts", 1) == {b"a": b"3", b"b": b"2"}
    place.lose_disk(config)
    place.send(entries("b"))
    assert place.work_off(app, place.config(app), 5).rows("counts", 1) == {b"a": b"3", b"b": b"3"}


def test_a_later_owner_has_the_larger_epoch_also_when_the_changelog_has_lost_the_earlier_ones(place: Place) -> None:
    app = counting()
    ours, theirs = (place.config(app, name, commit__interval__ms=NEVER_MS) for name in ("ours", "theirs"))
    for n in range(5):  # in turns: each restores what the other one wrote
        place.send(entries("ab"))
        place.commit_once(app, (ours, theirs)[n % 2], 2 * n + 2)
    # As when retention has passed: the topic keeps nothing, their disk is new, and only ours knows of owners before.
    place.delete(CHANGELOG, 0, 9)
    place.lose_disk(theirs)
    place.send(entries("ab"))
    place.commit_once(app, theirs, 12)
    place.send(entries("a"))
    found = place.work_off(app, place.config(app, "ours"), 12)
    assert found.rows("counts", 1) == {b"a": b"2", b"b": b"1"}


def test_a_header_of_that_name_in_a_tables_topic_is_its_writers_own(place: Place) -> None:
    with closing(place.log.producer()) as producer:
        for n, epoch in enumerate([9, 3, 5]):
            producer.produce("in", b"k%d" % n, b"%d" % n, timestamp_ms=1, headers=owner_headers(epoch))
        producer.flush()
    app = table_only()
    found = place.work_off(app, place.config(app), 2, store="newest")
    assert found.rows("newest", 1) == {b"k0": b"0", b"k1": b"1", b"k2": b"2"}


def test_what_a_former_owner_wrote_is_no_change(place: Place) -> None:
    app = counting()
    config = place.config(app, commit__interval__ms=NEVER_MS)
    for n in (1, 2):
        place.send(entries("ab"))
        place.commit_once(app, config, 2 * n)
    late_commit(place, 0, b"77", 9)
    late_commit(place, 2, b"8", 9)
    with closing(CommittedRecords(place.log, CHANGELOG, [0], Event())) as reader:
        reader.begin(After({}))
        read, next_offsets = reader.read(frozenset())
        assert [record.value for record in read] == [b"1", b"1", b"2", b"2", b"8", b"8"]
        assert next_offsets == {0: 8}


def test_under_exactly_once_a_store_that_was_kept_at_least_once_goes_on(place: Place) -> None:
    app = counting()
    for n, settings in enumerate(({}, EXACTLY_ONCE, {}), 1):
        place.send(entries("ab"))
        place.commit_once(app, place.config(app, commit__interval__ms=NEVER_MS, **settings), 2 * n)
    assert owner_epoch(read_all(place.log, CHANGELOG, 1)) == 5  # a transaction ends with an offset of its own
    place.send(entries("a"))
    place.lose_disk(place.config(app))
    assert place.work_off(app, place.config(app), 6).rows("counts", 1) == {b"a": b"4", b"b": b"3"}
