"""`BackupKeeper`: makes a backup at each interval, and sweeps the location now and then.

Its figures are in ``<application>/backups.json``, so that each server process can tell them, and they survive restarts:

    {"last_ms", "made", "failed", "written_bytes", "written_files", "tasks": {task: when its newest was made}}
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from stateline.deployment.json_files import publish
from stateline.server.backups.making import BackupMaker
from stateline_store import DamagedDataError, StatelineError
from stateline_store.clock import now_ms
from stateline_store.snapshots.backup import backup_id

_log = logging.getLogger(__name__)

FIGURES = "backups.json"  # on disk: never change
_SWEEP_INTERVAL_MS = 60 * 60 * 1000


@dataclass(slots=True)
class BackupFigures:
    """Since the first backup of this state directory. `last_ms` is when the newest was made, in milliseconds since the
    epoch; 0 before the first. `tasks` has the same by task, also of tasks that run elsewhere by now."""

    last_ms: int = 0
    made: int = 0
    failed: int = 0
    written_bytes: int = 0
    written_files: int = 0
    tasks: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, application: Path) -> BackupFigures:
        """Read the file. All are 0 without one, and for an unreadable one."""
        try:
            return cls(**orjson.loads((application / FIGURES).read_bytes()))
        except (OSError, orjson.JSONDecodeError, TypeError):
            return cls()


class BackupKeeper:
    """One per node, for its event loop's thread. Backups of all nodes begin at the same moments by their clocks, so
    they share an id."""

    def __init__(self, maker: BackupMaker, application: Path, interval_ms: int) -> None:
        self._maker, self._application, self._interval_ms = maker, application, interval_ms
        self._sweeps_at_ms = 0

    async def keep(self) -> None:
        """Make backups until cancelled. A failed one is logged and counted, and the next interval makes another."""
        try:
            while True:
                at_ms = (now_ms() // self._interval_ms + 1) * self._interval_ms
                await asyncio.sleep((at_ms - now_ms()) / 1000)
                await self._make(at_ms)
        finally:
            self._maker.close()

    async def _make(self, at_ms: int) -> None:
        figures = BackupFigures.read(self._application)
        try:
            backup, written = await self._maker.make(backup_id(at_ms))
            figures.made, figures.last_ms = figures.made + 1, backup.created_at_ms
            figures.tasks |= dict.fromkeys(backup.committed, backup.created_at_ms)
            figures.written_bytes += written.bytes
            figures.written_files += written.files
            _log.info("Backup %s: %d of %d bytes written", backup.id, written.bytes, written.all_bytes)
            if now_ms() >= self._sweeps_at_ms:
                self._sweeps_at_ms = now_ms() + _SWEEP_INTERVAL_MS
                await self._maker.sweep()
        except (StatelineError, OSError) as error:
            figures.failed += 1
            say = _log.error if isinstance(error, DamagedDataError) else _log.warning
            say("The backup of %s failed: %s", backup_id(at_ms), error)
        except Exception:  # noqa: BLE001 - a defect ends no later backup
            figures.failed += 1
            _log.exception("The backup of %s failed", backup_id(at_ms))
        with contextlib.suppress(OSError):  # a full disk: the next backup tells
            publish(self._application / FIGURES, orjson.dumps(asdict(figures)))
