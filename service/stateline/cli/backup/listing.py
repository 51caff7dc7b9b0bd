"""List backups: a line for each, or for each node's part of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

from stateline.backup.cut import BackupCut
from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups
from stateline.cli.table import Row
from stateline.model.topology import Topology
from stateline_store.clock import now_ms
from stateline_store.snapshots.backup import Backup, task_of
from stateline_store.task_id import TaskId

_MOST_SHOWN = 5  # tasks
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_AGES = ((24 * 60 * 60, "d"), (60 * 60, "h"), (60, "min"))


def parts(location: BackupLocation) -> list[Row]:
    """Return a row for each node's part of each backup, newest first."""
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
        for each in backups(location)
    ]


def summaries(location: BackupLocation) -> list[Row]:
    """Return a row for each backup, newest first, for people."""
    return [_summary([*of_id]) for _, of_id in groupby(backups(location), key=lambda each: each.id)]


def missing_tasks(cut: BackupCut, topology: Topology | None = None) -> list[str]:
    """Return the tasks that no node has in this backup, in order, as the topology or the backup numbers them."""
    found = set[TaskId]()
    for store in cut.stores:
        if topology is None:
            found |= {TaskId(cut.subtopology(store), number) for number in cut.missing(store)}
        elif store in topology.stores:
            found |= {topology.subtopology_of(store).task_id(number) for number in cut.missing(store)}
    return [str(task) for task in sorted(found)]


def _summary(manifests: Sequence[Backup]) -> Row:
    created_at_ms = min(each.created_at_ms for each in manifests)
    tasks = {task for each in manifests for task in (*each.committed, *map(task_of, each.copy.parts))}
    lacks = missing_tasks(BackupCut("", manifests[0].application_id, tuple(manifests)))
    more = f" and {len(lacks) - _MOST_SHOWN} more" if len(lacks) > _MOST_SHOWN else ""
    return {
        "backup": manifests[0].id,
        "made at": f"{datetime.fromtimestamp(created_at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}Z",
        "age": age(max(0, now_ms() - created_at_ms) // 1000),
        "nodes": len(manifests),
        "tasks": len(tasks),
        "size": size(sum(each.copy.size_bytes for each in manifests)),
        "state": f"lacks {', '.join(lacks[:_MOST_SHOWN])}{more}" if lacks else "whole",
    }


def size(count: int) -> str:
    """Return so many bytes with a unit, as 1.5 GiB."""
    shown, unit = float(count), 0
    while shown >= 1023.95 and unit < len(_UNITS) - 1:  # which is shown as 1024.0
        shown, unit = shown / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{shown:.1f} {_UNITS[unit]}"


def age(seconds: int) -> str:
    """Return so many seconds in the largest unit that has one, rounded down, as 3 h."""
    return next((f"{seconds // each} {unit}" for each, unit in _AGES if seconds >= each), f"{seconds} s")
