"""``<application>/instances/<instance>.starts``: how many starts of a worker have failed in a row.

    {"failed": number of times that a worker of this name has joined its group and not worked for a while since}

On disk: never change. Absent while the last start has not failed. Replaced by rename.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import orjson

from stateline.deployment.json_files import decoded, publish
from stateline.deployment.workers.instance_file import instances_directory
from stateline_store import DamagedDataError

# Equal to the supervisor's: a process that lived this long restarts at once.
_WORKED_S = 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _File:
    failed: int


class FailedStarts:
    """Failed starts of the worker that has this name's lock. `count` is that of earlier processes."""

    def __init__(self, application: Path, instance: str) -> None:
        self.path = instances_directory(application) / f"{instance}.starts"
        self.count = self._read()
        self.is_pending = False
        """Whether it is not known yet if this start has succeeded."""
        self._runs_s: float | None = None

    def _read(self) -> int:
        try:
            return decoded(_File, self.path.read_bytes()).failed
        except FileNotFoundError:
            return 0
        except (OSError, DamagedDataError) as error:
            _log.warning("%s is ignored: %s", self.path, error)
            return 0

    @property
    def is_kept(self) -> bool:
        """Whether the file exists. An operator may delete it."""
        return self.path.exists()

    def joined(self) -> None:
        """The worker joins its group: the start counts as failed until `forget`. Raises `StorageError`."""
        publish(self.path, orjson.dumps(_File(self.count + 1)))
        self.is_pending, self._runs_s = True, None

    def runs(self) -> bool:
        """All tasks run now. Returns whether they have run long enough for a successful start."""
        now_s = monotonic()
        self._runs_s = self._runs_s or now_s
        if now_s >= self._runs_s + _WORKED_S:
            self.forget()
        return not self.is_pending

    def forget(self) -> None:
        """The worker works, or stops in order."""
        self.count, self.is_pending = 0, False
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
