"""Kafka Streams' key-value suites, case by case: where each one is held here.

Tests without a file name are in this file; `contract` is `test_key_value_contract.py`, `engine` is
`test_rocksdb_engine.py`. "Flushed" there is a commit here, so cases run staged, committed and half of each.

| AbstractKeyValueStoreTest | here |
|---|---|
| shouldNotIncludeDeletedFromRangeResult | test_deleted_keys_are_in_no_scan |
| shouldDeleteIfSerializedValueIsNull | test_a_put_of_none_over_a_value_deletes_it |
| testPutGetRange, testPutGetReverseRange | test_gets_and_ranges_in_both_orders_after_a_delete |
| testPutGetWithDefaultSerdes, testRestoreWithDefaultSerdes | none: stores here take bytes, serdes are the service's |
| testRestore | test_restored_records_are_all_there_and_no_others |
| testPutIfAbsent | test_put_if_absent_answers_what_was_there |
| shouldThrowNullPointerExceptionOn{Put,PutIfAbsent,Delete,Get}NullKey | test_a_key_that_is_not_bytes_is_refused |
| shouldThrowNullPointerExceptionOnPutAllNullKey | contract: test_put_all_goes_through_the_buffer_and_a_… |
| shouldNotThrow…On{Put,PutIfAbsent,PutAll}NullValue | test_a_none_for_a_key_that_is_not_there_is_harmless |
| shouldReturnValueOn{,Reverse}Range{NullTo…,KeyToNull} | test_an_open_end_reaches_to_the_first_or_last_key |
| testSize | test_the_number_of_entries_is_told |
| shouldPutAll, shouldPutReverseAll | test_put_all_is_read_back_in_both_orders |
| shouldDeleteFromStore | test_a_deleted_key_is_gone_for_get |
| shouldReturnSameResultsForGetAnd{,Reverse}RangeWithEqualKeys | test_a_range_from_a_key_to_itself_is_that_key |
| shouldNotThrowConcurrentModificationException | test_a_put_behind_an_open_range_does_not_disturb_it |
| shouldNotThrowInvalid{,Reverse}Range…NegativeFromKey | test_bounds_in_the_wrong_order_are_empty_and_warn |
| shouldNotThrowInvalid{,Reverse}Range…FromLargerThanTo | test_bounds_in_the_wrong_order_are_empty_and_warn |
| prefixScanShouldNotThrowConcurrentModificationException | test_a_delete_behind_an_open_prefix_scan_does_not_… |

| RocksDBStoreTest | here |
|---|---|
| shouldNotThrowExceptionOnRestoreWhenThereIsPreExisting… | test_a_restore_goes_over_the_rows_that_are_there |
| shouldThrowProcessorStateExceptionOnOpeningReadOnlyDir | test_directory_faults.py: test_a_read_only_disk_is_… |
| shouldThrowProcessorStateExceptionOnPutDeletedDir | test_a_directory_deleted_under_an_open_store_is_told |
| shouldPutAll, shouldPutOnlyIfAbsentValue, shouldReturnValueOnRange | as above: one suite for every implementation |
| shouldThrowNullPointerExceptionOn… | as above |
| shouldMatchPositionAfterPut | contract: test_positions_part_while_records_are_… |
| shouldReturnKeysWithGivenPrefix{,ExcludingNextKeyLargestKey} | test_a_prefix_finds_its_keys_and_not_their_neighbours |
| shouldReturnUUIDsWithStringPrefix, shouldReturnNoKeys | test_a_prefix_finds_its_keys_and_not_their_neighbours |
| shouldRestoreAll, shouldHandleDeletes{,AndPutBack}OnRestoreAll | test_of_the_records_of_a_key_the_last_is_restored |
| shouldRestoreThenDeleteOnRestoreAll | test_a_restore_goes_over_the_rows_that_are_there |
| shouldHandleTombstoneRecords | test_of_the_records_of_a_key_the_last_is_restored |
| shouldRestoreRecordsAndConsistencyVector…, …MissingHeaders | worker/restore/test_changelog.py: headers are its |
| shouldHandleToggleOfEnablingBloomFilters | test_a_database_opens_with_other_tuning |
| shouldPerform{Range,All}QueriesWithCachingDisabled | none: there is no record cache to switch off |
| should{Allow,Require,NotAllow}…ManagedIterators | none: one kind of iterator, which the engine tracks |
| shouldCloseOpenRangeIteratorsWhenStoreClosedAndThrow… | contract: test_closing_under_an_iterator_never_looks_… |
| shouldCallRocksDbConfigSetter, …UserProvides… | none: there is no config setter |
| should…ValueProviders…, shouldVerifyThatMetrics…, …Property… | none: the service counts; RocksDB's are off |
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from typing import TypeAlias

import pytest

from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    KeyValueStore,
    PoisonedError,
    StoreContext,
    TopicPartition,
)
from stateline_store.rocksdb.options import Tuning
from support.rocksdb import database_of

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
CHANGELOG = TopicPartition("changelog", 0)
NUMBERS = {0: b"zero", 1: b"one", 2: b"two", 4: b"four", 5: b"five"}
Settle: TypeAlias = Callable[[KeyValueStore], None]


def key(number: int) -> bytes:
    """As Kafka's integer serializer writes it, which sorts negative numbers last."""
    return struct.pack(">i", number)


def rows(*numbers: int) -> list[tuple[bytes, bytes]]:
    """The rows of these numbers, in this order."""
    return [(key(number), NUMBERS[number]) for number in numbers]


@pytest.fixture(params=["staged", "committed"])
def settle(request: pytest.FixtureRequest) -> Settle:
    """Leaves what was put so far in the buffer, or takes it into the engine."""
    if request.param == "staged":
        return lambda _: None
    return lambda store: store.commit({})


@pytest.fixture
def filled(store: KeyValueStore, settle: Settle) -> KeyValueStore:
    """All numbers, staged or committed."""
    store.put_all(rows(*NUMBERS))
    settle(store)
    return store


def test_deleted_keys_are_in_no_scan(filled: KeyValueStore) -> None:
    for number in (0, 1, 5):
        filled.delete(key(number))
    assert list(filled.all()) == list(filled.range(key(0), key(9))) == rows(2, 4)
    assert list(filled.all(reverse=True)) == rows(4, 2)
    assert list(filled.prefix_scan(bytes(3))) == rows(2, 4)


def test_a_put_of_none_over_a_value_deletes_it(filled: KeyValueStore, settle: Settle) -> None:
    filled.put(key(0), None)
    filled.put_all([(key(1), None), (key(4), None)])
    settle(filled)
    assert list(filled.all()) == rows(2, 5)
    filled.put(key(0), b"zero")
    assert list(filled.all()) == rows(0, 2, 5)


def test_gets_and_ranges_in_both_orders_after_a_delete(filled: KeyValueStore, settle: Settle) -> None:
    assert [filled.get(key(number)) for number in range(6)] == [NUMBERS.get(number) for number in range(6)]
    assert filled.delete(key(5)) == b"five"
    settle(filled)
    assert filled.get(key(5)) is None
    for upper in (4, 6):
        assert list(filled.range(key(2), key(upper))) == rows(2, 4)
        assert list(filled.range(key(2), key(upper), reverse=True)) == rows(4, 2)
    assert list(filled.all()) == rows(0, 1, 2, 4)
    assert list(filled.all(reverse=True)) == rows(4, 2, 1, 0)


def test_restored_records_are_all_there_and_no_others(store: KeyValueStore, settle: Settle) -> None:
    store.restore((*row, 7) for row in rows(4, 0, 2))
    settle(store)
    assert list(store.all()) == rows(0, 2, 4)


def test_a_restore_goes_over_the_rows_that_are_there(filled: KeyValueStore, settle: Settle) -> None:
    filled.restore([(key(1), b"new", 7), (key(2), None, 8), (key(3), b"three", 9)])
    settle(filled)
    assert list(filled.all()) == [*rows(0), (key(1), b"new"), (key(3), b"three"), *rows(4, 5)]


def test_of_the_records_of_a_key_the_last_is_restored(store: KeyValueStore, settle: Settle) -> None:
    store.restore([(key(0), b"zero", 1), (key(1), b"one", 2), (key(0), None, 3), (key(2), b"two", 4)])
    settle(store)
    assert list(store.all()) == rows(1, 2)
    store.restore([(key(1), None, 5), (key(0), None, 6), (key(0), b"restored", 7)])
    settle(store)
    assert list(store.all()) == [(key(0), b"restored"), *rows(2)]


def test_put_if_absent_answers_what_was_there(filled: KeyValueStore) -> None:
    assert filled.put_if_absent(key(4), b"unexpected") == b"four"
    assert filled.put_if_absent(key(3), b"three") is None
    assert (filled.get(key(4)), filled.get(key(3))) == (b"four", b"three")
    assert len(list(filled.all())) == 6


@pytest.mark.parametrize("wrong", [None, "a", 1])
@pytest.mark.parametrize("method", ["get", "delete", "put", "put_if_absent"])
def test_a_key_that_is_not_bytes_is_refused(filled: KeyValueStore, method: str, wrong: object) -> None:
    staged = filled.staged_records
    arguments = [wrong] if method in ("get", "delete") else [wrong, b"value"]
    with pytest.raises(InvalidArgumentError, match=repr(wrong)):
        getattr(filled, method)(*arguments)
    assert filled.staged_records == staged
    assert list(filled.all()) == rows(*NUMBERS)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.range("a", b"b"),
        lambda store: store.range(b"a", 1),
        lambda store: store.prefix_scan("a"),
        lambda store: store.prefix_scan(None),
        lambda store: store.reader(COMMITTED).get("a"),
        lambda store: store.reader(UNCOMMITTED).get(None),
        lambda store: store.reader(COMMITTED).get(bytearray(b"a")),
        lambda store: store.reader(UNCOMMITTED).get(bytearray(b"a")),
        lambda store: store.get(bytearray(b"a")),
        lambda store: store.get(["a"]),
        lambda store: store.delete(bytearray(b"a")),
        lambda store: store.put_if_absent(bytearray(b"a"), b"v"),
        lambda store: store.put_all([(bytearray(b"a"), b"v")]),
        lambda store: store.range(bytearray(b"a"), None),
    ],
    ids=[
        "lower",
        "upper",
        "prefix",
        "no prefix",
        "committed get",
        "uncommitted get",
        "committed get of a bytearray",
        "uncommitted get of a bytearray",
        "get of a bytearray",
        "get of a list",
        "delete of a bytearray",
        "put_if_absent of a bytearray",
        "put_all of a bytearray",
        "lower of a bytearray",
    ],
)
def test_scans_and_readers_refuse_keys_that_are_not_bytes(
    filled: KeyValueStore, call: Callable[[KeyValueStore], object]
) -> None:
    with pytest.raises(InvalidArgumentError):
        call(filled)


def test_a_none_for_a_key_that_is_not_there_is_harmless(filled: KeyValueStore, settle: Settle) -> None:
    filled.put(key(7), None)
    assert filled.put_if_absent(key(8), None) is None
    filled.put_all([(key(9), None)])
    assert filled.delete(key(10)) is None
    settle(filled)
    assert list(filled.all()) == rows(*NUMBERS)


@pytest.mark.parametrize(
    ("lower", "upper", "expected"), [(None, 2, [0, 1, 2]), (2, None, [2, 4, 5]), (None, None, [0, 1, 2, 4, 5])]
)
def test_an_open_end_reaches_to_the_first_or_last_key(
    filled: KeyValueStore, lower: int | None, upper: int | None, expected: list[int]
) -> None:
    ends = (None if lower is None else key(lower), None if upper is None else key(upper))
    assert list(filled.range(*ends)) == rows(*expected)
    assert list(filled.range(*ends, reverse=True)) == rows(*reversed(expected))


def test_the_number_of_entries_is_told(store: KeyValueStore, settle: Settle) -> None:
    assert store.approximate_num_entries() == 0
    store.put_all(rows(*NUMBERS))
    settle(store)
    assert store.approximate_num_entries() == 5  # exact as long as no key was written twice


def test_put_all_is_read_back_in_both_orders(filled: KeyValueStore) -> None:
    assert list(filled.all()) == rows(*NUMBERS)
    assert list(filled.all(reverse=True)) == rows(*reversed(NUMBERS))


def test_a_deleted_key_is_gone_for_get(filled: KeyValueStore, settle: Settle) -> None:
    assert filled.delete(key(2)) == b"two"
    assert (filled.get(key(2)), filled.get(key(1))) == (None, b"one")
    settle(filled)
    assert (filled.get(key(2)), filled.delete(key(2))) == (None, None)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_range_from_a_key_to_itself_is_that_key(filled: KeyValueStore, reverse: bool) -> None:
    assert list(filled.range(key(2), key(2), reverse=reverse)) == [(key(2), filled.get(key(2)))] == rows(2)
    assert list(filled.range(key(3), key(3), reverse=reverse)) == []


def test_a_put_behind_an_open_range_does_not_disturb_it(filled: KeyValueStore) -> None:
    with filled.range(key(0), key(4)) as scan:
        filled.put(key(3), b"three")
        assert next(scan) == rows(0)[0]
        filled.put(key(2), b"changed")
        assert list(scan) == rows(1, 2, 4)
    assert filled.get(key(2)) == b"changed"


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("lower", "upper"), [(2, 1), (-1, 1)], ids=["from above to", "negative from"])
def test_bounds_in_the_wrong_order_are_empty_and_warn(
    filled: KeyValueStore, caplog: pytest.LogCaptureFixture, lower: int, upper: int, reverse: bool
) -> None:
    assert list(filled.range(key(lower), key(upper), reverse=reverse)) == []
    assert f"lower bound {key(lower)!r} above upper bound {key(upper)!r} is empty" in caplog.text
    assert "negative numbers" in caplog.text


def test_a_delete_behind_an_open_prefix_scan_does_not_disturb_it(filled: KeyValueStore) -> None:
    with filled.prefix_scan(bytes(3)) as scan:
        filled.delete(key(4))
        assert list(scan) == rows(*NUMBERS)
    assert list(filled.prefix_scan(bytes(3))) == rows(0, 1, 2, 5)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (b"prefix", [b"prefix_1", b"prefix_2", b"prefix_3"]),
        (b"abcd", [b"abcd"]),
        (b"abc", [b"abc", b"abcd", b"abce"]),
        (b"3f2a", [b"3f2a0000-0000-4000-8000-000000000001"]),
        (b"d", []),
        (b"zz", []),
    ],
)
def test_a_prefix_finds_its_keys_and_not_their_neighbours(
    store: KeyValueStore, settle: Settle, prefix: bytes, expected: list[bytes]
) -> None:
    keys = [b"k1", b"prefix_3", b"k2", b"prefix_2", b"k3", b"prefix_1", b"abce", b"abc", b"abcd"]
    keys += [b"3f2b0000-0000-4000-8000-000000000002", b"3f2a0000-0000-4000-8000-000000000001"]
    store.put_all((each, b"value of " + each) for each in keys)
    settle(store)
    found = [(each, b"value of " + each) for each in expected]
    assert list(store.prefix_scan(prefix)) == found
    assert list(store.prefix_scan(prefix, reverse=True)) == found[::-1]


def test_a_directory_deleted_under_an_open_store_is_told(context: StoreContext) -> None:
    store = KeyValueStore("s")
    store.init(context)
    store.put(b"a", b"1")
    store.commit({CHANGELOG: 1})
    shutil.rmtree(context.directory)
    with pytest.raises(Exception, match="No such file"):
        database_of(store).flush()  # RocksDB's own affair, and made here by hand: it needs a new file
    store.put(b"b", b"2")
    with pytest.raises(PoisonedError, match="No such file"):
        store.commit({CHANGELOG: 2})
    store.close()
    store.init(context)
    assert (list(store.all()), store.committed_offset(CHANGELOG)) == ([], None)  # so all of it is restored
    store.close()


def test_a_database_opens_with_other_tuning(context: StoreContext) -> None:
    expected: dict[bytes, bytes] = {}
    for number, size in enumerate([64 * 1024, 8 * 1024 * 1024, 64 * 1024]):
        store = KeyValueStore("s", tuning=Tuning(size, 2 * size))
        store.init(context)
        assert dict(store.all()) == expected
        added = {b"%d-%03d" % (number, n): bytes(1000) for n in range(150)}
        store.put_all(added.items())
        store.commit({CHANGELOG: number})
        expected |= added
        store.close()
