"""Queries on one partition: what it answers, at which bound, and what a scan leaves to be read on."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateline.query.execution import execute
from stateline.query.kinds import check_answered, sort_key
from stateline.query.open_scan import MAX_CHUNKS, OpenScan
from stateline.query.values import CopyStatus, Entry, Failure, PartitionAnswer, QueryRows, Terms, served_by
from stateline.serde.partitioner import home_partition
from stateline.server.routing.query_routing import has_entries
from stateline_store import (
    CountQuery,
    IsolationLevel,
    KeyQuery,
    KeysQuery,
    KeyValueStore,
    MultiVersionedKeyQuery,
    NotActiveError,
    NotUpToBoundError,
    Order,
    Position,
    PositionBound,
    PositionQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    SessionStore,
    StoreContext,
    StoreState,
    TimestampedKeyValueStore,
    TopicPartition,
    UnknownQueryTypeError,
    VersionedKeyQuery,
    VersionedKeysQuery,
    VersionedPrefixQuery,
    VersionedRangeQuery,
    VersionedStore,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
    WindowStore,
)
from stateline_store.reads.session_reads import sessions_of
from stateline_store.reads.window_reads import windows_of
from stateline_store.scan import LARGEST_CHUNK, LARGEST_CHUNK_BYTES

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
ACTIVE = CopyStatus("active", 0, 0, 0)


@pytest.fixture(params=[True, False], ids=["persistent", "in memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueStore]:
    """A store with b, d, f committed at offset 5, then e put and b deleted, staged at offset 7."""
    store = KeyValueStore("letters", persistent=request.param)
    store.init(StoreContext("0_0", tmp_path))
    store.put_all([(b"b", b"1"), (b"d", b"2"), (b"f", b"3")])
    store.advance(at(5))
    store.commit({})
    store.put(b"e", b"4")
    store.delete(b"b")
    store.advance(at(7))
    yield store
    store.close()


def at(offset: int, topic: str = "input", partition: int = 0) -> Position:
    return Position.of({TopicPartition(topic, partition): offset})


def rest_of(outcome: PartitionAnswer | Failure) -> OpenScan:
    """What a scan left, which says itself that there is more."""
    assert isinstance(outcome, PartitionAnswer)
    assert isinstance(outcome.rows.rest, OpenScan)
    return outcome.rows.rest


def ask(
    store: KeyValueStore,
    query: Query[Any],
    level: IsolationLevel = COMMITTED,
    bound: Position | None = None,
    *,
    copy: CopyStatus = ACTIVE,
    require_active: bool = False,
    limit: int = 1000,
) -> PartitionAnswer | Failure:
    terms = Terms(store.name, level, PositionBound(bound or Position()), require_active, limit)
    return execute(query, store.reader(level), store.stored_schema, 0, terms, copy)


def rows(outcome: PartitionAnswer | Failure) -> list[Entry]:
    assert isinstance(outcome, PartitionAnswer)
    return list(outcome.rows.entries)


def all_rows(outcome: PartitionAnswer | Failure) -> list[Entry]:
    """All entries: a scan that looks at many rows gives some of them at a time."""
    assert isinstance(outcome, PartitionAnswer)
    found, rest = [*outcome.rows.entries], outcome.rows.rest
    while rest is not None:
        assert isinstance(rest, OpenScan)
        more = rest.rows(9)
        found, rest = [*found, *more.entries], more.rest
    return found


def test_a_committed_read_sees_what_was_committed_and_its_position(store: KeyValueStore) -> None:
    outcome = ask(store, KeyQuery(b"b"))
    assert isinstance(outcome, PartitionAnswer)
    assert list(outcome.rows.entries) == [(b"b", b"1")]
    assert outcome.position == at(5)


def test_an_uncommitted_read_sees_what_is_staged_and_its_position(store: KeyValueStore) -> None:
    outcome = ask(store, KeyQuery(b"b"), UNCOMMITTED)
    assert isinstance(outcome, PartitionAnswer)
    assert list(outcome.rows.entries) == []
    assert outcome.position == at(7)


def test_keys_answers_those_that_are_there(store: KeyValueStore) -> None:
    assert rows(ask(store, KeysQuery((b"f", b"x", b"b")))) == [(b"f", b"3"), (b"b", b"1")]


def test_a_range_includes_both_ends(store: KeyValueStore) -> None:
    assert rows(ask(store, RangeQuery(b"b", b"d"))) == [(b"b", b"1"), (b"d", b"2")]


def test_a_range_goes_down_when_asked(store: KeyValueStore) -> None:
    assert [key for key, _ in rows(ask(store, RangeQuery(order=Order.DESCENDING), UNCOMMITTED))] == [b"f", b"e", b"d"]


def test_a_range_of_exchanged_ends_is_empty_and_fills_no_log(
    store: KeyValueStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert rows(ask(store, RangeQuery(b"f", b"b"))) == []
    assert not caplog.records


def test_a_limit_that_leaves_entries_out_says_so(store: KeyValueStore) -> None:
    outcome = ask(store, RangeQuery(), limit=2)
    assert rows(outcome) == [(b"b", b"1"), (b"d", b"2")]
    rest_of(outcome).close()


def test_a_limit_that_is_just_reached_leaves_nothing_out(store: KeyValueStore) -> None:
    outcome = ask(store, RangeQuery(), limit=3)
    assert isinstance(outcome, PartitionAnswer)
    assert outcome.rows.rest is None


def test_a_scan_stops_at_its_share_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.query.open_scan.MAX_RESULT_BYTES", 100)
    store = KeyValueStore("big", persistent=False)
    store.init(StoreContext("0_0", tmp_path))
    store.put_all([(bytes([i]), b"x" * 60) for i in range(9)])
    outcome = ask(store, RangeQuery(), UNCOMMITTED)
    assert isinstance(outcome, PartitionAnswer)
    assert len(outcome.rows.entries) == 2
    rest = rest_of(outcome)
    assert [len(rest.rows(9).entries) for _ in range(5)] == [2, 2, 2, 1, 0]
    assert rest.rows(9).rest is None
    store.close()


@pytest.mark.parametrize("level", IsolationLevel)
def test_the_rest_of_a_scan_is_of_the_state_it_began_with(store: KeyValueStore, level: IsolationLevel) -> None:
    before = rows(ask(store, RangeQuery(), level))
    rest = rest_of(outcome := ask(store, RangeQuery(), level, limit=1))
    store.put_all([(b"c", b"new"), (b"f", b"changed"), (b"z", b"new")])
    store.commit({})
    assert [*rows(outcome), *rest.rows(1).entries, *rest.rows(99).entries] == before
    rest.close()
    assert len(rows(ask(store, RangeQuery(), level))) > len(before)


def test_a_rest_that_was_closed_has_nothing_more(store: KeyValueStore) -> None:
    rest = rest_of(ask(store, RangeQuery(), limit=1))
    rest.close()
    rest.close()
    assert rest.rows(9) == QueryRows([])


@given(
    st.lists(st.tuples(st.binary(max_size=3) | st.sampled_from([b"a", b"a\0", b"a\0\0"]), st.integers(0, 400_000))),
    st.booleans(),
)
def test_windows_of_all_keys_are_in_the_order_that_partitions_are_merged_by(
    puts: list[tuple[bytes, int]], reverse: bool
) -> None:
    windows = WindowStore("w", retention_ms=10**6, window_size_ms=10, persistent=False)
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(windows):
        windows.init(StoreContext("0_0", Path(directory)))
        for key, start in puts:
            windows.put(key, b"v", start)
        terms, query = Terms("w", UNCOMMITTED), WindowRangeQuery(order=Order.DESCENDING if reverse else Order.ASCENDING)
        outcome = execute(query, windows.reader(UNCOMMITTED), windows.stored_schema, 0, terms, ACTIVE)
    assert isinstance(outcome, PartitionAnswer)
    order = sort_key(query, {outcome.rows.interval_ms})
    assert order is not None
    assert rows(outcome) == sorted(rows(outcome), key=order, reverse=reverse)
    assert len(rows(outcome)) == len(set(puts))


@given(
    st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 400_000)), max_size=30),
    st.integers(0, 400_000) | st.none(), st.integers(0, 400_000) | st.none(), st.integers(50_000, 10**6), st.booleans(),
)  # fmt: skip
def test_stored_rows_are_those_that_a_query_shows_in_the_same_order(
    puts: list[tuple[bytes, int]], first: int | None, last: int | None, retention_ms: int, reverse: bool
) -> None:
    windows = WindowStore("w", retention_ms=retention_ms, window_size_ms=10, persistent=False)
    order = Order.DESCENDING if reverse else Order.ASCENDING
    query = WindowRangeQuery(time_from=first, time_to=last, order=order)
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(windows):
        windows.init(StoreContext("0_0", Path(directory)))
        for key, start in puts:
            windows.put(key, b"v", start)
        windows.commit({})
        reader, terms = windows.reader(IsolationLevel.READ_COMMITTED), Terms("w", IsolationLevel.READ_COMMITTED)
        shown, stored = (
            execute(query, reader, windows.stored_schema, 0, each, ACTIVE)
            for each in (terms, replace(terms, stored_rows=True))
        )
    assert isinstance(stored, PartitionAnswer)
    assert windows_of(list[Any](stored.rows.entries), 10) == rows(shown)
    keys = [key for key, _ in stored.rows.entries]
    assert keys == sorted(keys, reverse=reverse)


@given(
    st.lists(st.tuples(st.binary(max_size=3) | st.sampled_from([b"a", b"a\0", b"a\0\0\0", b"ab"]),
                       st.integers(0, 400_000), st.integers(0, 200_000)), max_size=30),
    st.integers(0, 400_000) | st.none(), st.integers(0, 400_000) | st.none(), st.integers(50_000, 10**6), st.booleans(),
)  # fmt: skip
@example(
    puts=[(b"", 0, 60_000), (b"", 0, 120_000), (b"\0", 0, 0)], first=None, last=None, retention_ms=60_002, reverse=True
)  # whose first step gives some of them
def test_stored_sessions_are_those_that_a_query_shows_in_the_order_of_their_sort_key(
    puts: list[tuple[bytes, int, int]], first: int | None, last: int | None, retention_ms: int, reverse: bool
) -> None:
    sessions = SessionStore("s", retention_ms=retention_ms, persistent=False)
    order = Order.DESCENDING if reverse else Order.ASCENDING
    query = SessionRangeQuery(time_from=first, time_to=last, order=order)
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(sessions):
        sessions.init(StoreContext("0_0", Path(directory)))
        for key, start, length in puts:
            sessions.put(Windowed(key, start, start + length), b"v")
        sessions.commit({})
        reader, terms = sessions.reader(IsolationLevel.READ_COMMITTED), Terms("s", IsolationLevel.READ_COMMITTED)
        shown, stored = (
            all_rows(execute(query, reader, sessions.stored_schema, 0, each, ACTIVE))
            for each in (terms, replace(terms, stored_rows=True))
        )
        newest, oldest = reader.stream_time_ms, max(0, reader.stream_time_ms - retention_ms + 1)
    found = list[Any](stored)
    assert sessions_of(found) == shown
    by_stored, by_shown = sort_key(query, set(), stored=True), sort_key(query, set())
    assert by_stored is not None
    assert by_shown is not None
    assert found == sorted(found, key=by_stored, reverse=reverse)
    readable = {
        Windowed(key, start, start + length)
        for key, start, length in puts
        if max(oldest, first or 0) <= start + length <= min(newest, newest if last is None else last)
    }
    expected = sorted(((window, b"v") for window in readable), key=by_shown, reverse=reverse)
    assert shown == expected


def test_a_scan_that_looks_at_many_rows_in_vain_lets_others_in_between(tmp_path: Path) -> None:
    windows = WindowStore("w", retention_ms=10**9, window_size_ms=10, persistent=False)
    windows.init(StoreContext("0_0", tmp_path))
    for at_ms in range(MAX_CHUNKS * LARGEST_CHUNK * 2):
        windows.put(b"key", b"v", at_ms)
    last = WindowRangeQuery(time_from=at_ms)
    outcome = execute(last, windows.reader(UNCOMMITTED), windows.stored_schema, 0, Terms("w", UNCOMMITTED), ACTIVE)
    assert rows(outcome) == []
    found = rest_of(outcome).rows(9)
    while found.rest is not None and not found.entries:
        found = rest_of(outcome).rows(9)
    assert found.entries == [(Windowed(b"key", at_ms, at_ms + 10), b"v")]
    windows.close()


def test_a_scan_of_one_key_has_entries_also_when_many_rows_come_before_them(tmp_path: Path) -> None:
    sessions = SessionStore("s", retention_ms=10**9, persistent=False)
    sessions.init(StoreContext("0_0", tmp_path))
    for at_ms in range(MAX_CHUNKS * LARGEST_CHUNK * 2):
        sessions.put(Windowed(b"key", at_ms, at_ms), b"v")
    terms = Terms("s", UNCOMMITTED)
    for time_to, found in ((0, [(Windowed(b"key", 0, 0), b"v")]), (-1, [])):
        query = SessionKeyQuery(b"key", time_to=time_to, order=Order.DESCENDING)
        answer = execute(query, sessions.reader(UNCOMMITTED), sessions.stored_schema, 0, terms, ACTIVE)
        assert isinstance(answer, PartitionAnswer)
        assert rows(answer) == []
        assert asyncio.run(has_entries(answer, 9)) is bool(found)
        assert rows(answer) == found
    sessions.close()


def test_large_versions_are_not_read_ahead(tmp_path: Path) -> None:
    store = VersionedStore("v", history_retention_ms=10**9)
    store.init(StoreContext("0_0", tmp_path))
    for at_ms in range(20):
        store.put(b"key", bytes(200_000), at_ms)
    terms, query = Terms("v", UNCOMMITTED, limit=1), MultiVersionedKeyQuery(b"key", order=Order.ASCENDING)
    rest = rest_of(execute(query, store.reader(UNCOMMITTED), store.stored_schema, 0, terms, ACTIVE))
    assert rest.held_bytes < LARGEST_CHUNK_BYTES + 200_000
    assert sum(len(rest.rows(20).entries) for _ in range(3)) == 19
    store.close()


def test_a_page_of_a_time_does_not_wait_for_all_that_came_later(tmp_path: Path) -> None:
    store = VersionedStore("v", history_retention_ms=10**6, persistent=False)
    store.init(StoreContext("0_0", tmp_path))
    for at_ms in (0, 300_000, 600_000):  # what was replaced last is in a segment that has nothing of the first time
        for n in range(MAX_CHUNKS * LARGEST_CHUNK):
            store.put(b"%05d" % n, b"v", at_ms)
    query, terms = VersionedRangeQuery(as_of=0), Terms("v", UNCOMMITTED, limit=9)
    outcome = execute(query, store.reader(UNCOMMITTED), store.stored_schema, 0, terms, ACTIVE)
    assert [key for key, _ in rows(outcome)] == [b"%05d" % n for n in range(9)]
    rest_of(outcome).close()
    store.close()


def test_closing_one_rest_leaves_the_others(store: KeyValueStore) -> None:
    rest = rest_of(ask(store, RangeQuery(), limit=1))
    rest_of(ask(store, RangeQuery(), limit=1)).close()
    assert rest.rows(9).entries == [(b"d", b"2"), (b"f", b"3")]
    rest.close()


@pytest.mark.parametrize(
    ("query", "kind", "able"),
    [
        (KeyQuery, "window", "'key': ask for windows or count"),
        (VersionedKeyQuery, "key_value", "as_of: ask for key, keys, range or count"),
        (VersionedKeysQuery, "timestamped_key_value", "as_of: ask for key, keys, range or count"),
        (VersionedKeysQuery, "window", "'keys': ask for windows or count"),
        (VersionedRangeQuery, "key_value", "as_of: ask for key, keys, range or count"),
        (VersionedPrefixQuery, "timestamped_key_value", "as_of: ask for key, keys, range or count"),
        (VersionedPrefixQuery, "session", "'range': ask for sessions or count"),
        (WindowKeyQuery, "versioned", "'windows': ask for key, keys, range, versions or count"),
        (SessionRangeQuery, "window", "'sessions': ask for windows or count"),
        (WindowKeyQuery, "session", "'windows': ask for sessions or count"),
        (WindowRangeQuery, "session", "'windows': ask for sessions or count"),
        (MultiVersionedKeyQuery, "key_value", "'versions': ask for key, keys, range or count"),
        (WindowKeyQuery, "timestamped_key_value", "'windows': ask for key, keys, range or count"),
        (KeyQuery, "timestamped_window", "'key': ask for windows or count"),
        (WindowRangeQuery, "timestamped_session", "'windows': ask for sessions or count"),
    ],
)
def test_a_kind_that_cannot_answer_says_what_it_can(query: type[Query[Any]], kind: str, able: str) -> None:
    with pytest.raises(UnknownQueryTypeError, match=f"of kind {kind} and cannot answer {able}[.]$"):
        check_answered(query, "letters", kind)


def test_values_come_as_they_are_stored_also_from_a_timestamped_store(tmp_path: Path) -> None:
    store = TimestampedKeyValueStore("stamped", persistent=False)
    store.init(StoreContext("0_0", tmp_path))
    store.put_with_timestamp(b"k", b"v", 7)
    for query in (KeyQuery(b"k"), KeysQuery((b"k",)), RangeQuery(), PrefixQuery(b"k")):
        assert rows(ask(store, query, UNCOMMITTED)) == [(b"k", bytes(7) + b"\x07" + b"v")]
    store.close()


def test_a_count_is_of_entries(store: KeyValueStore) -> None:
    outcome = ask(store, CountQuery())
    assert isinstance(outcome, PartitionAnswer)
    assert outcome.rows.count == 3


@pytest.mark.parametrize(
    ("level", "bound", "met"),
    [
        (COMMITTED, Position(), True),
        (COMMITTED, at(5), True),
        (COMMITTED, at(6), False),
        (UNCOMMITTED, at(7), True),
        (UNCOMMITTED, at(8), False),
        (COMMITTED, at(0, topic="unknown"), False),
        (COMMITTED, at(99, partition=1), True),
    ],
)
def test_a_bound_is_held_against_what_the_reader_sees(
    store: KeyValueStore, level: IsolationLevel, bound: Position, met: bool
) -> None:
    outcome = ask(store, PositionQuery(), level, bound)
    if met:
        assert isinstance(outcome, PartitionAnswer)
    else:
        assert isinstance(outcome, Failure)
        assert isinstance(outcome.error, NotUpToBoundError)
        assert outcome.position == (at(5) if level is COMMITTED else at(7))


@pytest.mark.parametrize("state", [StoreState.STANDBY, StoreState.RESTORING, StoreState.CLOSED])
def test_require_active_refuses_every_other_copy(store: KeyValueStore, state: StoreState) -> None:
    copy = CopyStatus(served_by(state), 0, 0, 0)
    outcome = ask(store, KeyQuery(b"b"), copy=copy, require_active=True)
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, NotActiveError)
    assert isinstance(ask(store, KeyQuery(b"b"), copy=copy), PartitionAnswer)


@pytest.mark.parametrize(("key", "hashed"), [(b"21", 1173551340), (b"foobar", 1357151166)])
def test_a_key_is_at_home_where_kafkas_partitioner_puts_it(key: bytes, hashed: int) -> None:
    # From Kafka's UtilsTest: murmur2("21") = -973932308, murmur2("foobar") = -790332482.
    assert [home_partition(key, n) for n in (1, 4, 1000)] == [hashed % n for n in (1, 4, 1000)]
