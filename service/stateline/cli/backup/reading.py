"""List, verify and prune backups from the command line."""

from __future__ import annotations

from stateline.backup.cut import BackupCut
from stateline.backup.declared_parts import as_declared, undeclared
from stateline.backup.location import BackupLocation, check_id
from stateline.backup.reading import backups, verify
from stateline.backup.retention import sweep
from stateline.cli.table import Row
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline_store import DoesNotExistError
from stateline_store.clock import now_ms
from stateline_store.snapshots.backup import settled

_MISSING = "No node has it in this backup: its node wrote none, or the task was moving or being restored."


def listed(_: App, config: Config) -> list[Row]:
    return [
        {
            "backup": each.id,
            "node": each.node,
            "age_s": max(0, now_ms() - each.created_at_ms) // 1000,
            "stores": len({part.store for part in each.copy.parts}),
            "partitions": len(each.copy.parts),
            "files": len(each.copy.files),
            "bytes": each.copy.size_bytes,
        }
        for each in backups(BackupLocation.of(config))
    ]


def verified(app: App, config: Config, backup_id: str | None) -> tuple[list[Row], int]:
    """Return a row for each node's part of this backup, or of the newest, and for each task that is in no part. Also
    returns the number of faults. Raises `DoesNotExistError` if there is no such backup."""
    location, topology = BackupLocation.of(config), app.configured_topology(config)
    manifests = location.manifests()
    if not manifests and backup_id is None:
        raise DoesNotExistError(
            f"{location.url} has no backup of {config.application_id} yet: make one with stateline backup now."
        )
    wanted = backup_id or manifests[-1][0]
    check_id(location, wanted, (found for found, _ in manifests))
    rows: list[Row] = []
    faults = 0
    parts = [location.read(found, node) for found, node in manifests if found == wanted]
    for backup in parts:
        wrong = verify(location, as_declared(backup, topology), topology)
        faults += len(wrong)
        whole = {"backup": wanted, "node": backup.node, "task": None, "outcome": "whole", "why": None}
        if why := undeclared(backup, topology):
            rows.append({**whole, "outcome": "left out", "why": why})
        rows += [{**whole, "task": each.task, "outcome": "damaged", "why": each.why} for each in wrong] or [whole]
    cut = BackupCut(location.url, config.application_id, tuple(settled(parts)))
    missing = [
        topology.subtopology_of(name).task_id(n)
        for name in cut.stores
        if name in topology.stores
        for n in cut.missing(name)
    ]
    lost = {"backup": wanted, "node": None, "outcome": "missing", "why": _MISSING}
    rows += [{**lost, "task": str(task)} for task in sorted(set(missing))]
    return rows, faults


def pruned(_: App, config: Config) -> Row:
    found = sweep(BackupLocation.of(config), config.backup_retention_ms, config.backup_keep)
    return {"deleted backups": len(found.manifests), "deleted files": found.files, "deleted bytes": found.bytes}
