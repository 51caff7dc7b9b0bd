"""Whole stores against Kafka Streams': the same calls leave the same changelog records and the same rows.

Where Stateline means to differ, a test here says so:

- a put that comes too late is dropped; Kafka Streams drops it too, and writes it to the changelog all the same;
- a delete in a window store that retains duplicates does nothing; Kafka Streams writes it to the changelog under a new
  sequence number, and from then on counts differently there than in the store;
- removing a session moves the Position that the record carries; Kafka Streams leaves it where it was;
- a delete with the timestamp of the version that it deletes stays known; Kafka Streams forgets it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from conformance.golden import section, unhex
from stateline.log.interface import Record
from stateline.processing.changelog import (
    origin,
    own_headers,
    position_headers,
    stage,
    with_own,
)
from stateline.processing.changelog_rows import rows_with_own, staged_rows
from stateline.processing.records import OutputRecord
from stateline_store import (
    IsolationLevel,
    KeyRange,
    KeyValueStore,
    Position,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.rows.headers import Headers, join_headers, without_headers
from stateline_store.rows.windowed_keys import Windowed, session_key, window_key
from stateline_store.stores.session_store import SessionStore, TimestampedSessionStore
from stateline_store.stores.versioned_store import VersionedStore
from stateline_store.stores.window_store import TimestampedWindowStore, WindowStore

History: TypeAlias = dict[str, Any]
Step: TypeAlias = dict[str, Any]
Row: TypeAlias = tuple[int | None, bytes, bytes]

CHANGELOG = TopicPartition("app-s-changelog", 0)
INPUT = TopicPartition("input", 0)
HISTORIES: dict[str, History] = {history["name"]: history for history in section("stores")}
DELETED_DUPLICATES = "window, duplicates, deletes"
FORGOTTEN_DELETE = "versioned, deleted with its timestamp"
ALIKE = [name for name in HISTORIES if name not in (DELETED_DUPLICATES, FORGOTTEN_DELETE)]

Opened: TypeAlias = Callable[[str], TransactionalStore]


@pytest.fixture(params=["rocksdb", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens a store of ours like the one of a history."""
    stores: list[TransactionalStore] = []

    def open_store(name: str) -> TransactionalStore:
        store = like(HISTORIES[name], persistent=request.param == "rocksdb")
        store.init(StoreContext("0_0", tmp_path / "0_0", CHANGELOG))
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        store.close()


def like(history: History, *, persistent: bool) -> TransactionalStore:
    headers = history.get("headers", False)
    match history["kind"], history["timestamped"]:
        case "key_value", timestamped:
            kind = TimestampedKeyValueStore if timestamped else KeyValueStore
            return kind("s", persistent=persistent, headers=headers)
        case "window", timestamped:
            window_kind = TimestampedWindowStore if timestamped else WindowStore
            return window_kind(
                "s",
                retention_ms=history["retention_ms"],
                window_size_ms=history["window_size_ms"],
                retain_duplicates=history["retain_duplicates"],
                persistent=persistent,
                headers=headers,
            )
        case "session", False:  # with headers ours has timestamps, too
            session_kind = TimestampedSessionStore if headers else SessionStore
            retention_ms = history["retention_ms"]
            return session_kind("s", retention_ms=retention_ms, persistent=persistent, headers=headers)
        case "versioned", False:
            return VersionedStore("s", history_retention_ms=history["history_retention_ms"], persistent=persistent)
    raise AssertionError(f"no store of ours is like {history}")


def call(store: TransactionalStore, what: dict[str, Any]) -> None:
    """Make the call that was made to Kafka Streams' store."""
    match store:
        case VersionedStore():
            call_versioned(store, what)
        case TimestampedSessionStore() if what["value"] is not None:
            session = Windowed(unhex(what["key"]), what["start"], what["end"])
            store.put_with_timestamp(session, unhex(what["value"]), what["timestamp"])
        case SessionStore():
            call_session(store, what)
        case TimestampedWindowStore():
            store.put_with_timestamp(unhex(what["key"]), unhex(what["value"]), what["timestamp"], what["start"])
        case WindowStore():
            store.put(unhex(what["key"]), unhex(what["value"]), what["start"])
        case KeyValueStore():
            call_key_value(store, what)
        case _:
            raise AssertionError(f"{store} is not known here")


def call_versioned(store: VersionedStore, what: dict[str, Any]) -> None:
    if what["method"] == "delete":
        store.delete(unhex(what["key"]), what["timestamp"])
    else:
        store.put(unhex(what["key"]), unhex(what["value"]), what["timestamp"])


def call_session(store: SessionStore, what: dict[str, Any]) -> None:
    session = Windowed(unhex(what["key"]), what["start"], what["end"])
    if what["method"] == "remove":
        store.remove(session)
    else:
        store.put(session, unhex(what["value"]))


def call_key_value(store: KeyValueStore, what: dict[str, Any]) -> None:
    key, value = unhex(what["key"]), unhex(what["value"])
    match store, what["method"]:
        case TimestampedKeyValueStore(), "put":
            store.put_with_timestamp(key, value, what["timestamp"])
        case TimestampedKeyValueStore(), "put_if_absent":
            store.put_if_absent_with_timestamp(key, value, what["timestamp"])
        case _, "put":
            store.put(key, value)
        case _, "put_if_absent":
            store.put_if_absent(key, value)
        case _, _:
            store.delete(key)


def make_step(store: TransactionalStore, history: History, number: int) -> list[OutputRecord]:
    """Make one call as of one input record; what it gives the changelog. The call is committed."""
    store.advance(Position.of({INPUT: number}))
    what, now = history["steps"][number]["call"], history["record_time"] + number
    if store.headers:
        call_with_headers(store, what, number, now)
    else:
        call(store, what)
    headers = position_headers(store.position(IsolationLevel.READ_UNCOMMITTED))
    plain = [(*row, ()) for row in staged_rows(store, now)]
    rows = rows_with_own(store, staged_rows(store, now)) if store.headers else plain
    records = [
        OutputRecord(CHANGELOG.topic, key, value, at_ms, with_own(own, headers if at == len(rows) - 1 else ()))
        for at, (key, value, at_ms, own) in enumerate(rows)
    ]
    store.commit({CHANGELOG: number})
    if not history["with_positions"]:  # Kafka Streams writes headers when an internal switch is on; Stateline always
        records = without_position(records)
    return records


def call_with_headers(store: TransactionalStore, what: dict[str, Any], number: int, now: int) -> None:
    """Make the call with its value's headers. A delete gets those of the input record, and its timestamp."""
    value = unhex(what["value"])
    joined = None if value is None else join_headers(value, unhexed(what["headers"])).hex()
    call(store, {**what, "value": joined, "timestamp": now if what["timestamp"] is None else what["timestamp"]})
    if value is None:
        store.keep_origins({row_key(store, what): origin(now, (("record", bytes([number])),))})


def row_key(store: TransactionalStore, what: dict[str, Any]) -> bytes:
    key: bytes = unhex(what["key"])
    match store:
        case SessionStore():
            return session_key(key, what["start"], what["end"])
        case WindowStore():
            return window_key(key, what["start"])
    return key


def unhexed(headers: list[list[str | None]]) -> Headers:
    return tuple((name or "", unhex(value)) for name, value in headers)


def logged(step: Step) -> list[OutputRecord]:
    """What Kafka Streams wrote to the changelog."""
    return [
        OutputRecord(
            CHANGELOG.topic,
            unhex(record["key"]),
            unhex(record["value"]),
            record["timestamp"],
            headers=unhexed(record["headers"]),
        )
        for record in step["records"]
    ]


def rows_of(store: TransactionalStore) -> set[Row]:
    """Every committed row: segment (None without), key behind it, stored value."""
    scan = list(store.reader(IsolationLevel.READ_COMMITTED).scan(KeyRange(b"", None)))
    if store.headers:
        scan = [(key, laid_out_as_theirs(store, value)) for key, value in scan]
    if isinstance(store, KeyValueStore):
        return {(None, key, value) for key, value in scan}
    return {(struct.unpack_from(">q", key)[0], key[8:], value) for key, value in scan}


def laid_out_as_theirs(store: TransactionalStore, row: bytes) -> bytes:
    """A row with headers as Kafka Streams has it: the timestamp behind the headers, and none in a session."""
    timestamp, joined = row[:8], row[8:]
    value = without_headers(joined)
    headers = joined[: len(joined) - len(value)]
    return headers + value if isinstance(store, SessionStore) else headers + timestamp + value


def kept(step: Step) -> set[Row]:
    """Every row that Kafka Streams' store had after this step."""
    return {(segment, unhex(key), unhex(value)) for segment, key, value in step["rows"]}


def dropped(store: TransactionalStore) -> int:
    return store.dropped_records if isinstance(store, WindowStore | SessionStore | VersionedStore) else 0


@pytest.mark.parametrize("name", ALIKE)
def test_the_same_calls_leave_the_same_records_and_rows(name: str, opened: Opened) -> None:
    store, history = opened(name), HISTORIES[name]
    before: set[Row] = set()
    for number, step in enumerate(history["steps"]):
        late = dropped(store)
        records = make_step(store, history, number)
        if dropped(store) > late:
            assert records == []
            assert kept(step) == before, "Kafka Streams did not drop it"
        elif step["call"]["method"] == "remove":
            assert without_position(records) == without_position(logged(step))
            assert [position_of(record) for record in records] == [number]
            assert [position_of(record) for record in logged(step)] == [number - 1]
        else:
            assert records == logged(step), step["call"]
        before = kept(step)
        assert rows_of(store) == before, step["call"]


def without_position(records: list[OutputRecord]) -> list[OutputRecord]:
    return [record._replace(headers=own_headers(record.headers)) for record in records]


def position_of(record: OutputRecord) -> int | None:
    return Position.decode(dict(record.headers[-1:])["c"] or b"").get(*INPUT)


@pytest.mark.parametrize(
    "name",
    [
        *("window", "timestamped window", "session", "versioned", "window, duplicates"),
        *("window with headers", "session with headers"),
    ],
)
def test_a_put_that_comes_too_late_is_dropped_once_in_each_history(name: str, opened: Opened) -> None:
    store, history = opened(name), HISTORIES[name]
    for number in range(len(history["steps"])):
        make_step(store, history, number)
    assert dropped(store) == 1


@pytest.mark.parametrize("name", ALIKE)
def test_a_changelog_that_kafka_streams_wrote_restores_its_rows(name: str, opened: Opened) -> None:
    store, history = opened(name), HISTORIES[name]
    records = [
        Record(CHANGELOG.topic, 0, at, record.timestamp_ms, record.key, record.value, record.headers)
        for at, record in enumerate(record for step in history["steps"] for record in logged(step))
    ]
    stage(store, records, own=own_headers)
    store.commit({CHANGELOG: len(records)})
    assert rows_of(store) == kept(history["steps"][-1])


def test_a_delete_among_duplicates_does_nothing_and_takes_no_number(opened: Opened) -> None:
    store, history = opened(DELETED_DUPLICATES), HISTORIES[DELETED_DUPLICATES]
    ahead = 0
    for number, step in enumerate(history["steps"]):
        records = make_step(store, history, number)
        assert rows_of(store) == kept(step)
        ahead += step["call"]["value"] is None
        if step["call"]["value"] is None:
            assert records == []
        for ours, theirs in zip(records, logged(step), strict=False):
            assert (ours.key or b"")[:-4] == (theirs.key or b"")[:-4]
            assert sequence_of(ours) + ahead == sequence_of(theirs)
    assert ahead == 2


def sequence_of(record: OutputRecord) -> int:
    return int.from_bytes((record.key or b"")[-4:])


def test_a_delete_with_the_timestamp_of_what_it_deletes_stays_known(opened: Opened) -> None:
    store, history = opened(FORGOTTEN_DELETE), HISTORIES[FORGOTTEN_DELETE]
    for number, step in enumerate(history["steps"]):
        assert make_step(store, history, number) == logged(step)
    assert isinstance(store, VersionedStore)
    assert store.get(b"k") is None
    assert (-1, b"k", struct.pack(">q", 40_000) + b"old") in kept(history["steps"][-1])  # theirs is back
