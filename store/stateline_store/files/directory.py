"""The state directory: the places of tasks' stores, and the locks of their owners.

    <state.dir>/<application.id>/                  0o750
        kafka-streams-process-metadata             JSON (`process_metadata.py`)
        .relocation.lock, .relocation.json         while stores move (`relocation.py`)
        global/<instance>/                         a worker's stores of all partitions, laid out as a task is
        snapshots/                                 checkpoints and their leases (`snapshot_directory.py`)
        copies/                                    stores that arrive from other machines (`store_copies.py`)
        <task>/                                    <subtopology>_<partition>, 0o750
            .lock                                  0o640, flock of the task's owner; holds its pid as text; its
                                                   mtime says when the task was last taken or given up
            rocksdb/<store>/                       a plain store (v1)
            rocksdb/<store>-v2/                    a timestamped store (KIP-258)
            <store>.notice, <store>-v2.notice      commit notices
            .deleted-…                             what an interrupted deletion left; the next owner removes it

On disk: never change these names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from pathlib import Path
from types import TracebackType
from uuid import UUID

from stateline_store.errors import InvalidArgumentError, LockedError
from stateline_store.files.commit_notice import CommitNotice
from stateline_store.files.durable_files import FILE_MODE, refused
from stateline_store.files.offset_checkpoint import OFFSET_CHECKPOINT
from stateline_store.files.process_metadata import process_id
from stateline_store.task_id import TaskId

DIRECTORY_MODE = 0o750  # Kafka Streams' rwxr-x---
LOCK_FILE = ".lock"  # on disk: never change
GLOBAL = "global"  # on disk: never change
STORES = "rocksdb"  # on disk: never change
_DELETED = ".deleted-"  # on disk: never change
_FEW_TABLES = 16
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def is_name(text: str) -> bool:
    """Return whether a directory here can have this name."""
    return _NAME.fullmatch(text) is not None and text not in (".", "..")


def global_task(instance: str) -> str:
    """Return the id, such as ``global/worker-0``, under which a worker's global stores are found in place of a task.
    They hold every partition. Each worker of a state directory has its own."""
    return f"{GLOBAL}/{instance}"


def directory_name(store_name: str, *, timestamped: bool) -> str:
    """Return the store's name on disk. The two formats never share a directory. Raises `InvalidArgumentError` for a
    name that would be taken for the other format's."""
    if store_name.endswith("-v2"):
        raise InvalidArgumentError(f"Store name {store_name!r}: '-v2' at the end marks timestamped stores on disk.")
    return f"{store_name}-v2" if timestamped else store_name


def store_path(task: Path, store_name: str, *, timestamped: bool) -> Path:
    """Return the path of the store's database, below its task's directory."""
    return task / STORES / directory_name(store_name, timestamped=timestamped)


def has_stores(task: Path) -> bool:
    """Return whether this task's directory has any store."""
    return any((task / STORES).glob("*"))


def holds_database(path: Path) -> bool:
    """Return whether this directory has a store's database. An empty directory, or other files, are none."""
    return (path / "CURRENT").exists()


def holds_few_tables(path: Path) -> bool:
    """Return whether the database in this directory has so few tables that one thread opens them at once."""
    return sum(name.endswith(".sst") for name in os.listdir(path)) <= _FEW_TABLES


def notice_path(task: Path, store_name: str, *, timestamped: bool) -> Path:
    """Return the path of the store's commit notice, below its task's directory."""
    return task / f"{directory_name(store_name, timestamped=timestamped)}.notice"


def make_directory(path: Path) -> None:
    """Create a directory and its parents, 0o750 each. An existing one is left as it is. Raises `RetryLaterError` naming
    the path when the file system refuses (read-only, full, no permission)."""
    try:
        for folder in reversed([path, *path.parents]):
            if not folder.exists():
                folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        if not path.is_dir():
            raise InvalidArgumentError(f"{path} is not a directory: move it away, or set another state.dir.")
    except OSError as error:
        raise refused(path, "created", error) from error


class TaskLock:
    """The ownership of one task's directory, held until `release` or the end of the process, however it ends.

    A second lock in the same process conflicts as well. Not inherited by programs that this process starts.
    `last_used_ms` is when it was last taken or released before, in milliseconds since the epoch.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises `LockedError` naming the path and the pid of its holder, and `RetryLaterError` when the
        file system refuses."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise refused(path, "opened", error) from error
        try:
            # flock belongs to the open file, so that a second open of this very process conflicts too (fcntl
            # locks belong to the process: any close of the file would drop them).
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise LockedError(
                f"{path} is held by process {holder}: one process owns a task at a time. Stop it, or wait."
            ) from error
        self.last_used_ms = os.fstat(self._fd).st_mtime_ns // 1_000_000  # before this lock was taken
        # The pid is only for messages: on a full disk, an owner that frees space must still get the task.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the task up. A second call does nothing. The file stays: removing it would let two owners in."""
        if self._fd >= 0:
            now = time.time_ns()
            # The cleaner counts from here. It cannot clean where this cannot be written.
            with contextlib.suppress(OSError):
                os.utime(self._fd, ns=(now, now))
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> TaskLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class StateDirectory:
    """The paths of one application below `state_dir`. Only the locks and the deletions change anything. Thread-safe: it
    never changes."""

    def __init__(self, state_dir: Path, application_id: str) -> None:
        """Create the application's directory. Raises `RetryLaterError` if it cannot be created."""
        if not is_name(application_id):
            raise InvalidArgumentError(
                f"{application_id!r} is not an application.id: letters, digits, '.', '_' and '-' make one."
            )
        self.application = state_dir / application_id
        make_directory(self.application)

    def process_id(self) -> UUID:
        """Return the id of this directory, the same for every process that shares it, and kept across restarts. Raises
        `RetryLaterError` naming the file when the file system refuses."""
        return process_id(self.application)

    def task(self, task_id: str) -> Path:
        """Return the directory of a task, or of an id of `global_task`. It need not exist. Raises
        `InvalidArgumentError` for another form of id."""
        place, _, instance = task_id.partition("/")
        if place != GLOBAL or not is_name(instance):
            TaskId.parse(task_id)
        return self.application / task_id

    def store(self, task_id: str, store_name: str, *, timestamped: bool) -> Path:
        """Return the path of this store's database, which need not exist."""
        return store_path(self.task(task_id), store_name, timestamped=timestamped)

    def notice(self, task_id: str, store_name: str, *, timestamped: bool) -> Path:
        """Return the path of this store's commit notice, which need not exist."""
        return notice_path(self.task(task_id), store_name, timestamped=timestamped)

    def lock_task(self, task_id: str) -> TaskLock:
        """Lock a task, and create its directory. Raises `LockedError` while another owner lives, `RetryLaterError` when
        the file system refuses."""
        return _lock(self.task(task_id))

    def tasks(self) -> list[str]:
        """Return the ids of the tasks that have a directory here, in order of their numbers. Raises `RetryLaterError`
        naming the directory if it may not be read."""
        try:
            names = [entry.name for entry in self.application.iterdir() if entry.is_dir()]
        except OSError as error:
            raise refused(self.application, "read", error) from error
        return sorted(filter(TaskId.is_one, names), key=TaskId.parse)

    def global_tasks(self) -> list[str]:
        """Return the ids (`global_task`) of the workers that have global stores here, in order. Raises as `tasks`."""
        try:
            instances = [entry.name for entry in (self.application / GLOBAL).iterdir() if entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused(self.application / GLOBAL, "read", error) from error
        return [global_task(name) for name in sorted(instances) if is_name(name)]

    def all_tasks(self) -> list[str]:
        """Return `tasks`, then `global_tasks`. Raises as `tasks`."""
        return [*self.tasks(), *self.global_tasks()]

    def delete_task(self, lock: TaskLock) -> None:
        """Delete everything of the task with this lock except the lock file. Its stores must be closed.

        First, readers in other processes are told: they raise `NotPresentError` from then on. A database is deleted in
        one step, because after a crash half of one could be taken for a whole one. Raises `RetryLaterError` naming the
        task when the file system refuses.
        """
        task = lock.path.parent
        try:
            for notice in task.glob("*.notice"):
                CommitNotice(notice).withdraw()
            for entry in sorted(task.iterdir(), key=_deleting_order):
                if entry != lock.path and not entry.name.startswith(_DELETED):
                    os.rename(entry, task / f"{_DELETED}{entry.name}")
            _empty_trash(task)
        except OSError as error:
            raise refused(task, "deleted", error) from error

    def delete_store(self, lock: TaskLock, store_name: str) -> bool:
        """Delete a store of the task with this lock, in both formats. The task's other stores stay. Returns whether
        there was anything. The store must be closed. Readers, crashes and errors are as in `delete_task`."""
        task = lock.path.parent
        found = [task / f"{store_name}.position", task / store_name]
        found += [task / STORES / name for name in (store_name, f"{store_name}-v2")]
        there = [entry for entry in found if entry.exists()]
        try:
            for timestamped in (False, True):
                notice = notice_path(task, store_name, timestamped=timestamped)
                if notice.exists():
                    CommitNotice(notice).withdraw()
            for number, entry in enumerate(there):
                os.rename(entry, task / f"{_DELETED}{number}-{entry.name}")
            _empty_trash(task)
        except OSError as error:
            raise refused(task, "deleted", error) from error
        return bool(there)


def _lock(folder: Path) -> TaskLock:
    make_directory(folder)
    lock = TaskLock(folder / LOCK_FILE)
    try:
        _empty_trash(folder)
    except OSError as error:
        lock.release()
        raise refused(folder, "tidied up", error) from error
    return lock


def _deleting_order(entry: Path) -> int:
    """Sort offsets first, which must not outlive their data, then data, then the files that say how to read it."""
    if entry.name == OFFSET_CHECKPOINT or entry.suffix == ".position":
        return 0
    return 1 if entry.is_dir() else 2


def _empty_trash(folder: Path) -> None:
    for trash in folder.glob(f"{_DELETED}*"):
        shutil.rmtree(trash) if trash.is_dir() else trash.unlink()
