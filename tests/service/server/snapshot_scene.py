"""A store of each kind with random rows, its checkpoint, and what is read of that as Arrow."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stateline import serdes
from stateline.model.store_definition import DeclaredKind, StoreDefinition
from stateline.rows import snapshot_rows
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_query_string
from stateline.server.snapshots.filter import read_selection
from stateline_store import (
    IsolationLevel,
    SessionReads,
    StoreContext,
    TransactionalStore,
    VersionedReads,
    Windowed,
    WindowReads,
    store_path,
)
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart, link_database

MINUTE = 60_000
RETENTION = 10 * MINUTE
KINDS: tuple[DeclaredKind, ...] = (
    "key_value",
    "timestamped_key_value",
    "window",
    "timestamped_window",
    "session",
    "timestamped_session",
    "versioned",
)
KEYS = ["", "a", "aa", "ab", "b", "b\x7f", "ba", "c", "zürich"]
Entry = dict[str, Any]


class Scene:
    """A store of this kind with random rows, a checkpoint of its commit, and what its own reads said then."""

    def __init__(self, kind: DeclaredKind, tmp_path: Path) -> None:
        self.definition = StoreDefinition(
            "flights", kind, serdes.string, serdes.json, retention_ms=RETENTION, window_size_ms=MINUTE
        )
        store = self.definition.build()
        assert isinstance(store, TransactionalStore)
        store.init(StoreContext("0_0", tmp_path / "0_0"))
        dice = random.Random(11)
        for _ in range(6):
            for _ in range(120):
                _put(store, kind, dice)
            store.commit({})
        self.expected = list(_entries(store, self.definition))
        assert self.expected
        snapshot = tmp_path / "snapshot"
        snapshot.mkdir()
        path = store_path(tmp_path / "0_0", "flights", timestamped=self.definition.timestamped)
        lengths = link_database(path, snapshot / "flights")
        position = store.position(IsolationLevel.READ_COMMITTED)
        part = CheckpointPart("flights", 0, "flights", store.commit_number, 0, position, lengths)
        _put(store, kind, dice)
        store.commit({})  # shows in no checkpoint
        store.close()
        self.checkpoint = Checkpoint(snapshot, part)

    def read(self, query: str = "") -> list[Entry]:
        """What the stream has; every batch is valid."""
        wanted = read_selection(Arguments(from_query_string(query.encode())), self.definition)
        found: list[Entry] = []
        for batch in snapshot_rows.batches(self.checkpoint, self.definition, wanted):
            batch.validate(full=True)
            assert batch.schema.equals(snapshot_rows.batch_schema(self.checkpoint, self.definition, wanted))
            found += batch.to_pylist()
        return found


def _put(store: Any, kind: DeclaredKind, dice: random.Random) -> None:
    key, now = dice.choice(KEYS).encode(), dice.randrange(0, 40 * MINUTE)
    value = None if dice.random() < 0.15 else b'{"n":%d}' % dice.randrange(1000)
    start = now // MINUTE * MINUTE
    match kind:
        case "key_value":
            store.put(key, value) if value is not None else store.delete(key)
        case "timestamped_key_value":
            store.put_with_timestamp(key, value, dice.choice([now, -1]))
        case "window":
            store.put(key, value, start)
        case "timestamped_window":
            store.put_with_timestamp(key, value, now, start)
        case "session":
            store.put(Windowed(key, start, now), value)
        case "timestamped_session":
            store.put_with_timestamp(Windowed(key, start, now), value, now)
        case "versioned":
            store.put(key, value, now)


def _entries(store: TransactionalStore, definition: StoreDefinition) -> Iterator[Entry]:
    """What the library's reads of committed state say."""
    reader, schema = store.reader(IsolationLevel.READ_COMMITTED), store.schema
    if definition.kind == "versioned":
        assert schema.segments is not None
        for key in KEYS:
            for record in VersionedReads(reader, schema.segments).get_versions(key.encode()):
                value, timestamp, valid_to = record
                yield {"key": key, "value": value.decode(), "timestamp": timestamp, "valid_to": valid_to}
        return
    if schema.segments is None:
        for name, stored in reader.range(None, None):
            yield {"key": name.decode(), **_value(definition, stored)}
        return
    reads: Any = (
        WindowReads(reader, schema.segments, schema.window_size_ms)
        if schema.kind == "window"
        else SessionReads(reader, schema.segments)
    )
    for windowed, stored in reads.all():
        window = {"key": windowed.key.decode(), "start": windowed.start_ms, "end": windowed.end_ms}
        yield {**window, **_value(definition, stored)}


def _value(definition: StoreDefinition, stored: bytes) -> Entry:
    if not definition.timestamped:
        return {"value": stored.decode()}
    timestamp = int.from_bytes(stored[:8], "big", signed=True)
    return {"value": stored[8:].decode(), "timestamp": None if timestamp == -1 else timestamp}


def as_set(entries: list[Entry]) -> set[tuple[tuple[str, Any], ...]]:
    found = {tuple(sorted(entry.items())) for entry in entries}
    assert len(found) == len(entries), "a row came twice"
    return found
