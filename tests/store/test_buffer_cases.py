"""Kafka Streams' suites for the transaction buffer (KIP-892), case by case: where each one is held here.

Tests without a file name are in this file; `buffer` is `test_transaction_buffer.py`. The buffer here knows no backend:
"commit" and "rollback" are the store's, so those cases run over every store of the contract suite.

| AbstractTransactionBufferTest | here |
|---|---|
| getStaged{ValueReturnsOptionalOfValue,TombstoneReturns…} | test_a_staged_value_a_tombstone_and_nothing_stay_apart |
| getUnstaggedKeyReturnsNull | test_a_staged_value_a_tombstone_and_nothing_stay_apart |
| isEmptyAndZeroBytesOnFreshBuffer, isNotEmptyAfterStage | test_bytes_count_keys_values_and_a_fixed_rest |
| byteCount{ReflectsStagedValue,ReflectsStagedTombstone,…} | test_bytes_count_keys_values_and_a_fixed_rest |
| commit{ClearsPendingWritesAndBytes,FlushesWritesToBase} | test_a_commit_moves_what_is_staged_and_frees_its_bytes |
| commitFlushesTombstoneToBase | test_a_commit_moves_what_is_staged_and_frees_its_bytes |
| subsequentBatchAfterCommitIsIndependent | test_what_is_staged_after_a_commit_stands_alone |
| rollback{ClearsPendingWritesAndBytes,LeavesBaseUnchanged} | test_a_rollback_leaves_the_base_and_nothing_else |
| rollbackDiscardsNewEntries | test_a_rollback_leaves_the_base_and_nothing_else |
| all{ForwardMergesStagedAndBase,Reverse…,StagedTombstone…} | test_staged_rows_and_the_base_are_merged |
| range{Inclusive,Exclusive}UpperBound, rangeNull… | test_a_scan_covers_its_range_and_no_more |
| boundStaging… (6) | test_a_scan_covers_its_range_and_no_more |
| nonOwnerThreadCanReadStagedEntry | none: only the owner's thread reads staged rows, others ask it |
| concurrentOwnerWritesAndNonOwnerReadsAreConsistent | none, as above |
| nonOwner{All,Range}SnapshotsAtCreationTime | test_an_open_scan_does_not_see_what_is_staged_later |
| ownerStageDuringOwn{All,Range}IterationDoesNotThrow | test_an_open_scan_does_not_see_what_is_staged_later |
| nonOwnerAllSurvivesConcurrentOwnerCommit | test_an_open_scan_survives_a_commit_of_what_it_shows |

| StagedMergeIteratorTest | here |
|---|---|
| should{,Reverse}MergeDisjointStagingAndBase | test_staged_rows_and_the_base_are_merged |
| should{,Reverse}PreferStagingOverBaseForSameKey | test_staged_rows_and_the_base_are_merged |
| should{,Reverse}SkipTombstones, …SkipBaseKeyWhenStaging… | test_staged_rows_and_the_base_are_merged |
| shouldHandle{EmptyStaging,EmptyBase,BothEmpty} | test_staged_rows_and_the_base_are_merged |
| shouldHandle{AllTombstones,ConsecutiveTombstonesInStaging} | test_staged_rows_and_the_base_are_merged |
| shouldMaintainSortOrderWithInterleavedEntries | test_staged_rows_and_the_base_are_merged |
| shouldThrowOnNextWhenExhausted | test_a_scan_at_its_end_stays_there |
| shouldThrowInvalidStateStoreExceptionOnHasNextAfterClose | test_a_scan_that_its_user_closed_has_no_more_rows |
| shouldSupportPeekNextKey | none: iterators have no peek |

A scan that its user closed has no more rows, like a generator; one that the store's close cut off raises:
test_key_value_contract.py: test_closing_under_an_iterator_never_looks_like_the_end_of_data.
Any sequence of puts against a dict is in buffer: test_a_merge_shows_what_the_base_would_hold_after_the_commit.
A put after the range of an expired segment was deleted: test_window_contract.py: test_a_put_after_expiry_is_kept.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stateline_store import IsolationLevel, KeyRange, KeyValueStore, StoreIterator, TopicPartition, TransactionBuffer
from stateline_store.rows.transaction_buffer import ENTRY_OVERHEAD
from stateline_store.scan import EVERY_KEY, Scan

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
CHANGELOG = TopicPartition("changelog", 0)


def staging(keys: str, tombstones: str = "") -> TransactionBuffer:
    """Each letter is a key; its value says that it was staged."""
    buffer = TransactionBuffer()
    for letter in sorted(keys + tombstones, reverse=True):
        buffer.put(letter.encode(), b"staged" if letter in keys else None)
    return buffer


def base(keys: str, *, reverse: bool = False) -> StoreIterator:
    """Each letter is a key of the base."""
    return Scan((letter.encode(), b"base") for letter in sorted(keys, reverse=reverse))


def shown(rows: StoreIterator) -> str:
    """The keys; those that were staged in capitals."""
    return "".join(key.decode().upper() if value == b"staged" else key.decode() for key, value in rows)


def committed(store: KeyValueStore) -> dict[bytes, bytes]:
    """Committed values by key, whatever the format."""
    cut = 8 if store.timestamped else 0
    return {key: value[cut:] for key, value in store.reader(COMMITTED).range(None, None)}


def test_a_staged_value_a_tombstone_and_nothing_stay_apart() -> None:
    buffer = TransactionBuffer()
    buffer.put(b"value", b"\x01\x02\x03")
    buffer.put(b"empty", b"")
    buffer.put(b"tombstone", None)
    assert buffer.rows == {b"value": b"\x01\x02\x03", b"empty": b"", b"tombstone": None}
    assert b"other" not in buffer.rows


def test_bytes_count_keys_values_and_a_fixed_rest() -> None:
    buffer = TransactionBuffer()
    assert (len(buffer), buffer.bytes_staged) == (0, 0)
    expected = 0
    for number, (key, value) in enumerate([(b"value", b"123"), (b"tombstone", None), (b"", b""), (b"k", bytes(8))], 1):
        buffer.put(key, value)
        expected += len(key) + len(value or b"") + ENTRY_OVERHEAD
        assert (len(buffer), buffer.bytes_staged) == (number, expected)


def test_a_commit_moves_what_is_staged_and_frees_its_bytes(store: KeyValueStore) -> None:
    store.put(b"deleted", b"old")
    store.commit({CHANGELOG: 1})
    store.put(b"put", b"new")
    store.put(b"deleted", None)
    assert (store.staged_records, committed(store)) == (2, {b"deleted": b"old"})
    assert store.approximate_num_uncommitted_bytes > 0
    store.commit({CHANGELOG: 2})
    assert (store.staged_records, store.approximate_num_uncommitted_bytes) == (0, 0)
    assert committed(store) == dict(store.all()) == {b"put": b"new"}


@pytest.mark.parametrize("end", [lambda store: store.commit({}), KeyValueStore.rollback], ids=["commit", "rollback"])
def test_what_is_staged_after_a_commit_stands_alone(store: KeyValueStore, end: Callable[[KeyValueStore], None]) -> None:
    store.put(b"first", bytes(100))
    store.commit({CHANGELOG: 1})
    store.put(b"second", b"2")
    header = 8 if store.timestamped else 0
    assert store.approximate_num_uncommitted_bytes == len(b"second") + header + 1 + ENTRY_OVERHEAD
    assert [key for key, _ in store.staged()] == [b"second"]
    end(store)
    assert committed(store).get(b"first") == bytes(100)
    assert list(store.staged()) == []


def test_a_rollback_leaves_the_base_and_nothing_else(store: KeyValueStore) -> None:
    store.put_all([(b"a", b"base"), (b"b", b"base")])
    store.commit({CHANGELOG: 1})
    store.put_all([(b"a", b"staged"), (b"b", None), (b"c", b"staged")])
    store.rollback()
    assert (store.staged_records, store.approximate_num_uncommitted_bytes) == (0, 0)
    assert committed(store) == dict(store.all()) == {b"a": b"base", b"b": b"base"}
    assert [store.get(key) for key in (b"a", b"b", b"c")] == [b"base", b"base", None]
    store.put(b"d", b"later")
    store.commit({CHANGELOG: 2})
    assert committed(store) == {b"a": b"base", b"b": b"base", b"d": b"later"}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("staged", "tombstones", "below", "expected"),
    [
        ("ac", "", "bd", "AbCd"),
        ("ac", "", "b", "AbC"),
        ("bdf", "", "aceg", "aBcDeFg"),
        ("a", "", "a", "A"),
        ("b", "", "abc", "aBc"),
        ("c", "a", "b", "bC"),
        ("", "b", "abc", "ac"),
        ("", "ac", "abc", "b"),
        ("", "", "ab", "ab"),
        ("ab", "", "", "AB"),
        ("", "", "", ""),
        ("", "ab", "ab", ""),
        ("", "ab", "", ""),
        ("d", "abc", "", "D"),
        ("d", "abc", "abce", "De"),
        ("z", "y", "abc", "abcZ"),
    ],
)
def test_staged_rows_and_the_base_are_merged(
    staged: str, tombstones: str, below: str, expected: str, reverse: bool
) -> None:
    merged = staging(staged, tombstones).merge_over(base(below, reverse=reverse), reverse=reverse)
    assert shown(merged) == (expected[::-1] if reverse else expected)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (EVERY_KEY, "ABCD"),
        (KeyRange.between(b"a", b"b"), "AB"),
        (KeyRange(b"a", b"b"), "A"),
        (KeyRange.between(None, b"b"), "AB"),
        (KeyRange(b"", b"b"), "A"),
        (KeyRange.between(b"b", None), "BCD"),
        (KeyRange.between(b"b", b"c"), "BC"),
        (KeyRange(b"b", b"c"), "B"),
        (KeyRange.between(b"bb", b"c"), "C"),
        (KeyRange.between(b"x", None), ""),
        (KeyRange(b"c", b"c"), ""),
        (KeyRange(b"d", b"b"), ""),
    ],
    ids=repr,
)
def test_a_scan_covers_its_range_and_no_more(keys: KeyRange, expected: str, reverse: bool) -> None:
    buffer = staging("abcd")
    expected = expected[::-1] if reverse else expected
    assert shown(buffer.merge_over(base("", reverse=reverse), keys, reverse=reverse)) == expected
    assert "".join(key.decode().upper() for key, _ in buffer.scan(keys, reverse=reverse)) == expected


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("keys", [EVERY_KEY, KeyRange.between(b"a", b"i")], ids=["all", "range"])
def test_an_open_scan_does_not_see_what_is_staged_later(keys: KeyRange, started: bool) -> None:
    buffer = staging("ae", "c")
    scan = buffer.merge_over(base("cg"), keys)
    seen = shown(Scan(row for row in [next(scan)])) if started else ""
    buffer.put(b"b", b"staged")
    buffer.put(b"c", b"staged")
    buffer.put(b"e", None)
    buffer.put_all([(b"f", b"staged"), (b"g", None)])
    assert seen + shown(scan) == "AEg"
    assert shown(buffer.merge_over(base("cg"), keys)) == "ABCF"


@pytest.mark.parametrize("started", [False, True])
def test_an_open_scan_survives_a_commit_of_what_it_shows(store: KeyValueStore, started: bool) -> None:
    store.put(b"b", b"base")
    store.commit({CHANGELOG: 1})
    store.put_all([(b"a", b"staged"), (b"c", b"staged")])
    below, above = store.reader(COMMITTED).range(None, None), store.all()
    first = [next(above)] if started else []
    store.commit({CHANGELOG: 2})
    store.put_all([(b"a", None), (b"b", None), (b"d", b"later")])
    store.commit({CHANGELOG: 3})
    assert [key for key, _ in below] == [b"b"]
    assert first + list(above) == [(b"a", b"staged"), (b"b", b"base"), (b"c", b"staged")]
    assert [key for key, _ in store.all()] == [b"c", b"d"]


@pytest.mark.parametrize(("staged", "below"), [("", ""), ("a", ""), ("", "a"), ("a", "b")])
def test_a_scan_at_its_end_stays_there(staged: str, below: str) -> None:
    scan = staging(staged).merge_over(base(below))
    assert len(list(scan)) == len(staged + below)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(scan)


@pytest.mark.parametrize("started", [False, True])
def test_a_scan_that_its_user_closed_has_no_more_rows(store: KeyValueStore, started: bool) -> None:
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    store.commit({})
    store.put(b"c", b"3")
    scan = store.all()
    if started:
        next(scan)
    scan.close()
    scan.close()
    assert list(scan) == []
    assert len(list(store.all())) == 3
