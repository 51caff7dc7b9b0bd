"""The application that SQL is asked of: a store of every kind, with keys and values of every type, on disk and in
memory. `SqlOracle` makes the same of a partition's records in plain dicts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.model.store_definition import StoreDefinition
from stateline.worker import InputRecord
from support.apps import kinds_app
from support.apps.kinds_app import HISTORY_MS, RETENTION_MS, SIZE_MS, merge
from support.apps.matrix_app import PartitionOracle

Row: TypeAlias = tuple[Any, ...]

IN_MEMORY = "-in-memory"
KEYS = [f"k{n}" for n in range(13)]
CITIES = ("Oslo", "Örebro", None)
DOUBLES = (0.0, -0.0, 1.5, -1.5, float("inf"), 0.1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HISTORY, _RETENTION, _SIZE = (timedelta(milliseconds=ms) for ms in (HISTORY_MS, RETENTION_MS, SIZE_MS))


@dataclass
class Reading:
    """A value with a schema: a STRUCT in SQL."""

    n: int
    city: str | None = None
    tags: list[str] = field(default_factory=list)


def number_of(key: str) -> int:
    return (int(key[1:]) - 6) * 7


def uuid_of(key: str) -> UUID:
    return UUID(int=0xABCDEF << 96 | int(key[1:]))


def moment_of(key: str) -> datetime:
    return _EPOCH + timedelta(hours=int(key[1:]) - 6, milliseconds=int(key[1:]))


def blob_of(key: str) -> bytes:
    return bytes([int(key[1:]), 0, 255])


def double_of(key: str) -> float:
    """Of several keys, so several partitions may have it."""
    return DOUBLES[int(key[1:]) % len(DOUBLES)]


def document_of(key: str) -> dict[str, Any]:
    return {"k": int(key[1:]), "s": "é'" + key}


def headers_of(key: str, value: int | None) -> tuple[tuple[str, bytes | None], ...]:
    """Of a record."""
    return (("from", key.encode()), ("none", None)) if value is not None and value % 2 else ()


def member_of(value: int) -> dict[str, Any]:
    return {"n": value, "city": CITIES[value % 3], "f": value / 8}


def reading_of(value: int) -> Reading:
    return Reading(value, CITIES[value % 3], ["odd"] if value % 2 else [])


def typed() -> list[StoreDefinition]:
    """The stores by type, which `keep` writes in this order."""
    json: dict[str, Any] = {"value": serdes.json}
    return [
        stores.timestamped_key_value("numbers", key=serdes.int64, **json),
        stores.key_value("smalls", key=serdes.int32, value=serdes.int32),
        stores.key_value("ids", key=serdes.uuid, value=serdes.string),
        stores.key_value("docs", key=serdes.json, **json),
        stores.key_value("blobs", key=serdes.bytes, value=serdes.bytes),
        stores.key_value("moments", key=serdes.datetime, value=serdes.float64),
        stores.key_value("doubles", key=serdes.float64, value=serdes.int64),
        stores.timestamped_key_value("models", key=serdes.string, value=serdes.model(Reading)),
        stores.timestamped_key_value("headed", key=serdes.string, headers=True, **json),
        stores.window("id-windows", key=serdes.uuid, size=_SIZE, retention=_RETENTION, **json),
        stores.session("number-sessions", key=serdes.int64, timestamped=True, retention=_RETENTION, **json),
        stores.versioned("number-versions", key=serdes.int64, history=_HISTORY, **json),
    ]


def build(run: str) -> App:
    """The application of one run."""
    app = App(f"sql-{run}")
    events = app.topic(f"events-{run}", key=serdes.string, value=serdes.json)
    for persistent in (True, False):
        _add(app, events, persistent=persistent)
    app.table(events, store="latest")
    app.table(events, store=f"latest{IN_MEMORY}", persistent=False)
    return app


def _add(app: App, events: Any, *, persistent: bool) -> None:
    """Only the kinds are in memory, too: what a type does is the same there."""
    copy = "" if persistent else IN_MEMORY
    kinds = kinds_app.definitions(persistent)
    made = [*kinds, *(typed() if persistent else ())]
    views = [app.store(replace(each, name=each.name + copy)) for each in made]
    versions = app.table(events, store=f"table{copy}", versioned=_HISTORY, persistent=persistent)

    def keep_all(record: InputRecord, *given: Any) -> None:
        *stored, table = given
        of_kinds: Any = (*stored[: len(kinds)], table)
        kinds_app.keep(record, *of_kinds)
        if persistent:
            keep(record.key, record.value, record.timestamp_ms, *stored[len(kinds) :])

    app.process(events, stores=[*views, versions], name=f"keep{copy}")(keep_all)


def keep(
    key: str, value: int | None, at: int, numbers: Any, smalls: Any, ids: Any, docs: Any, blobs: Any, moments: Any,
    doubles: Any, models: Any, headed: Any, windows: Any, sessions: Any, versions: Any,
) -> None:  # fmt: skip
    """Write one record to every store of a type."""
    entries: list[tuple[Any, Any, Any]] = [
        (numbers, number_of(key), None if value is None else member_of(value)),
        (smalls, int(key[1:]) - 6, value),
        (ids, uuid_of(key), None if value is None else f"v'{value}"),
        (docs, document_of(key), value),
        (blobs, blob_of(key), None if value is None else value.to_bytes(3, "big")),
        (moments, moment_of(key), None if value is None else value / 8),
        (doubles, double_of(key), value),
        (models, key, None if value is None else reading_of(value)),
        (headed, key, None if value is None else member_of(value)),
    ]
    for store, name, kept in entries:
        if kept is None:
            store.delete(name)
        else:
            store.put(name, kept)
    start = at - at % SIZE_MS
    windows.put(uuid_of(key), value, start)
    merge(sessions, number_of(key), at)  # type: ignore[arg-type]  # a view of another key
    versions.put(number_of(key), value)


class _Entries:
    """A key-value store of one partition: rows by the key's text, because -0.0 equals 0.0."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[Any, Any, int]] = {}
        self.now_ms = 0

    def put(self, key: Any, value: Any) -> None:
        self.rows[repr(key)] = (key, value, self.now_ms)

    def delete(self, key: Any) -> None:
        self.rows.pop(repr(key), None)


class SqlOracle(PartitionOracle):
    """What the records of one partition make of every store. `typed` has the stores by type."""

    def __init__(self) -> None:
        super().__init__()
        of_times = {
            "id-windows": kinds_app._Windows(),
            "number-sessions": kinds_app._Sessions(timestamped=True),
            "number-versions": kinds_app._Versions(),
        }
        names = [definition.name for definition in typed()]
        self.typed: dict[str, Any] = {name: of_times.get(name) or _Entries() for name in names}
        self.headers: dict[str, Any] = {}
        self.offset = -1

    def take(self, event: kinds_app.Event) -> None:
        """Process one record."""
        super().take(event)
        key, value, at = event
        for model in self.typed.values():
            model.now_ms = at
        keep(key, value, at, *self.typed.values())
        self.headers[key] = headers_of(key, value)
        self.offset += 1

    def rows(self, store: str, as_of: int | None, *, all_versions: bool = False) -> list[Row]:
        """Return the rows of a store in the order of its columns."""
        if store == "latest":
            return [(key, value, at) for key, (value, at) in self.entries[store].rows.items()]
        model = self.typed.get(store) or self.models[store]
        if isinstance(model, _Entries):
            return [self._entry(store, row) for row in model.rows.values()]
        if isinstance(model, kinds_app._Versions):
            return list(_versions(model, as_of, all_versions=all_versions))
        if isinstance(model, kinds_app._Windows):
            return [(key, start, start + SIZE_MS, *row) for key, start, *row in model.contents()]
        return [tuple(row) for row in model.contents()]

    def _entry(self, store: str, row: tuple[Any, Any, int]) -> Row:
        if store == "headed":
            return (*row, self.headers[row[0]])
        return row if store in ("numbers", "models") else row[:2]


def _versions(model: Any, as_of: int | None, *, all_versions: bool) -> list[Row]:
    floor = model.stream_time_ms - HISTORY_MS
    found: list[Row] = []
    for key, held in model.by_key.items():
        times = sorted(held, reverse=True)
        for at, end in zip(times, [None, *times], strict=False):
            value = held[at]
            if value is None:
                continue
            if all_versions:
                if end is None or end > floor:
                    found.append((key, value, at, end))  # with `valid_to`
            elif end is None if as_of is None else _was_valid(as_of, at, end, floor):
                found.append((key, value, at))
    return found


def _was_valid(as_of: int, at: int, end: int | None, floor: int) -> bool:
    """Only the latest versions are seen before the history."""
    return at <= as_of and (end is None or (as_of < end and as_of >= floor))


COLUMNS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("counts", "newest", "each", "visits", "stamped-visits", "history"), ("VARCHAR", "JSON")),
    **dict.fromkeys(("table", "latest", "headed"), ("VARCHAR", "JSON")),
    "numbers": ("BIGINT", "JSON"),
    "smalls": ("INTEGER", "INTEGER"),
    "ids": ("UUID", "VARCHAR"),
    "docs": ("JSON", "JSON"),
    "blobs": ("BLOB", "BLOB"),
    "moments": ("TIMESTAMPTZ", "DOUBLE"),
    "doubles": ("DOUBLE", "BIGINT"),
    "models": ("VARCHAR", 'STRUCT("n" HUGEINT, "city" VARCHAR, "tags" VARCHAR[])'),
    "id-windows": ("UUID", "JSON"),
    "number-sessions": ("BIGINT", "JSON"),
    "number-versions": ("BIGINT", "JSON"),
}
"""The SQL types of a store's key and value."""
COPIED = ("counts", "newest", "each", "visits", "stamped-visits", "history", "table", "latest")
"""Those that are in memory, too."""
WINDOWS = ("counts", "newest", "each", "id-windows")
SESSIONS = ("visits", "stamped-visits", "number-sessions")
VERSIONED = ("history", "table", "number-versions")
STAMPED = ("newest", "stamped-visits", "number-sessions", "numbers", "models", "headed", "latest", *VERSIONED)

app = build(os.environ.get("MATRIX_RUN", "none"))
