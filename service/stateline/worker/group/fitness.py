"""`Fitness`: whether a worker can run its tasks, and when it leaves its group because it cannot.

| what happens                                         | then                                                          |
|------------------------------------------------------|---------------------------------------------------------------|
| the disk refuses what a task writes or reads         | the worker drops its tasks and starts them again              |
| two starts in a row fail, or none succeeds in 15 s   | it leaves its group for good, and others have its tasks       |
| no server of this node runs any more, or it says    | the worker goes on; after 15 s it leaves its group, unless it |
| that no other node links with it                     | is alone there, or another one had to leave lately            |
| that goes on although it stays                       | it works as if nothing was said                               |
| it is out, and a file can be written again           | it rests for 5 s, each time twice as long where others have   |
|                                                      | its tasks, and joins again                                    |
"""

from __future__ import annotations

import logging
from pathlib import Path
from time import monotonic

from stateline_store import StorageError
from stateline_store.durable_files import check_writable

_log = logging.getLogger(__name__)

_STARTS = 2
_LASTS_S = 15.0
_PAUSE_S = 5.0
# A server that has a fault says so again and again. One that is silent for so long has none, or is gone.
_SAID_FOR_S = 10.0
_MOST_REST_S = 600.0
# A worker that has worked for so long begins with the first rest when it fails again.
_STABLE_S = 60.0


class Fitness:
    """One worker's, on its thread."""

    def __init__(self, directory: Path, name: str) -> None:
        """`directory` is where the worker keeps its stores, `name` what its files are called there."""
        self._directory = directory
        self._name = name
        self.is_out = False
        """Whether the worker has left its group because of this."""
        self.crashed = ""
        """Why it is not to join its group yet (`crash_loop`); empty when it is."""
        self._why = ""
        self._is_waiting = False  # to start its tasks again
        self._failed_s = 0.0  # when the disk refused something first, since it took everything last
        self._failures = self._commits = 0
        self._tries_s = self._joins_s = 0.0
        self._settled_s: float | None = None
        self._rest_s = self._rested_s = _PAUSE_S
        self._fit_s: float | None = None  # since when all is well, where the disk had refused something before
        self._said, self._said_s, self._said_since_s = "", -_SAID_FOR_S, 0.0
        self._stays = False  # whatever is heard

    @property
    def fault(self) -> str:
        """Why tasks are not run here, or for nobody, in whole sentences; empty while all is well."""
        if self.crashed:
            return self.crashed
        why = self._why or ("" if self._stays else self._heard)
        if why and self.is_out:
            return (
                f"{why} The worker has left its group. It joins again when this is mended, after a rest of "
                f"{self._rested_s:g} s."
            )
        return why

    @property
    def is_to_leave(self) -> bool:
        """Whether others are to have the tasks."""
        if self.is_out:
            return False
        now_s = monotonic()
        if self._heard and now_s >= self._said_since_s + _LASTS_S:
            return True
        return self._is_waiting and (self._failures > _STARTS or now_s >= self._failed_s + _LASTS_S)

    @property
    def is_working(self) -> bool:
        """Whether the tasks run as far as the disk has a say."""
        return not self._is_waiting

    def put_off(self) -> None:
        """Nobody else is to have the tasks for what was heard, so it is no fault: that is looked at again when as much
        time has passed."""
        self._said_since_s, self._stays = monotonic(), True

    @property
    def _heard(self) -> str:
        return self._said if monotonic() < self._said_s + _SAID_FOR_S else ""

    def failed(self, error: StorageError, commits: int) -> None:
        """The disk has refused something; `commits` counts those that the worker has made until now."""
        now_s = monotonic()
        if not self._failures:
            self._failed_s = now_s
            if self._fit_s is not None and now_s >= self._fit_s + _STABLE_S:
                self._rest_s = _PAUSE_S
            self._fit_s = None
        if str(error) != self._why:
            _log.warning("All tasks are dropped, and started again when the disk lets them: %s", error)
        self._why, self._commits = str(error), commits
        self._tries_s = now_s + (_PAUSE_S if self._failures else 0.0)
        self._failures += 1
        self._is_waiting, self._settled_s = True, None

    def hear(self, why: str) -> None:
        """Nobody can ask for what the worker has, as the server of this node says, or because there is none."""
        now_s = monotonic()
        if not self._heard:
            self._said_since_s, self._stays = now_s, False
        self._said, self._said_s = why, now_s

    def left(self, *, is_alone: bool = False) -> None:
        """The worker has left its group. `is_alone`: nobody else has its tasks, so its rest is short."""
        self._rested_s = _PAUSE_S if is_alone else self._rest_s
        self.is_out, self._stays, self._joins_s = True, False, monotonic() + self._rested_s
        if not is_alone:
            self._rest_s = min(2 * self._rest_s, _MOST_REST_S)

    def may_work(self) -> bool:
        """Whether to start the tasks, or to go on with them. Tries the disk now and then while it has refused
        something."""
        if not (self._is_waiting or self.is_out):
            return True
        now_s = monotonic()
        if now_s < max(self._tries_s, self._joins_s if self.is_out else 0.0) or (self.is_out and self._heard):
            return False
        try:
            check_writable(self._directory / f"{self._name}.probe")
        except StorageError as error:
            self.failed(error, self._commits)
            return False
        if self.is_out:
            _log.info("Joining the group again")
            self._failures = 0
        self.is_out = self._is_waiting = False
        return True

    def runs(self, commits: int) -> None:
        """All tasks run: a commit since the last failure, or some time, shows that the disk takes everything again."""
        if not self._why:
            return
        now_s = monotonic()
        self._settled_s = self._settled_s or now_s
        if commits > self._commits or now_s >= self._settled_s + _LASTS_S:
            _log.info("The tasks run again")
            self._why, self._failures, self._fit_s = "", 0, now_s
