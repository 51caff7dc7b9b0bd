"""Queries on one partition, and the merge of several partitions' answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.query import (
    Answer,
    CopyStatus,
    CountQuery,
    Failure,
    KeyQuery,
    KeysQuery,
    PositionQuery,
    Query,
    RangeQuery,
    Rows,
    Terms,
    execute,
    home_partition,
    merge_rows,
    served_by,
)
from stateline_store import (
    IsolationLevel,
    KeyValueStore,
    NotActiveError,
    NotUpToBoundError,
    Position,
    PositionBound,
    StoreContext,
    StoreState,
    TopicPartition,
)

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


def ask(
    store: KeyValueStore,
    query: Query,
    level: IsolationLevel = COMMITTED,
    bound: Position | None = None,
    *,
    copy: CopyStatus = ACTIVE,
    require_active: bool = False,
) -> Answer | Failure:
    terms = Terms(store.name, level, PositionBound(bound or Position()), require_active)
    return execute(query, store.reader(level), 0, terms, copy)


def rows(outcome: Answer | Failure) -> list[tuple[bytes, bytes]]:
    assert isinstance(outcome, Answer)
    return list(outcome.rows.entries)


def test_a_committed_read_sees_what_was_committed_and_its_position(store: KeyValueStore) -> None:
    outcome = ask(store, KeyQuery(b"b"))
    assert isinstance(outcome, Answer)
    assert list(outcome.rows.entries) == [(b"b", b"1")]
    assert outcome.position == at(5)


def test_an_uncommitted_read_sees_what_is_staged_and_its_position(store: KeyValueStore) -> None:
    outcome = ask(store, KeyQuery(b"b"), UNCOMMITTED)
    assert isinstance(outcome, Answer)
    assert list(outcome.rows.entries) == []
    assert outcome.position == at(7)


def test_keys_answers_those_that_are_there(store: KeyValueStore) -> None:
    assert rows(ask(store, KeysQuery((b"f", b"x", b"b")))) == [(b"f", b"3"), (b"b", b"1")]


def test_a_range_includes_both_ends(store: KeyValueStore) -> None:
    assert rows(ask(store, RangeQuery(b"b", b"d"))) == [(b"b", b"1"), (b"d", b"2")]


def test_a_range_goes_down_when_asked(store: KeyValueStore) -> None:
    assert [key for key, _ in rows(ask(store, RangeQuery(reverse=True), UNCOMMITTED))] == [b"f", b"e", b"d"]


def test_a_range_of_exchanged_ends_is_empty(store: KeyValueStore) -> None:
    assert rows(ask(store, RangeQuery(b"f", b"b"))) == []


def test_a_limit_that_leaves_entries_out_says_so(store: KeyValueStore) -> None:
    outcome = ask(store, RangeQuery(limit=2))
    assert isinstance(outcome, Answer)
    assert outcome.rows.truncated
    assert len(outcome.rows.entries) == 2


def test_a_limit_that_is_just_reached_leaves_nothing_out(store: KeyValueStore) -> None:
    outcome = ask(store, RangeQuery(limit=3))
    assert isinstance(outcome, Answer)
    assert not outcome.rows.truncated


def test_a_scan_stops_at_its_share_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.query.MAX_RESULT_BYTES", 100)
    store = KeyValueStore("big", persistent=False)
    store.init(StoreContext("0_0", tmp_path))
    store.put_all([(bytes([i]), b"x" * 60) for i in range(9)])
    outcome = ask(store, RangeQuery(), UNCOMMITTED)
    assert isinstance(outcome, Answer)
    assert (len(outcome.rows.entries), outcome.rows.truncated) == (2, True)


def test_a_count_is_of_entries(store: KeyValueStore) -> None:
    outcome = ask(store, CountQuery())
    assert isinstance(outcome, Answer)
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
        assert isinstance(outcome, Answer)
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
    assert isinstance(ask(store, KeyQuery(b"b"), copy=copy), Answer)


@pytest.mark.parametrize(("key", "hashed"), [(b"21", 1173551340), (b"foobar", 1357151166)])
def test_a_key_is_at_home_where_kafkas_partitioner_puts_it(key: bytes, hashed: int) -> None:
    # From Kafka's UtilsTest: murmur2("21") = -973932308, murmur2("foobar") = -790332482.
    assert [home_partition(key, n) for n in (1, 4, 1000)] == [hashed % n for n in (1, 4, 1000)]


entries = st.dictionaries(st.binary(max_size=3), st.binary(max_size=2), max_size=12)


@given(st.lists(entries, min_size=1, max_size=4), st.integers(1, 8), st.booleans(), st.integers(1, 5))
def test_merged_scans_are_the_head_of_all_entries_in_order(
    parts: list[dict[bytes, bytes]], limit: int, reverse: bool, share: int
) -> None:
    """`share` is where each partition stops early, as one whose entries are large does."""
    scans = []
    for part in parts:
        ordered = sorted(part.items(), reverse=reverse)
        stop = min(limit, share)
        scans.append(Rows(ordered[:stop], truncated=len(ordered) > stop))
    everything = sorted((e for part in parts for e in part.items()), key=lambda e: e[0], reverse=reverse)
    merged = merge_rows(scans, RangeQuery(limit=limit, reverse=reverse))
    keys = [key for key, _ in merged.entries]
    assert keys == [key for key, _ in everything[: len(keys)]]
    assert merged.truncated == (len(keys) < len(everything))
    if share >= limit:
        assert len(keys) == min(limit, len(everything))


def test_counts_add_up() -> None:
    assert merge_rows([Rows(count=2), Rows(count=3)], CountQuery()).count == 5
