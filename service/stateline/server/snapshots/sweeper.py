"""`SnapshotSweeper`: deletes expired snapshots, and counts the others."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

from stateline.server.snapshots.open_checkpoints import OpenCheckpoints
from stateline_store import (
    CursorExpiredError,
    DoesNotExistError,
)
from stateline_store.clock import now_ms
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory

# Store partitions of snapshots that one process has open: each holds its files open and, until they are flushed, a
# copy of the worker's newest memtables.
MAX_OPEN = 64
_SWEEP_INTERVAL_S = 1.0
# Between two counts of the bytes that snapshots keep. A count looks at every file of theirs.
_COUNT_INTERVAL_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """The number of complete snapshots of the application, and the bytes on disk that only they need."""

    count: int = 0
    kept_bytes: int = 0


class SnapshotSweeper:
    """One per server process, for the event loop's thread. One process of an application sweeps at a time."""

    def __init__(self, application: Path, most_bytes: int) -> None:
        self.directory = SnapshotDirectory(application)
        self.checkpoints = OpenCheckpoints(self.directory.path, MAX_OPEN)
        self._most_bytes = most_bytes  # -1 for no limit
        self.figures = SnapshotFigures()
        """From the last count, some seconds ago."""

    def close_released(self) -> None:
        """Close the files of deleted snapshots."""
        self.checkpoints.close_unused(self._is_gone)

    async def sweep(self) -> None:
        """Delete expired snapshots and the leftovers of crashes, and count the rest, until cancelled. Then close."""
        fault = ""
        counted_at_s = -math.inf
        try:
            while True:
                try:
                    await asyncio.to_thread(self.directory.sweep, now_ms())
                    self.close_released()
                    if time.monotonic() - counted_at_s >= _COUNT_INTERVAL_S:
                        self._note(await asyncio.to_thread(self._count))
                        counted_at_s = time.monotonic()
                    fault = ""
                except Exception as error:  # noqa: BLE001 - without this nothing would ever be deleted
                    if str(error) != fault:  # one that lasts is met every second
                        _log.warning("Snapshots are not tidied up: %s", error)
                    fault = str(error)
                await asyncio.sleep(_SWEEP_INTERVAL_S)
        finally:
            self.checkpoints.close()

    async def close_deleted(self) -> None:
        """Close the files of deleted snapshots, until cancelled. For a process that leaves the sweeping to others."""
        try:
            while True:
                await asyncio.sleep(_SWEEP_INTERVAL_S)
                self.close_released()
        finally:
            self.checkpoints.close()

    def _count(self) -> SnapshotFigures:
        return SnapshotFigures(len(self.directory.all(now_ms())), self.directory.kept_bytes())

    def _note(self, figures: SnapshotFigures) -> None:
        """Warn once if the limit is exceeded. A lease that was given is kept, however many bytes its snapshot keeps
        since."""
        was_beyond, self.figures = self._is_beyond(self.figures), figures
        if self._is_beyond(figures) and not was_beyond:
            _log.warning(
                "Snapshots keep %d bytes, more than server.snapshots.max.bytes = %d: none is made and no lease renewed "
                "until some are released or their leases end",
                figures.kept_bytes,
                self._most_bytes,
            )

    def _is_beyond(self, figures: SnapshotFigures) -> bool:
        return 0 <= self._most_bytes <= figures.kept_bytes

    def _is_gone(self, snapshot_id: str) -> bool:
        try:
            self.directory.find(snapshot_id, now_ms())
        except (CursorExpiredError, DoesNotExistError):
            return True
        return False
