"""The transaction buffer against a plain dict."""

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline_store import InvalidArgumentError, KeyRange, StoreIterator, TransactionBuffer
from stateline_store.rows.transaction_buffer import ENTRY_OVERHEAD
from stateline_store.scan import EVERY_KEY, Scan

KEYS = st.binary(max_size=3)
VALUES = st.none() | st.binary(max_size=3)


def base(rows: dict[bytes, bytes], reverse: bool = False, keys: KeyRange = EVERY_KEY) -> StoreIterator:
    inside = [k for k in rows if k >= keys.start and (keys.end is None or k < keys.end)]
    return Scan((key, rows[key]) for key in sorted(inside, reverse=reverse))


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(KEYS, st.binary(max_size=3)),
    st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=8), max_size=6),
    st.booleans(),
    KEYS,
    st.none() | KEYS,
)
def test_a_merge_shows_what_the_base_would_hold_after_the_commit(
    rows: dict[bytes, bytes],
    rounds: list[list[tuple[bytes, bytes | None]]],
    reverse: bool,
    start: bytes,
    end: bytes | None,
) -> None:
    buffer = TransactionBuffer()
    expected = dict(rows)
    keys = KeyRange(start, end)
    for entries in rounds:
        buffer.put_all(entries)
        for key, value in entries:
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
        merged = list(buffer.merge_over(base(rows, reverse, keys), keys, reverse=reverse))
        assert merged == list(base(expected, reverse, keys))


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(KEYS, st.binary(max_size=3)),
    st.dictionaries(KEYS, VALUES, max_size=40),
    st.booleans(),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_a_merge_comes_in_pieces_however_much_is_staged_between_two_rows(
    rows: dict[bytes, bytes], staged: dict[bytes, bytes | None], reverse: bool, of_base: int, of_staged: int
) -> None:
    buffer = TransactionBuffer()
    buffer.put_all(staged.items())
    ordered = sorted(rows.items(), reverse=reverse)
    chunks = Scan.of_chunks(ordered[at : at + of_base] for at in range(0, len(ordered), of_base))
    with patch("stateline_store.rows.transaction_buffer.LARGEST_CHUNK", of_staged):
        pieces = list(buffer.merge_over(chunks, reverse=reverse).chunks())
    expected = {key: value for key, value in {**rows, **staged}.items() if value is not None}
    assert [row for piece in pieces for row in piece] == list(base(expected, reverse))
    assert all(len(piece) <= of_base + of_staged for piece in pieces)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=30), st.booleans())
def test_bytes_are_those_of_the_entries_that_stay(entries: list[tuple[bytes, bytes | None]], one_by_one: bool) -> None:
    buffer = TransactionBuffer()
    if one_by_one:
        for key, value in entries:
            buffer.put(key, value)
    else:
        buffer.put_all(entries[:10])
        buffer.put_all(entries[10:])
    kept = dict(entries)
    assert len(buffer) == len(kept)
    assert buffer.bytes_staged == sum(len(k) + len(v or b"") + ENTRY_OVERHEAD for k, v in kept.items())


def test_a_tombstone_hides_the_base() -> None:
    buffer = TransactionBuffer()
    buffer.put(b"b", None)
    assert list(buffer.merge_over(base({b"a": b"1", b"b": b"2", b"c": b"3"}))) == [(b"a", b"1"), (b"c", b"3")]


def test_an_overwrite_with_less_shrinks_the_bytes() -> None:
    buffer = TransactionBuffer()
    buffer.put(b"k", b"x" * 100)
    before = buffer.bytes_staged
    buffer.put(b"k", b"x")
    assert buffer.bytes_staged == before - 99


def test_a_rollback_leaves_nothing_for_a_later_commit() -> None:
    buffer = TransactionBuffer()
    buffer.put(b"a", b"1")
    buffer.clear()
    buffer.put(b"b", b"2")
    assert buffer.bytes_staged == 2 + ENTRY_OVERHEAD
    assert list(buffer.scan()) == [(b"b", b"2")]


@pytest.mark.parametrize("end", ["put", "clear"])
def test_an_open_scan_keeps_what_it_saw(end: str) -> None:
    buffer = TransactionBuffer()
    buffer.put_all([(b"c", b"3"), (b"a", b"1"), (b"b", None)])
    scan = buffer.merge_over(base({b"b": b"0", b"d": b"4"}))
    first = next(scan)
    if end == "put":
        buffer.put_all([(b"c", b"new"), (b"bb", b"new"), (b"d", None)])
    else:
        buffer.clear()
    assert [first, *scan] == [(b"a", b"1"), (b"c", b"3"), (b"d", b"4")]


LOOK_ALIKES = [(b"k", bytearray(b"v")), (memoryview(b"k"), b"v"), (b"k", memoryview(b"v"))]  # b"".join takes them too


@pytest.mark.parametrize("bad", [(None, b"1"), ("k", b"1"), (b"k", "v"), (b"k", 0), (b"k", ""), *LOOK_ALIKES])
def test_one_refused_entry_stages_nothing(bad: tuple[bytes, bytes | None]) -> None:
    buffer = TransactionBuffer()
    buffer.put(b"kept", b"1")
    with pytest.raises(InvalidArgumentError):
        buffer.put_all([(b"a", b"1"), bad])
    with pytest.raises(InvalidArgumentError):
        buffer.put(*bad)
    assert list(buffer.scan()) == [(b"kept", b"1")]
    assert buffer.bytes_staged == 5 + ENTRY_OVERHEAD


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=3).map(lambda b: b.replace(b"\x80", b"\xff")), st.binary(max_size=4))
def test_a_prefix_range_holds_exactly_the_keys_that_begin_with_it(prefix: bytes, key: bytes) -> None:
    keys = KeyRange.prefixed(prefix)
    inside = key >= keys.start and (keys.end is None or key < keys.end)
    assert inside == key.startswith(prefix)


def test_a_prefix_of_ff_bytes_has_no_upper_bound() -> None:
    assert KeyRange.prefixed(b"\xff\xff") == KeyRange(b"\xff\xff", None)
    assert KeyRange.prefixed(b"a\xff") == KeyRange(b"a\xff", b"b")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(KEYS, VALUES), max_size=10),
    st.lists(st.tuples(KEYS, VALUES), max_size=10),
    st.booleans(),
    st.booleans(),
)
def test_a_savepoint_takes_back_what_came_after_it_and_open_scans_keep_what_they_saw(
    before: list[tuple[bytes, bytes | None]], after: list[tuple[bytes, bytes | None]], one_by_one: bool, scanned: bool
) -> None:
    buffer = TransactionBuffer()
    buffer.put_all(before)
    size = buffer.bytes_staged
    buffer.savepoint()
    for key, value in after[:5] if one_by_one else []:
        buffer.put(key, value)
    buffer.put_all(after[5:] if one_by_one else after)
    scan, seen = buffer.scan(), list(buffer.scan())
    first = [next(scan)] if scanned and seen else []
    buffer.rollback_to_savepoint()
    assert list(buffer.scan()) == sorted(dict(before).items())
    assert buffer.bytes_staged == size
    assert first + list(scan) == seen
    buffer.rollback_to_savepoint()
    assert list(buffer.scan()) == sorted(dict(before).items())


@pytest.mark.parametrize("scanned", [True, False])
def test_a_key_that_was_taken_back_and_is_put_again_is_there_for_scans_too(scanned: bool) -> None:
    buffer = TransactionBuffer()
    buffer.put(b"a", b"kept")
    buffer.savepoint()
    buffer.put(b"b", b"taken back")
    if scanned:
        assert list(buffer.scan()) == [(b"a", b"kept"), (b"b", b"taken back")]
    buffer.rollback_to_savepoint()
    buffer.put(b"b", b"put again")
    assert list(buffer.scan()) == [(b"a", b"kept"), (b"b", b"put again")]
