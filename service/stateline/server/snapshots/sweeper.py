"""`SnapshotSweeper`: deletes expired snapshots, counts the others, and opens each part once for all readers."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stateline.processes.seldom import seldom
from stateline_store import (
    CursorExpiredError,
    DamagedDataError,
    DoesNotExistError,
    NotPresentError,
    TooManyRequestsError,
)
from stateline_store.clock import now_ms
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory, lease_has_ended

# Store partitions of snapshots that one process has open: each holds its files open and, until they are flushed, a
# copy of the worker's newest memtables.
MAX_OPEN = 64
_SWEEP_INTERVAL_S = 1.0
# How often the bytes that snapshots keep are counted anew: that looks at every file of theirs.
_COUNT_INTERVAL_S = 10.0

_log, _seldom = logging.getLogger(__name__), seldom(f"{__name__}.checkpoints")

_Key = tuple[str, str]  # the snapshot's id and the part's directory


class _Opened:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.readers = 0


class OpenCheckpoints:
    """The checkpoints of snapshots that one server process reads, each opened once. For the event loop's thread.

    At most `most` are open. Those without a reader stay open until their room is needed or their snapshot is gone, so
    that the next reader need not replay their logs.
    """

    def __init__(self, snapshots: Path, most: int) -> None:
        self._snapshots = snapshots
        self._most = most
        self._opened: dict[_Key, _Opened] = {}  # the least recently used first
        self._opening = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._opened)

    async def acquire(self, snapshot_id: str, part: CheckpointPart) -> Checkpoint:
        """Return this part, opened if need be; `release` it. Other requests run meanwhile.

        Raises `TooManyRequestsError` if as many as allowed are being read, `CursorExpiredError` if the snapshot went
        meanwhile, or lacks files (after a power cut).
        """
        key = (snapshot_id, part.directory)
        async with self._opening:
            opened = self._opened.pop(key, None)
            if opened is None:
                self._make_room()
                opened = _Opened(await self._open(snapshot_id, part))
            self._opened[key] = opened
            opened.readers += 1
            return opened.checkpoint

    def release(self, snapshot_id: str, part: CheckpointPart) -> None:
        self._opened[snapshot_id, part.directory].readers -= 1

    def close_unused(self, is_gone: Callable[[str], bool]) -> None:
        """Close those of deleted snapshots without a reader: they keep files from being deleted."""
        for key, opened in list(self._opened.items()):
            if not opened.readers and is_gone(key[0]):
                self._close(key)

    def close(self) -> None:
        for key in list(self._opened):
            self._close(key)

    async def _open(self, snapshot_id: str, part: CheckpointPart) -> Checkpoint:
        try:
            return await asyncio.to_thread(Checkpoint, self._snapshots / snapshot_id, part)
        except NotPresentError as error:
            raise lease_has_ended(snapshot_id) from error
        except DamagedDataError as error:
            _seldom.warning("The snapshot %s cannot be read: %s", snapshot_id, error)
            raise CursorExpiredError(
                f"The snapshot {snapshot_id} does not hold what it held: make a new one."
            ) from error

    def _make_room(self) -> None:
        if len(self._opened) < self._most:
            return
        unused = next((key for key, opened in self._opened.items() if not opened.readers), None)
        if unused is None:
            raise TooManyRequestsError(
                f"{len(self._opened)} partitions of snapshots are being read: ask again when one is read to its end."
            )
        self._close(unused)

    def _close(self, key: _Key) -> None:
        self._opened.pop(key).checkpoint.close()


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """How many complete snapshots the application has, and the bytes on disk that only they need."""

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
