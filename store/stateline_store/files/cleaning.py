"""Delete tasks, and workers' global stores, that this machine has not used for a long time.

The cleaner deletes a task if all of these hold. It checks them again under the task's lock:

- The task is not `live` here, and no process holds its lock.
- No file of it was modified for `older_than_ms` (``state.cleanup.delay.ms``). Owners touch the lock file when they take
  and release it.
- `keep` does not protect it. The caller knows which stores cannot be rebuilt.
- No interrupted relocation still has to move a store of it.

The lock file stays, because it decides who owns the task. If it were removed, two processes could lock the task.
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
    """Delete unused tasks (rules above). Returns their ids, in the order of their numbers.

    `live` has the tasks that this process has or will open. `now_ms` is the time since the epoch. A task in use is
    stamped as used now, so a later kill of its owner leaves it protected. So wait for the delay between a start and the
    first call. A task that cannot be deleted is logged, and tried again at the next call. Several processes and threads
    may clean one directory at once.
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
    # The lock's time is from before this process took it. An owner may have used the task since the first look.
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
