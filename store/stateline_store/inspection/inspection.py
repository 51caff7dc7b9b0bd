"""Reads a state directory offline: applications, tasks, stores, and the files around them.

It writes, creates and removes nothing, and keeps no lock. So it may run beside workers and in a read-only directory. An
unreadable part becomes an `UnreadablePart`, and the rest is shown. Thread-safe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from stateline_store.errors import (
    CallerError,
    DamagedDataError,
    DoesNotExistError,
    InvalidArgumentError,
    RetryLaterError,
    StatelineError,
)
from stateline_store.files.directory import GLOBAL, global_task
from stateline_store.files.offset_checkpoint import OFFSET_CHECKPOINT, read_offset_checkpoint, read_position
from stateline_store.inspection.inspection_report import (
    ApplicationReport,
    DirectoryReport,
    Level,
    OtherFile,
    State,
    StoreReport,
    TaskReport,
    UnreadablePart,
)
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.task_id import TaskId

_APPLICATION_MARKS = ("topology.json", "kafka-streams-process-metadata")  # only such a directory has these
_APPLICATION_FILES = frozenset(
    {*_APPLICATION_MARKS, "instances", "pipelines", "snapshots", ".lock", ".relocation.lock"}
)
_TASK_FILES = frozenset({".lock", "rocksdb", OFFSET_CHECKPOINT, "topics.json"})
_TRASH = (".wiped-", ".deleted-")
_JOURNALS = (".relocation.json",)
_Content = TypeVar("_Content")


def inspect_directory(path: Path) -> DirectoryReport:
    """Inspect a state directory, an application's directory in one, or a task's. Raises `DoesNotExistError` if the path
    does not exist, `InvalidArgumentError` if it is none of these three, and `RetryLaterError` if it may not be read."""
    where = path.absolute()
    found = level_of(where)
    if found == "task":
        application = ApplicationReport(where.parent.name, where.parent, (inspect_task(where),))
        return DirectoryReport(path, found, (application,))
    homes = (
        [where]
        if found == "application"
        else [entry for entry in _folders(where) if _is_application(entry) is not False]
    )
    return DirectoryReport(path, found, tuple(inspect_application(home) for home in homes))


def level_of(path: Path) -> Level:
    """Return the level of this directory in a state directory. Raises as `inspect_directory`."""
    if not os.path.lexists(path):
        raise DoesNotExistError(f"There is no {path}: give {_EXPECTED}.")
    if not path.is_dir():
        raise InvalidArgumentError(f"{path} is a file: give {_EXPECTED}.")
    try:
        if _is_application(path):
            return "application"
        if _is_task(path):
            return "task"
        if (path / "log.db").is_file() or any(_is_application(entry) for entry in _folders(path)):
            return "state directory"
        names = sorted(os.listdir(path))
    except OSError as error:
        raise RetryLaterError(f"{path} cannot be read: {error.strerror}. Inspect it as its owner.") from error
    holds = f"it holds {', '.join(names[:5])}{', …' if names[5:] else ''}" if names else "it is empty"
    raise InvalidArgumentError(f"{path} is no state directory: {holds}. Give {_EXPECTED}.")


_EXPECTED = (
    "a state directory (state.dir, .stateline unless set), the directory of an application in it, or that of a task "
    "(such as 0_3)"
)


def inspect_application(path: Path) -> ApplicationReport:
    """Inspect one application's directory."""
    problems: list[UnreadablePart] = []
    folders = _read(path, lambda: list(_folders(path)), problems) or []
    tasks = [inspect_task(folder) for each in sorted(folders, key=_by_number) for folder in _task_folders(each)]
    known = _APPLICATION_FILES | {task.task_id.partition("/")[0] for task in tasks}
    others = _read(path, lambda: tuple(_others(path, known)), problems) or ()
    return ApplicationReport(path.name, path, tuple(tasks), others, tuple(problems))


def inspect_task(path: Path) -> TaskReport:
    """Inspect one task's directory."""
    problems: list[UnreadablePart] = []
    names = _read(path, lambda: sorted(os.listdir(path)), problems) or []
    locked, owner_pid = lock_holder(path / ".lock")
    databases = list(_read(path, lambda: list(_folders(path / "rocksdb")), problems) or [])
    positions = {
        name.removesuffix(".position"): _read(path / name, partial(read_position, path / name), problems)
        for name in names
        if name.endswith(".position")
    }
    known = {name for name in names if name in _TASK_FILES or name.endswith((".notice", ".position"))}
    return TaskReport(
        global_task(path.name) if path.parent.name == GLOBAL else path.name,
        path,
        locked,
        owner_pid,
        tuple(inspect_store(database) for database in sorted(databases)),
        _present(names, OFFSET_CHECKPOINT, path, read_offset_checkpoint, problems),
        {name: position for name, position in positions.items() if position is not None},
        _present(names, "topics.json", path, _read_topics, problems),
        _read(path, lambda: tuple(_others(path, known)), problems) or (),
        tuple(problems),
    )


def inspect_store(path: Path) -> StoreReport:
    """Inspect one store's database. Never raises for its content: see `StoreReport.problem`."""
    timestamped = path.name.endswith("-v2")
    name = path.name.removesuffix("-v2")
    size_bytes = _size(path)
    try:
        with OfflineStore(path) as store:
            layout = store.layout
            return StoreReport(
                name,
                path,
                timestamped if layout is None else layout.timestamped,
                size_bytes,
                "key_value" if layout is None else layout.kind,
                layout,
                store.format_version,
                store.commit,
                store.approximate_num_entries(),
            )
    except StatelineError as error:
        return StoreReport(name, path, timestamped, size_bytes, problem=problem_of(path, error))


def may_be_held(path: Path) -> bool:
    """Return whether a process holds this task's lock, or may: `lock_holder` cannot tell."""
    return lock_holder(path)[0] is not False


def lock_holder(path: Path) -> tuple[bool | None, int | None]:
    """Return whether a process holds this task's lock now, and its process id.

    It takes a shared lock for a moment. An owner that opens the task in this moment tries again (`LockedError`).
    Returns (None, None) if the file may not be read, or its file system has no locks.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False, None
    except OSError:
        return None, None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 20, 0).decode(errors="replace").strip()
        return True, int(text) if text.isdecimal() else None
    except OSError:  # a file system without locks
        return None, None
    else:
        return False, None
    finally:
        os.close(fd)


def _is_application(path: Path) -> bool | None:
    """Whether it holds tasks, or files that only an application's directory has. None if it may not be read."""
    try:
        holds_tasks = any(_is_task(folder) for folder in _folders(path))
        return holds_tasks or any((path / name).is_file() for name in _APPLICATION_MARKS)
    except PermissionError:
        return None


def _folders(path: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        yield from sorted(Path(entry.path) for entry in entries if entry.is_dir())


def _is_task(folder: Path) -> bool:
    """Return whether this is a task's directory, or one of global stores. Kafka Streams keeps those in `global`,
    Stateline each worker's in a folder of that."""
    return GLOBAL in (folder.name, folder.parent.name) or TaskId.is_one(folder.name)


def _task_folders(folder: Path) -> list[Path]:
    """Return the task folders here: the folder itself, one for each worker with global stores, or none."""
    if folder.name == GLOBAL and not (folder / "rocksdb").is_dir():
        return list(_folders(folder))
    return [folder] if _is_task(folder) else []


def _by_number(folder: Path) -> tuple[int, ...]:
    return TaskId.parse(folder.name) if TaskId.is_one(folder.name) else ()


def _others(path: Path, known: Iterable[str]) -> Iterator[OtherFile]:
    for name in sorted(set(os.listdir(path)) - set(known)):
        what: Literal["trash", "journal", "other"] = "other"
        if name.startswith(_TRASH):
            what = "trash"
        elif name.startswith(_JOURNALS):
            what = "journal"
        yield OtherFile(path / name, what, _size(path / name))


def _size(path: Path) -> int:
    """Return the bytes on disk, as far as they may be read. Files that are deleted meanwhile do not count."""
    total = 0
    with contextlib.suppress(OSError):
        total += path.lstat().st_blocks * 512
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512  # POSIX: st_blocks counts 512 bytes
    return total


def _present(
    names: list[str], name: str, task: Path, read: Callable[[Path], _Content], problems: list[UnreadablePart]
) -> _Content | None:
    return _read(task / name, lambda: read(task / name), problems) if name in names else None


def _read_topics(path: Path) -> dict[str, str]:
    try:
        topics = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedDataError(f"{path} is not JSON: {error}. Delete it: the worker writes it again.") from error
    if not isinstance(topics, dict) or not all(isinstance(topic_id, str) for topic_id in topics.values()):
        raise DamagedDataError(f"{path} does not map topics to topic ids. Delete it: the worker writes it again.")
    return topics


def _read(path: Path, read: Callable[[], _Content], problems: list[UnreadablePart]) -> _Content | None:
    """Return the content, or None and add a problem."""
    try:
        return read()
    except (OSError, StatelineError) as error:
        problems.append(problem_of(path, error))
        return None


def problem_of(path: Path, error: OSError | StatelineError) -> UnreadablePart:
    """Describe this error as a problem of a part of the directory."""
    if isinstance(error, OSError):
        return UnreadablePart(
            path, "not readable", f"{path} cannot be read: {error.strerror}. Inspect it as its owner."
        )
    state: State = "not readable"
    if isinstance(error, DamagedDataError):
        state = "damaged"
    elif isinstance(error, CallerError):
        state = "newer format"
    return UnreadablePart(path, state, str(error))
