"""Verify and prune backups from the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from operator import itemgetter

from stateline.backup.cut import BackupCut, leased
from stateline.backup.declared_parts import as_declared, undeclared
from stateline.backup.location import BackupLocation, check_id
from stateline.backup.reading import verify
from stateline.backup.retention import surplus, sweep
from stateline.cli.backup.listing import missing_tasks
from stateline.cli.backup.places import Backups
from stateline.cli.progress import Progress
from stateline.cli.table import Row
from stateline.model.topology import Topology
from stateline_store import DamagedDataError, DoesNotExistError, NewerFormatError
from stateline_store.snapshots.backup import Backup, settled

_MISSING = "No node has it in this backup: its node wrote none, or the task was moving or being restored."


def verified(found: Backups, backup_id: str | None = None, *, every: bool = False) -> tuple[list[Row], int]:
    """Return a row for each node's part of this backup, of the newest or of `every` one, and for each task that is in
    no part. Also returns the number of faults. Raises `DoesNotExistError` if there is no such backup."""
    location = found.location
    manifests = location.manifests()
    if not manifests and backup_id is None:
        raise DoesNotExistError(
            f"{location.url} has no backup of {location.application_id} yet: make one with stateline backup now."
        )
    wanted = backup_id or manifests[-1][0]
    check_id(location, wanted, (id_ for id_, _ in manifests))
    rows: list[Row] = []
    faults = 0
    with closing(Progress(sys.stderr, "Verifying", unit="bytes")) as progress:
        read, topology = _counted(progress), found.topology
        for id_, of_id in groupby(reversed(manifests), key=itemgetter(0)):
            if every or id_ == wanted:
                nodes = sorted(node for _, node in of_id)
                more, wrong = _verified(location, id_, nodes, topology, read)
                rows, faults = [*rows, *more], faults + wrong
    return rows, faults


def _verified(
    location: BackupLocation, id_: str, nodes: list[str], topology: Topology | None, read: Callable[[int], None]
) -> tuple[list[Row], int]:
    """Return the rows and the number of faults of one backup. Parts that were deleted meanwhile have none."""
    rows: list[Row] = []
    faults, parts = 0, list[Backup]()
    with leased(location, id_):
        for node in nodes:
            whole = {"backup": id_, "node": node, "task": None, "outcome": "whole", "why": None}
            try:
                backup = location.read(id_, node)
            except DoesNotExistError:
                continue
            except (DamagedDataError, NewerFormatError) as error:
                outcome = "damaged" if isinstance(error, DamagedDataError) else "not checked"
                rows, faults = [*rows, {**whole, "outcome": outcome, "why": str(error)}], faults + 1
                continue
            parts.append(backup)
            wrong = verify(location, backup if topology is None else as_declared(backup, topology), topology, read)
            faults += len(wrong)
            if topology is not None and (why := undeclared(backup, topology)):
                rows.append({**whole, "outcome": "left out", "why": why})
            rows += [{**whole, **each._asdict()} for each in wrong] or [whole]
    if parts:
        lost = {"backup": id_, "node": None, "outcome": "missing", "why": _MISSING}
        cut = BackupCut(location.url, location.application_id, tuple(settled(parts)))
        rows += [{**lost, "task": task} for task in missing_tasks(cut, topology)]
    return rows, faults


def _counted(progress: Progress) -> Callable[[int], None]:
    """Return a function that shows the bytes of all calls."""
    total = 0

    def read(size: int) -> None:
        nonlocal total
        total += size
        progress.show(total)

    return read


def pruned(found: Backups) -> Row:
    """Sweep the location. Returns what was deleted."""
    found.refuse_unknown_retention()
    swept = sweep(found.location, found.config.backup_retention_ms, found.config.backup_keep)
    return {"deleted backups": len(swept.manifests), "deleted files": swept.files, "deleted bytes": swept.bytes}


def to_prune(found: Backups) -> tuple[list[Row], Row]:
    """Return the nodes' parts of backups that a sweep would delete, and the numbers of all that it would."""
    found.refuse_unknown_retention()
    swept = surplus(found.location, found.config.backup_retention_ms, found.config.backup_keep)
    totals = {"backups to delete": len(swept.manifests), "files to delete": swept.files, "bytes to delete": swept.bytes}
    return [{"backup": id_, "node": node} for id_, node in swept.manifests], totals
