"""Rows of a segment in the order of their keys, where keys are the beginnings of others."""

from bisect import bisect_left
from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from stateline_store.reads.session_reads import in_stored_order, stored_order
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.suffixed_rows import SuffixedRange, by_key, by_key_down
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS, SESSION_SUFFIX
from stateline_store.scan import KeyRange

Chunks = list[list[tuple[bytes, bytes]]]
FIRST, LAST = 2**40, 2**40 + 300  # what a suffix begins with: of a segment always the same
# A key goes on with zeros, with what a suffix has, or with neither.
PIECES = [b"", b"a", b"\0", bytes(2), bytes(8), FIRST.to_bytes(8, "big"), LAST.to_bytes(8, "big"), b"\0\0\1", b"\xff"]
keys = st.lists(st.sampled_from(PIECES), max_size=3).map(b"".join)
rows = st.sets(st.tuples(keys, st.integers(FIRST, LAST), st.sampled_from([0, FIRST, FIRST + 1])), max_size=40)
SEGMENT = SuffixedRange.of_segment(7, SESSION_SUFFIX.pack(FIRST, 0), SESSION_SUFFIX.pack(LAST, MAX_TIMESTAMP_MS))


@given(rows, st.integers(1, 9))
def test_rows_come_by_key_however_keys_begin_with_others_and_wherever_chunks_end(
    found: set[tuple[bytes, int, int]], size: int
) -> None:
    stored = sorted(PREFIX.pack(7) + key + SESSION_SUFFIX.pack(end, start) for key, end, start in found)

    def chunks(keys: list[bytes]) -> Iterator[list[tuple[bytes, bytes]]]:
        yield from ([(key, b"") for key in keys[at : at + size]] for at in range(0, len(keys), size))

    def look(keys: KeyRange) -> Iterator[list[tuple[bytes, bytes]]]:
        assert keys.end is not None
        yield from chunks(stored[bisect_left(stored, keys.start) : bisect_left(stored, keys.end)])

    wanted = [PREFIX.pack(7) + key + SESSION_SUFFIX.pack(end, start) for key, end, start in sorted(found)]
    up = [row[0] for chunk in by_key((chunk for chunk in chunks(stored)), look, SEGMENT) for row in chunk]
    down = [row[0] for chunk in by_key_down((chunk for chunk in chunks(stored[::-1])), SEGMENT) for row in chunk]
    assert up == wanted == SEGMENT.sorted(stored)
    assert down == wanted[::-1]


one_byte = st.sampled_from([b"a", b"\0", b"\xff"])
times = st.integers(FIRST, LAST)


@given(
    st.sampled_from([keys, one_byte]).flatmap(lambda some: st.sets(st.tuples(some, times, times), max_size=40)),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_sessions_sort_by_key_then_times_in_one_segment_or_several_and_with_keys_of_any_length(
    found: set[tuple[bytes, int, int]], segments: int, chance: Random, reverse: bool
) -> None:
    stored = [(PREFIX.pack(end % segments) + key + SESSION_SUFFIX.pack(end, start), b"") for key, end, start in found]
    chance.shuffle(stored)
    assert in_stored_order(stored, reverse=reverse) == sorted(stored, key=stored_order, reverse=reverse)
