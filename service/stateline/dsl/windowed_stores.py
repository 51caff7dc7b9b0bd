"""The store of an aggregate over windows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from stateline import stores
from stateline.model.store_definition import StoreDefinition
from stateline.model.windows import (
    FOREVER_MS,
    AnyWindows,
    SessionWindows,
    SlidingWindows,
    UnlimitedWindows,
    retention_of,
)
from stateline.serde.plain import Serde
from stateline_store import InvalidArgumentError

_ANY = timedelta(days=1)


def windowed_store(
    name: str, windows: AnyWindows, retention: timedelta | None, *, key: Serde, value: Serde, persistent: bool
) -> StoreDefinition:
    """Return the timestamped store that such windows need. Raises `InvalidArgumentError` for a retention that is too
    short, and for any retention of unlimited windows."""
    if isinstance(windows, UnlimitedWindows):
        if retention is not None:
            raise InvalidArgumentError(f"retention={retention} of store {name!r}: unlimited windows are kept for ever.")
        made = stores.window(
            name, size=_ANY, retention=_ANY, timestamped=True, key=key, value=value, persistent=persistent
        )
        return replace(made, window_size_ms=FOREVER_MS, retention_ms=FOREVER_MS)  # no timedelta is as long
    kept = retention_of(windows, retention, name)
    if isinstance(windows, SessionWindows):
        made = stores.session(name, retention=kept, timestamped=True, key=key, value=value, persistent=persistent)
        return replace(made, session_gap_ms=windows.gap_ms)
    size = windows.difference if isinstance(windows, SlidingWindows) else windows.size
    return stores.window(name, size=size, retention=kept, timestamped=True, key=key, value=value, persistent=persistent)
