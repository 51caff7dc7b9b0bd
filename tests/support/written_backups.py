"""A backup of one store whose rows are known, written without a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

from stateline.backup.location import BackupLocation
from stateline.backup.writing import BackupWriter
from stateline_store import IsolationLevel, KeyValueStore, StoreContext, WindowStore, store_path
from stateline_store.clock import now_ms
from stateline_store.rocksdb.options import DEFAULT_TUNING, Tuning
from stateline_store.snapshots.backup import Backup, backup_id
from stateline_store.snapshots.checkpoints import CheckpointPart, link_database
from stateline_store.snapshots.store_copies import StoreCopy

_COMMIT_ROWS = 10_000
_RETENTION_MS = 240_000  # segments of half of it


def write_backup(
    root: Path,
    url: str,
    store: str,
    partitions: Mapping[int, Iterable[tuple[bytes, bytes]]],
    tuning: Tuning = DEFAULT_TUNING,
    *,
    key_type: str = "string",
    value_type: str = "string",
    windows: bool = False,
) -> None:
    """Write a backup of a key-value store with these rows; or of a window store, in which each row starts four
    milliseconds after the row before it."""
    parts = [_linked(root, store, partition, rows, tuning, windows) for partition, rows in partitions.items()]
    told: dict[str, Any] = {"key_type": key_type, "value_type": value_type, "partitions": len(parts)}
    kind = {"kind": "window", "retention_ms": _RETENTION_MS, "window_size_ms": 10} if windows else {"kind": "key_value"}
    at_ms = now_ms()
    copy = StoreCopy.of("here", {}, parts, root / "linked")
    backup = Backup(backup_id(at_ms), "node", "app", at_ms, "", {store: told | kind}, {}, {}, {}, copy)
    BackupWriter(BackupLocation(url, "app", create=True), "node", 3_600_000, -1).write(backup, root / "linked", Event())


def _linked(
    root: Path, name: str, partition: int, rows: Iterable[tuple[bytes, bytes]], tuning: Tuning, windows: bool
) -> CheckpointPart:
    task = f"0_{partition}"
    store = (
        WindowStore(name, retention_ms=_RETENTION_MS, window_size_ms=10, tuning=tuning)
        if windows
        else KeyValueStore(name, tuning=tuning)
    )
    store.init(StoreContext(task, root / task))
    for number, (key, value) in enumerate(rows):
        if isinstance(store, WindowStore):
            store.put(key, value, 4 * number)
        else:
            store.put(key, value)
        if number % _COMMIT_ROWS == 0:
            store.commit({})
    store.commit({})
    (root / "linked" / task).mkdir(parents=True)
    directory = f"{task}/{name}"
    lengths = link_database(store_path(root / task, name, timestamped=False), root / "linked" / directory)
    position = store.position(IsolationLevel.READ_COMMITTED)
    part = CheckpointPart(name, partition, directory, store.commit_number, 0, position, lengths)
    store.close()
    return part
