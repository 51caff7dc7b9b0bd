"""The changes that a store makes of its committed rows give an empty store the same rows by `restore`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline_store import (
    IsolationLevel,
    KeyValueStore,
    SessionStore,
    StoreContext,
    TimestampedKeyValueStore,
    TransactionalStore,
    VersionedStore,
    Windowed,
    WindowStore,
)
from stateline_store.stores.expiring_key_value import ExpiringKeyValueStore
from support.run.length import long_or_short

EXAMPLES = long_or_short(100, 25)
Puts = list[tuple[bytes, bytes | None, int]]
PUTS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.one_of(st.none(), st.binary(max_size=3)), st.integers(0, 90))
)


def _put_window(store: Any, key: bytes, value: bytes | None, at: int) -> None:
    store.put(key, value, at)


def _put_session(store: Any, key: bytes, value: bytes | None, at: int) -> None:
    store.put(Windowed(key, at, at + 5), value)


def _put(store: Any, key: bytes, value: bytes | None, _: int) -> None:
    store.put(key, value)


def _put_stamped(store: Any, key: bytes, value: bytes | None, at: int) -> None:
    store.put_all_with_timestamp([(key, value, at)])


KINDS: dict[str, tuple[Callable[[], TransactionalStore], Callable[..., None]]] = {
    "key_value": (lambda: KeyValueStore("s"), _put),
    "timestamped": (lambda: TimestampedKeyValueStore("s"), _put_stamped),
    "expiring": (lambda: ExpiringKeyValueStore("s", ttl_ms=30), _put_stamped),
    "window": (lambda: WindowStore("s", retention_ms=120_000, window_size_ms=10), _put_window),
    "duplicates": (
        lambda: WindowStore("s", retention_ms=120_000, window_size_ms=10, retain_duplicates=True),
        _put_window,
    ),
    "session": (lambda: SessionStore("s", retention_ms=120_000), _put_session),
}


def _opened(store: TransactionalStore, folder: Path) -> TransactionalStore:
    store.init(StoreContext("0_0", folder))
    return store


def _restored(original: TransactionalStore, copy: TransactionalStore) -> None:
    for changes in original.committed_changes():
        copy.restore([(key, value, -1 if at is None else at) for key, value, at in changes])
        copy.commit({})


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES)
@given(puts=PUTS)
def test_rows_are_equal(kind: str, puts: Puts) -> None:
    made, put = KINDS[kind]
    with TemporaryDirectory() as folder:
        original, copy = (_opened(made(), Path(folder) / name) for name in ("original", "copy"))
        for each in puts:
            put(original, *each)
        original.commit({})
        _restored(original, copy)
        rows = [list(each.reader(IsolationLevel.READ_COMMITTED).range(None, None)) for each in (original, copy)]
        original.close()
        copy.close()
    assert rows[0] == rows[1]


@settings(max_examples=EXAMPLES)
@given(puts=PUTS)
def test_versions_are_equal_at_every_time_that_the_history_has(puts: Puts) -> None:
    with TemporaryDirectory() as folder:
        original, copy = (
            VersionedStore("s", history_retention_ms=40, segment_interval_ms=10) for _ in ("original", "copy")
        )
        _opened(original, Path(folder) / "original")
        _opened(copy, Path(folder) / "copy")
        for key, value, at in puts:
            original.put(key, value, at)
            original.commit({})
        _restored(original, copy)
        assert copy.stream_time_ms == original.stream_time_ms
        for key in (b"a", b"b", b"c"):
            assert copy.get(key) == original.get(key)
            assert list(copy.get_versions(key)) == list(original.get_versions(key))
            for at in range(max(0, original.stream_time_ms - 40), 95):
                assert copy.get_as_of(key, at) == original.get_as_of(key, at), at
        original.close()
        copy.close()
