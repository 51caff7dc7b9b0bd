"""`BackupKeeper`: makes a backup at each interval, and sweeps the location now and then.

If the location has no backup although this node has written some there, it makes none: the location may be the empty
place of a mount. `stateline backup now` writes one there all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import orjson

from stateline.deployment.backup_figures import FIGURES, BackupFigures
from stateline.deployment.json_files import publish
from stateline.server.backups.making import BackupMaker
from stateline_store import DamagedDataError, DoesNotExistError, RetryLaterError, StatelineError
from stateline_store.clock import now_ms
from stateline_store.snapshots.backup import backup_id

_log = logging.getLogger(__name__)

_SWEEP_INTERVAL_MS = 60 * 60 * 1000


class BackupKeeper:
    """One per node, for its event loop's thread. Backups of all nodes begin at the same moments by their clocks, so
    they share an id."""

    def __init__(self, maker: BackupMaker, application: Path, interval_ms: int) -> None:
        self._maker, self._application, self._interval_ms = maker, application, interval_ms
        self._sweeps_at_ms = now_ms() + _SWEEP_INTERVAL_MS  # at a start, other nodes may just write

    async def keep(self) -> None:
        """Make backups until cancelled. A failed one is logged and counted, and the next interval makes another."""
        try:
            self._publish(BackupFigures.read(self._application))
            while True:
                at_ms = (now_ms() // self._interval_ms + 1) * self._interval_ms
                await asyncio.sleep((at_ms - now_ms()) / 1000)
                await self._make(at_ms)
                if now_ms() >= self._sweeps_at_ms:
                    self._sweeps_at_ms = now_ms() + _SWEEP_INTERVAL_MS
                    with _logged("The sweep of backups"):
                        await self._maker.sweep()
        finally:
            self._maker.close()

    async def _make(self, at_ms: int) -> None:
        figures, made = BackupFigures.read(self._application), None
        with _logged(f"The backup of {backup_id(at_ms)}"):
            await self._maker.refuse_lost(figures)
            made = await self._maker.make(backup_id(at_ms))
            figures.location = self._maker.location.url
            figures.written_bytes += made.written.bytes
            figures.written_files += made.written.files
            figures.tasks |= dict.fromkeys(made.backup.committed, made.backup.created_at_ms)
            for task, why in made.lacks.items():
                _log.warning("The backup %s lacks task %s: %s", made.backup.id, task, why)
        if made is None or made.lacks:
            figures.failed += 1
        else:
            figures.made, figures.last_ms = figures.made + 1, made.backup.created_at_ms
            whole, new = f"{made.written.all_bytes:,}", f"{made.written.bytes:,}"
            _log.info("Backup %s made: %s bytes, of which %s were new.", made.backup.id, whole, new)
        self._publish(figures)

    def _publish(self, figures: BackupFigures) -> None:
        with contextlib.suppress(RetryLaterError):  # no worker has started here
            figures.tasks = {task: figures.tasks.get(task, 0) for task in self._maker.tasks()}
        with contextlib.suppress(RetryLaterError):  # a full disk: the next backup tells
            publish(self._application / FIGURES, orjson.dumps(asdict(figures)))


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log what fails in the block, which ends no later backup."""
    try:
        yield
    except (StatelineError, OSError) as error:
        say = _log.error if isinstance(error, DamagedDataError | DoesNotExistError) else _log.warning
        say("%s failed: %s", what, error)
    except Exception:  # noqa: BLE001 - a defect
        _log.exception("%s failed", what)
