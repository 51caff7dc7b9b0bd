"""A backup of one store whose rows are known, written without a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Event

from stateline.backup.location import BackupLocation
from stateline.backup.writing import BackupWriter
from stateline_store import IsolationLevel, KeyValueStore, StoreContext, store_path
from stateline_store.clock import now_ms
from stateline_store.rocksdb.options import DEFAULT_TUNING, Tuning
from stateline_store.snapshots.backup import Backup, backup_id
from stateline_store.snapshots.checkpoints import CheckpointPart, link_database
from stateline_store.snapshots.store_copies import StoreCopy

_COMMIT_ROWS = 10_000


def write_backup(
    root: Path,
    url: str,
    store: str,
    partitions: Mapping[int, Iterable[tuple[bytes, bytes]]],
    tuning: Tuning = DEFAULT_TUNING,
    *,
    key_type: str = "string",
    value_type: str = "string",
) -> None:
    """Write a backup of a key-value store with these rows."""
    parts = [_linked(root, store, partition, rows, tuning) for partition, rows in partitions.items()]
    told = {"kind": "key_value", "key_type": key_type, "value_type": value_type, "partitions": len(parts)}
    at_ms = now_ms()
    copy = StoreCopy.of("here", {}, parts, root / "linked")
    backup = Backup(backup_id(at_ms), "node", "app", at_ms, "", {store: told}, {}, {}, {}, copy)
    BackupWriter(BackupLocation(url, "app"), "node", 3_600_000, -1).write(backup, root / "linked", Event())


def _linked(
    root: Path, name: str, partition: int, rows: Iterable[tuple[bytes, bytes]], tuning: Tuning
) -> CheckpointPart:
    task = f"0_{partition}"
    store = KeyValueStore(name, tuning=tuning)
    store.init(StoreContext(task, root / task))
    for number, (key, value) in enumerate(rows):
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
