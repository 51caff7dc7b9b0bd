"""List, verify and prune backups from the command line."""

from __future__ import annotations

from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups, verify
from stateline.backup.retention import sweep
from stateline.cli.table import Row
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline_store import ConfigurationError, DoesNotExistError
from stateline_store.clock import now_ms


def location_of(config: Config) -> BackupLocation:
    """Return the application's location. Raises `ConfigurationError` if there is none."""
    if config.backup_location is None:
        raise ConfigurationError("There is no backup.location: set it, as to a directory or s3://bucket/stateline.")
    return BackupLocation(config.backup_location, config.application_id)


def listed(_: App, config: Config) -> list[Row]:
    return [
        {
            "backup": each.id,
            "node": each.node,
            "age_s": max(0, now_ms() - each.created_at_ms) // 1000,
            "stores": len(each.stores),
            "partitions": len(each.copy.parts),
            "files": len(each.copy.files),
            "bytes": each.copy.size_bytes,
        }
        for each in backups(location_of(config))
    ]


def verified(app: App, config: Config, backup_id: str | None) -> tuple[list[Row], int]:
    """Return a row for each node's part of this backup, or of the newest, and the number of faults. Raises
    `DoesNotExistError` if there is no such backup."""
    location, topology = location_of(config), app.configured_topology(config)
    ids = [found for found, _ in location.manifests()]
    wanted = backup_id or max(ids, default="")
    if wanted not in ids:
        raise DoesNotExistError(
            f"{location.url} has no backup {wanted!r} of {config.application_id}."
            if wanted
            else (f"{location.url} has no backup of {config.application_id} yet: make one with stateline backup now.")
        )
    rows: list[Row] = []
    faults = 0
    for found, node in location.manifests():
        if found == wanted:
            backup = location.read(found, node)
            wrong = verify(location, backup, topology)
            faults += len(wrong)
            whole = {"backup": found, "node": node, "task": None, "outcome": "whole", "why": None}
            rows += [{**whole, "task": each.task, "outcome": "damaged", "why": each.why} for each in wrong] or [whole]
    return rows, faults


def pruned(_: App, config: Config) -> Row:
    found = sweep(location_of(config), config.backup_retention_ms, config.backup_keep)
    return {"deleted backups": len(found.manifests), "deleted files": found.files, "deleted bytes": found.bytes}
