"""What every key-value store does: plain and timestamped, in RocksDB and in memory."""

from collections.abc import Callable, Iterable

import pytest

from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    KeyValueStore,
    Position,
    StoreClosedError,
    StoreContext,
    TopicPartition,
)

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
CHANGELOG = TopicPartition("changelog", 0)
INPUT = TopicPartition("input", 0)


def committed(store: KeyValueStore) -> dict[bytes, bytes]:
    """Committed values by key, whatever the format."""
    cut = 8 if store.timestamped else 0
    return {key: value[cut:] for key, value in store.reader(COMMITTED).range(None, None)}


def fill(store: KeyValueStore, keys: bytes = b"abcde") -> None:
    """Half committed, half staged, so that every scan merges."""
    store.put_all((bytes([k]), b"old") for k in keys)
    store.commit({})
    store.put_all((bytes([k]), b"new") for k in keys[::2])


def test_the_owner_sees_what_it_staged_and_a_committed_reader_does_not(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    assert store.get(b"a") == b"1"
    assert store.reader(COMMITTED).get(b"a") is None
    assert store.reader(UNCOMMITTED).get(b"a") is not None
    store.commit({})
    assert committed(store) == {b"a": b"1"}


def test_a_commit_makes_puts_and_deletes_visible_together(store: KeyValueStore) -> None:
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    store.commit({})
    store.put(b"c", b"3")
    assert store.delete(b"a") == b"1"
    assert committed(store) == {b"a": b"1", b"b": b"2"}
    store.commit({})
    assert committed(store) == {b"b": b"2", b"c": b"3"}


def test_a_rollback_drops_records_and_position(store: KeyValueStore) -> None:
    fill(store)
    store.advance(Position.of({INPUT: 9}))
    store.rollback()
    assert dict(store.all()) == dict.fromkeys([b"a", b"b", b"c", b"d", b"e"], b"old")
    assert store.position(UNCOMMITTED) == Position()
    assert store.staged_records == store.approximate_num_uncommitted_bytes == 0
    store.put(b"z", b"1")
    store.commit({})
    assert committed(store)[b"a"] == b"old"


def test_positions_part_while_records_are_staged_and_meet_at_the_commit(store: KeyValueStore) -> None:
    store.commit({}, position=Position.of({INPUT: 3}))
    store.advance(Position.of({INPUT: 5}))
    store.advance(Position.of({INPUT: 4}))
    assert store.position(COMMITTED).get("input", 0) == 3
    assert store.position(UNCOMMITTED).get("input", 0) == 5
    assert store.reader(COMMITTED).position.get("input", 0) == 3
    assert store.reader(UNCOMMITTED).position.get("input", 0) == 5
    store.commit({})
    assert store.position(COMMITTED) == store.position(UNCOMMITTED) == Position.of({INPUT: 5})


def test_empty_bytes_are_a_value_and_an_empty_key_is_a_key(store: KeyValueStore) -> None:
    store.put(b"", b"")
    assert store.get(b"") == b""
    store.commit({})
    assert store.get(b"") == b""
    store.commit({CHANGELOG: 1})  # a commit without records leaves it alone
    assert committed(store) == {b"": b""}


def test_none_deletes(store: KeyValueStore) -> None:
    fill(store)
    store.put(b"a", None)
    store.put_all([(b"b", None), (b"nothing", None)])
    assert store.get(b"a") is None
    assert [key for key, _ in store.all()] == [b"c", b"d", b"e"]
    store.commit({})
    assert sorted(committed(store)) == [b"c", b"d", b"e"]


def test_put_if_absent_keeps_what_is_there(store: KeyValueStore) -> None:
    assert store.put_if_absent(b"a", b"1") is None
    assert store.put_if_absent(b"a", b"2") == b"1"
    store.commit({})
    assert store.put_if_absent(b"a", b"3") == b"1"
    store.delete(b"a")
    assert store.put_if_absent(b"a", b"4") is None
    assert store.get(b"a") == b"4"


def test_put_all_goes_through_the_buffer_and_a_null_key_stages_nothing(store: KeyValueStore) -> None:
    store.put_all([(b"a", b"1"), (b"a", b"2")])
    assert (store.staged_records, committed(store)) == (1, {})
    with pytest.raises(ValueError, match="nothing was staged"):
        store.put_all([(b"b", b"1"), (None, b"2")])  # type: ignore[list-item]  # the mistake under test
    assert dict(store.all()) == {b"a": b"2"}


def test_rows_are_read_and_staged_many_at_once(store: KeyValueStore) -> None:
    fill(store)
    keys = [b"b", b"zz", b"a", b"b", b"e"]
    assert store.get_rows(keys) == [store.reader(UNCOMMITTED).get(key) for key in keys]
    assert store.get_rows([]) == []
    store.put_rows({b"a": None, b"zz": store.get_rows([b"b"])[0]})
    assert (store.get(b"a"), store.get(b"zz")) == (None, b"old")
    store.commit({})
    assert store.get_rows([b"a", b"zz"]) == [None, store.reader(COMMITTED).get(b"b")]
    with pytest.raises(InvalidArgumentError):
        store.get_rows([b"b", "text"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError):
        store.put_rows({b"b": b"12345678new", b"c": 5})  # type: ignore[dict-item]
    assert store.get(b"b") == b"old"
    store.close()
    with pytest.raises(StoreClosedError):
        store.get_rows([b"b"])
    with pytest.raises(StoreClosedError):
        store.put_rows({})


def test_a_range_includes_both_ends_in_either_order(store: KeyValueStore) -> None:
    fill(store)
    assert [key for key, _ in store.range(b"b", b"d")] == [b"b", b"c", b"d"]
    assert [key for key, _ in store.range(b"b", b"d", reverse=True)] == [b"d", b"c", b"b"]
    assert [key for key, _ in store.range(b"d", None)] == [b"d", b"e"]
    assert [key for key, _ in store.range(None, b"b", reverse=True)] == [b"b", b"a"]
    assert list(store.range(b"aa", b"ab")) == []


def test_a_prefix_scan_ends_before_its_successor(store: KeyValueStore) -> None:
    keys = [b"a", b"ab", b"ab\xff", b"ac", b"\xff", b"\xff\xff\x01"]
    store.put_all((key, b"1") for key in keys[::2])
    store.commit({})
    store.put_all((key, b"1") for key in keys[1::2])
    assert [key for key, _ in store.prefix_scan(b"ab")] == [b"ab", b"ab\xff"]
    assert [key for key, _ in store.prefix_scan(b"\xff")] == [b"\xff", b"\xff\xff\x01"]
    assert [key for key, _ in store.prefix_scan(b"", reverse=True)] == sorted(keys, reverse=True)
    assert [key for key, _ in store.reader(COMMITTED).prefix_scan(b"a")] == [b"a", b"ab\xff"]


def test_lower_above_upper_is_empty_and_warns(store: KeyValueStore, caplog: pytest.LogCaptureFixture) -> None:
    fill(store)
    assert list(store.range(b"d", b"b")) == []
    assert "is empty" in caplog.text
    assert list(store.reader(COMMITTED).range(b"d", b"b", reverse=True)) == []


def test_offset_rows_never_appear_among_the_data(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    store.commit({CHANGELOG: 7}, position=Position.of({INPUT: 7}))
    assert dict(store.all()) == committed(store) == {b"a": b"1"}
    assert store.get(b"position") is None
    assert store.get(str(CHANGELOG).encode()) is None


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_an_open_iterator_survives_writes_commits_and_rollbacks(store: KeyValueStore, level: IsolationLevel) -> None:
    fill(store)
    expected = list(store.reader(level).range(None, None))
    scans = []
    for action in (store.rollback, lambda: store.commit({}), lambda: store.commit({})):
        fill(store)
        expected = list(store.reader(level).range(None, None))
        scan = store.reader(level).range(None, None)
        scans.append((expected, scan, next(scan)))
        store.put_all([(b"a", None), (b"bb", b"x"), (b"e", None)])
        action()
        store.put(b"c", None)
    for expected, scan, first in scans:
        assert [first, *scan] == expected


def test_the_owner_may_write_while_iterating(store: KeyValueStore) -> None:
    fill(store)
    for key, _ in store.all():
        store.put(key, None)
        store.put(b"z" + key, b"moved")
        store.commit({})
    assert list(store.all()) == [(b"z" + bytes([k]), b"moved") for k in b"abcde"]


def test_staged_has_one_entry_per_changed_key_in_order(store: KeyValueStore) -> None:
    store.put(b"b", b"1")
    store.put(b"a", b"1")
    store.put(b"b", b"2")
    store.put(b"c", None)
    cut = 8 if store.timestamped else 0
    assert [(k, v and v[cut:]) for k, v in store.staged()] == [(b"a", b"1"), (b"b", b"2"), (b"c", None)]


def test_a_commit_of_nothing_spends_no_number(store: KeyValueStore) -> None:
    store.commit({CHANGELOG: 1}, position=Position.of({INPUT: 1}))
    assert store.commit_number == 1
    store.commit({CHANGELOG: 1}, position=Position.of({INPUT: 1}))
    store.commit({})
    assert store.commit_number == 1
    store.commit({CHANGELOG: 2})
    assert store.commit_number == 2


def test_a_reopened_store_keeps_what_it_promises_to(make: Callable[[], KeyValueStore], context: StoreContext) -> None:
    store = make()
    store.init(context)
    store.put(b"a", b"1")
    store.commit({CHANGELOG: 7}, position=Position.of({INPUT: 3}))
    committed_at = store.committed_at_ms
    store.put(b"b", b"dropped")
    store.close()
    store = make()
    store.init(context)
    assert store.manages_offsets is store.persistent
    if store.persistent:
        assert dict(store.all()) == {b"a": b"1"}
        assert store.committed_offset(CHANGELOG) == 7
        assert store.position(COMMITTED).get("input", 0) == 3
        assert (store.commit_number, store.committed_at_ms) == (1, committed_at)
    else:
        assert list(store.all()) == []
        assert store.committed_offset(CHANGELOG) is None
        assert store.position(COMMITTED) == Position()
    assert store.committed_offset(TopicPartition("other", 0)) is None
    store.close()


def test_a_closed_store_refuses_everything(make: Callable[[], KeyValueStore], context: StoreContext) -> None:
    store = make()
    for _ in range(2):
        assert not store.is_open
        for call in (
            lambda: store.get(b"a"),
            lambda: store.put(b"a", b"1"),
            lambda: store.put_all([(b"a", b"1")]),
            lambda: store.delete(b"a"),
            lambda: store.all(),
            lambda: store.commit({}),
            lambda: store.rollback(),
            lambda: store.reader(COMMITTED),
            lambda: store.position(COMMITTED),
        ):
            with pytest.raises(StoreClosedError):
                call()
        store.init(context)
        with pytest.raises(StoreClosedError):
            store.init(context)
        store.close()
        store.close()


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_closing_under_an_iterator_never_looks_like_the_end_of_data(
    make: Callable[[], KeyValueStore], context: StoreContext, level: IsolationLevel
) -> None:
    store = make()
    store.init(context)
    fill(store)
    reader = store.reader(level)
    scan = reader.range(None, None)
    next(scan)
    store.close()
    with pytest.raises(StoreClosedError):
        list(scan)
    with pytest.raises(StoreClosedError):
        reader.get(b"b")
    store.init(context)  # and the open scan does not keep the directory locked
    store.close()


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_closing_under_a_loop_over_a_scan_that_nobody_else_holds_never_looks_like_the_end_of_data(
    make: Callable[[], KeyValueStore], context: StoreContext, level: IsolationLevel, staged: bool, in_chunks: bool
) -> None:
    store = make()
    store.init(context)
    store.put_all([(b"%03d" % n, b"v") for n in range(100)])
    store.commit({})
    if staged:
        store.put(b"050", b"staged")
    reader = store.reader(level)
    seen = 0

    def look() -> None:
        nonlocal seen
        scan: Iterable[object] = reader.range(None, None).chunks() if in_chunks else reader.range(None, None)
        rows = iter(scan)
        del scan  # as in `for row in store.all():`
        for _ in rows:
            seen += 1
            store.close()

    with pytest.raises(StoreClosedError):
        look()
    assert seen < 100
    store.init(context)  # and the open loop does not keep the directory locked
    store.close()


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_a_scan_that_is_closed_within_a_loop_ends_it(store: KeyValueStore, level: IsolationLevel) -> None:
    fill(store)
    seen = []
    scan = store.reader(level).range(None, None)
    for row in scan:
        seen.append(row)
        scan.close()
    assert len(seen) == 1
    assert list(scan) == []


def test_staged_changes_are_those_of_the_moment_however_late_they_are_read(store: KeyValueStore) -> None:
    store.put(b"a", b"1")
    changes = store.staged_changes()
    store.put(b"b", b"2")
    store.commit({})
    assert [change.key for change in changes] == [b"a"]
    store.close()
    with pytest.raises(StoreClosedError):
        store.staged_changes()


def test_a_forgotten_topic_is_out_of_the_position_at_once_and_after_a_reopening(
    store: KeyValueStore, context: StoreContext
) -> None:
    store.put(b"a", b"1")
    store.commit({CHANGELOG: 4}, position=Position({"input": {0: 3}, "gone": {0: 7}}))
    number = store.commit_number
    store.forget("gone")
    assert store.position(COMMITTED) == Position({"input": {0: 3}})
    assert store.commit_number == number + 1
    store.forget("never there")
    assert store.commit_number == number + 1
    if store.persistent:
        store.close()
        store.init(context)
        assert store.position(COMMITTED) == Position({"input": {0: 3}})
        assert store.committed_offset(CHANGELOG) == 4
        assert committed(store) == {b"a": b"1"}
