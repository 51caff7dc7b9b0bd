"""As many drivers of a state directory start Spark at a time as there are processors: the first ones are up while the
others wait, instead of all of them late.

A driver that starts has locked one of ``<application.id>/.pipeline-starts-<n>``; Linux lets go of it when the driver
ends, however that is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stateline_store import LockedError, TaskLock

_LOOK_S = 0.1
_PATIENCE_S = 60.0  # longer than a start takes: one that hangs must not keep the others from theirs


@contextmanager
def in_turn(application: Path, stopping: threading.Event, of: int | None = None) -> Iterator[Callable[[], None]]:
    """Wait until fewer than `of` drivers start (the processors here), or `stopping` is set; gets what says that this
    one has started, which the end of the block says, too."""
    turn = _turn(application, stopping, of or os.cpu_count() or 1)
    letting_go = threading.Lock()  # several pipelines of a driver may have started at once

    def has_started() -> None:
        if turn is not None:
            with letting_go:
                turn.release()  # a second time does nothing

    try:
        yield has_started
    finally:
        has_started()


def _turn(application: Path, stopping: threading.Event, processors: int) -> TaskLock | None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        for number in range(processors):
            try:
                return TaskLock(application / f".pipeline-starts-{number}")
            except LockedError:
                continue
        if time.monotonic() >= deadline_s or stopping.wait(_LOOK_S):
            return None
