"""The cleaner: deletes tasks, and workers' global stores, that this machine has not had for a long time; nothing else.

A task goes when all of this holds, looked at again under the task's own lock, which the cleaner must get first:

- it is not `live` here, and no process holds its lock;
- nothing of it was touched for `older_than_ms` (``state.cleanup.delay.ms``): the newest modification time of the lock
  file, which its owners stamp when they take and when they release it, and of everything else in it;
- `keep` does not protect it: the store that nothing can rebuild is the caller's to know;
- no relocation is under way that has still to move a store of it.

The lock file stays: it is the one thing that decides who owns the task (removed, it could be locked twice).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path

from stateline_store.errors import LockedError, NewerFormatError, RetryLaterError
from stateline_store.files.directory import LOCK_FILE, StateDirectory, TaskLock
from stateline_store.files.relocation_journal import journal_path

_log = logging.getLogger(__name__)


def clean(
    directory: StateDirectory, live: Collection[str], older_than_ms: int, now_ms: int, keep: Callable[[str], bool]
) -> list[str]:
    """Delete the tasks that are to go (rules above); their ids, in order of their numbers.

    `live` are the tasks that this process has or is about to open, `now_ms` is the time since the epoch. A task that
    is found in use is stamped as used now, so that an owner that is killed later leaves it protected from the last
    pass on: let a delay pass between a start and the first call. A task that cannot be deleted is logged and left for
    the next call. Several processes may clean the same directory at once; any thread may call.
    """
    return [task for task in directory.all_tasks() if _clean_task(directory, task, live, older_than_ms, now_ms, keep)]


def _clean_task(
    directory: StateDirectory,
    task: str,
    live: Collection[str],
    older_than_ms: int,
    now_ms: int,
    keep: Callable[[str], bool],
) -> bool:
    folder, before_ms = directory.task(task), now_ms - older_than_ms
    try:
        if task in live:
            _stamp(folder, now_ms)
            return False
        if not _holds_anything(folder) or _touched_ms(folder) >= before_ms or keep(task):
            return False
        with directory.lock_task(task) as lock:
            return _delete(directory, lock, before_ms)
    except LockedError:
        _stamp(folder, now_ms)
    except (OSError, RetryLaterError, NewerFormatError) as error:
        _log.warning("Task %s is not cleaned, and tried again later: %s", task, error)
    return False


def _delete(directory: StateDirectory, lock: TaskLock, before_ms: int) -> bool:
    """Return whether the task was deleted. Otherwise it was opened meanwhile, or is being relocated."""
    folder = lock.path.parent
    # The lock's own time is from before we took it: an owner may have come and gone since the first look.
    if max(lock.last_used_ms, _touched_ms(folder, but=LOCK_FILE)) >= before_ms:
        return False
    if journal_path(directory).exists():
        _log.warning("%s is not cleaned: a relocation was interrupted, and the next start finishes it", folder)
        return False
    directory.delete_task(lock)
    _log.info("Deleted %s: nobody has used it for longer than the cleanup delay", folder)
    return True


def _holds_anything(folder: Path) -> bool:
    return any(name != LOCK_FILE for name in os.listdir(folder))


def _touched_ms(folder: Path, *, but: str = "") -> int:
    newest = 0
    for place, _, files in os.walk(folder):
        for path in [place, *(os.path.join(place, name) for name in files if name != but)]:
            with contextlib.suppress(FileNotFoundError):  # its owner compacts meanwhile
                newest = max(newest, os.lstat(path).st_mtime_ns)
    return newest // 1_000_000


def _stamp(folder: Path, now_ms: int) -> None:
    """Mark the task as used now. Never set the time back: an owner may have a later clock."""
    path = folder / LOCK_FILE
    with contextlib.suppress(FileNotFoundError):  # about to be opened for the first time
        if path.stat().st_mtime_ns < now_ms * 1_000_000:
            os.utime(path, ns=(now_ms * 1_000_000, now_ms * 1_000_000))
