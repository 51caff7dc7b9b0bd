"""`Fitness`: whether a worker can run its tasks, and when it leaves its group because it cannot.

| event                                                | then the worker                                               |
|------------------------------------------------------|---------------------------------------------------------------|
| the disk refuses a task's write or read              | drops its tasks and starts them again                         |
| two starts in a row fail, or none succeeds in 15 s   | leaves its group for good, and others get its tasks           |
| no server of this node runs any more, or no other    | keeps working for 15 s. Then it leaves its group, unless it   |
| node links with it                                   | is alone there or another worker had to leave lately          |
| the same, after the worker has stayed                | keeps working                                                 |
| it is out, and a file can be written again           | rests for 5 s, each time twice as long if others have its     |
|                                                      | tasks, and joins again                                        |
"""

from __future__ import annotations

import logging
from pathlib import Path
from time import monotonic

from stateline_store import StorageError
from stateline_store.files.durable_files import check_writable

_log = logging.getLogger(__name__)

_STARTS = 2
_LASTS_S = 15.0
_PAUSE_S = 5.0
# A server with a fault repeats it. After this long without it, the server has no fault or is gone.
_SAID_FOR_S = 10.0
_MOST_REST_S = 600.0
# After this much work, the next rest is as short as the first.
_STABLE_S = 60.0


class Fitness:
    """`directory` has its stores. Its files there begin with `name`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self.is_out = False
        """Whether the worker has left its group because of this."""
        self.crashed = ""
        """Why it is not to join its group yet (`crash_loop`); empty when it is."""
        self._why = ""
        self._is_waiting = False  # to start its tasks again
        self._failed_s = 0.0  # the first refusal since the disk accepted everything last
        self._failures = self._commits = 0
        self._tries_s = self._joins_s = 0.0
        self._settled_s: float | None = None
        self._rest_s = self._rested_s = _PAUSE_S
        self._fit_s: float | None = None  # since when the disk accepts everything again
        self._said, self._said_s, self._said_since_s = "", -_SAID_FOR_S, 0.0
        self._stays = False  # despite `hear`

    @property
    def fault(self) -> str:
        """Why tasks do not run here or cannot be queried, in whole sentences. Empty without a fault."""
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
        if self.is_out:
            return False
        now_s = monotonic()
        if self._heard and now_s >= self._said_since_s + _LASTS_S:
            return True
        return self._is_waiting and (self._failures > _STARTS or now_s >= self._failed_s + _LASTS_S)

    @property
    def is_working(self) -> bool:
        return not self._is_waiting

    def put_off(self) -> None:
        """Keep the tasks despite `hear`, and report no fault. The decision is taken again after the same time."""
        self._said_since_s, self._stays = monotonic(), True

    @property
    def _heard(self) -> str:
        return self._said if monotonic() < self._said_s + _SAID_FOR_S else ""

    def failed(self, error: StorageError, commits: int) -> None:
        """The disk has refused something. `commits` is the number of commits so far."""
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
        """Note that the worker cannot be queried. `why` comes from this node's server, or says that there is none."""
        now_s = monotonic()
        if not self._heard:
            self._said_since_s, self._stays = now_s, False
        self._said, self._said_s = why, now_s

    def left(self, *, is_alone: bool = False) -> None:
        """Note that the worker has left its group. `is_alone`: no other worker gets its tasks, so its rest is short."""
        self._rested_s = _PAUSE_S if is_alone else self._rest_s
        self.is_out, self._stays, self._joins_s = True, False, monotonic() + self._rested_s
        if not is_alone:
            self._rest_s = min(2 * self._rest_s, _MOST_REST_S)

    def may_work(self) -> bool:
        """Return whether to start or to run the tasks. After a refusal it tries the disk now and then."""
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
        """All tasks run. A commit since the last failure, or 15 s, shows that the disk accepts everything again."""
        if not self._why:
            return
        now_s = monotonic()
        self._settled_s = self._settled_s or now_s
        if commits > self._commits or now_s >= self._settled_s + _LASTS_S:
            _log.info("The tasks run again")
            self._why, self._failures, self._fit_s = "", 0, now_s
