"""Closes many tasks at a time: to close a store takes half a dozen syncs of the disk, and little of a processor."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from stateline.worker.task import Task
from stateline_store.rocksdb_options import flushing_at_once

_log = logging.getLogger(__name__)

_AT_ONCE = 8
_SAID_AGAIN_S = 5.0  # how often it is logged how far closing is


def close_together(tasks: Collection[Task]) -> Iterator[tuple[Task, Exception | None]]:
    """Close each task, and yield it with the error that `Task.close` raised. Every task is closed when the iterator
    ends."""
    said_s = time.monotonic()
    for number, closed in enumerate(_closed(tasks), start=1):
        yield closed
        if number < len(tasks) and time.monotonic() > said_s + _SAID_AGAIN_S:
            said_s = time.monotonic()
            _log.info("Closing tasks: %d of %d are closed", number, len(tasks))


def _closed(tasks: Collection[Task]) -> Iterator[tuple[Task, Exception | None]]:
    """A store of the application's own closes on this thread, which has opened it."""
    beside = [task for task in tasks if task.stores.close_on_any_thread]
    with flushing_at_once(min(_AT_ONCE, len(beside))), ThreadPoolExecutor(_AT_ONCE, "close") as pool:
        closing = {pool.submit(_close, task): task for task in beside}
        yield from ((task, _close(task)) for task in tasks if not task.stores.close_on_any_thread)
        yield from ((closing[done], done.result()) for done in as_completed(closing))


def _close(task: Task) -> Exception | None:
    try:
        task.close()
    except Exception as error:  # noqa: BLE001 - the others are closed all the same
        return error
    return None
