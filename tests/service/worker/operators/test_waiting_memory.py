"""Rows that wait take little memory, however long their keys are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stateline.processing.operators import leaving_rows
from stateline.processing.operators.buffered_changes import BufferedChanges
from stateline.processing.operators.unmatched_rows import UnmatchedRows
from stateline.serde.buffered_change import BufferedChange
from stateline_store import KeyValueStore, StoreContext

MOST_BYTES = 20_000
KEYS = [b"%03d" % n + bytes(2_000) for n in range(100)]


def opened(folder: Path) -> KeyValueStore:
    store = KeyValueStore("s")
    store.init(StoreContext("0_0", folder))
    return store


def test_long_keys_of_rows_that_are_held_back_are_not_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving_rows, "_MOST_BYTES", MOST_BYTES)
    with closing(opened(tmp_path)) as store:
        buffer = BufferedChanges(store)
        for at_ms, key in enumerate(KEYS):
            change = BufferedChange(at_ms, 0, "t", 0, (), None, None, b"v", at_ms)
            buffer.put(key, None, change, change.packed())
            assert sum(len(known) for _, known in buffer._leaving._heap) <= 2 * MOST_BYTES
        buffer.flush(0)
        left = []
        while buffer.first() is not None:
            left.append(buffer.take_first()[0])
        assert left == KEYS
        assert buffer._leaving._bytes == 0


def test_long_keys_of_rows_without_a_partner_are_not_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving_rows, "_MOST_BYTES", MOST_BYTES)
    with closing(opened(tmp_path)) as store:
        rows = UnmatchedRows(store, (0, 0))
        for at_ms, key in enumerate(KEYS):
            rows.put(at_ms, True, key, b"v")
            assert sum(len(known) for _, known in rows._leaving._heap) <= 2 * MOST_BYTES
        rows.drop(1, True, KEYS[1], 1)
        assert [key for key, *_ in rows.take_closed(len(KEYS))] == [KEYS[0], *KEYS[2:]]
        assert rows._leaving._bytes == 0
