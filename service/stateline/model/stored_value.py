"""The stored bytes of a value, taken apart: the value, its timestamp, the headers of its record. Pure."""

from __future__ import annotations

from typing import NamedTuple

from stateline.model.store_definition import StoreDefinition
from stateline_store.rows.headers import Headers, split_headers
from stateline_store.rows.timestamped_rows import UNKNOWN_TIMESTAMP, split


class StoredValue(NamedTuple):
    """A value, its timestamp (None: unknown, or none is kept), and its headers (None: none are kept)."""

    value: bytes
    timestamp_ms: int | None = None
    headers: Headers | None = None


def taken_apart(definition: StoreDefinition, stored: bytes) -> StoredValue:
    """Take the stored bytes of a value apart. Raises `DamagedDataError` for bytes that are too short."""
    if not definition.timestamped:
        return StoredValue(stored)
    value, timestamp = split(stored)
    timestamp_ms = None if timestamp == UNKNOWN_TIMESTAMP else timestamp
    if not definition.headers:
        return StoredValue(value, timestamp_ms)
    value, headers = split_headers(value)
    return StoredValue(value, timestamp_ms, headers)
