"""`OpenCheckpoints`: the parts of snapshots that a server process has open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from stateline.processes.seldom import seldom
from stateline_store import (
    CursorExpiredError,
    DamagedDataError,
    NotPresentError,
    TooManyRequestsError,
)
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart
from stateline_store.snapshots.snapshot_directory import lease_has_ended

_log = seldom(__name__)

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
            _log.warning("The snapshot %s cannot be read: %s", snapshot_id, error)
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
