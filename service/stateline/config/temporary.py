"""Choose a directory for a process's temporary files."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from stateline.config.settings import Config
from stateline_store.errors import ConfigurationError, RetryLaterError
from stateline_store.files.directory import TaskLock, make_directory

_log = logging.getLogger(__name__)

_PLACE = "tmp"  # on disk: never change
_LOCK = ".lock"  # on disk: never change
# Python tries these before the working directory.
_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_USUAL = ("/tmp", "/var/tmp", "/usr/tmp")

_locks: list[TaskLock] = []  # held until the process ends


def use_temporary_directory(config: Config) -> None:
    """Make `tempfile` use a writable directory: that of ``TMPDIR`` or the system, or else a new one in the
    application's state directory, deleted at the end of the process.

    Raises `ConfigurationError` if neither is writable, and `RetryLaterError` if the disk is full.
    """
    asked = [found for name in _VARIABLES if (found := os.environ.get(name))] + list(_USUAL)
    with suppress(FileNotFoundError):  # none is writable
        found = os.path.realpath(tempfile.gettempdir())
        if found != os.getcwd() or found in map(os.path.realpath, asked):
            return
    place = config.state_dir.absolute() / config.application_id / _PLACE
    try:
        tempfile.tempdir = str(_made(place))
    except (OSError, RetryLaterError) as error:
        tempfile.tempdir = None
        cause = error if isinstance(error, OSError) else error.__cause__
        is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (RetryLaterError if is_full else ConfigurationError)(
            f"A directory for temporary files is needed, and none of {', '.join(dict.fromkeys(asked))} and {place} can "
            f"be written ({error.strerror if isinstance(error, OSError) else error}). Set the environment variable "
            "TMPDIR to a directory that this user can write to (10 MB are enough), or make state.dir writable."
        ) from error
    _log.info("Temporary files are in %s, because none of %s can be written", place, ", ".join(dict.fromkeys(asked)))


def _made(place: Path) -> Path:
    make_directory(place)
    for left in place.glob(f"*{_LOCK}"):
        with suppress(OSError, RetryLaterError):  # another process has it
            lock = TaskLock(left)
            _removed(left.with_suffix(""), lock)
    made = place / secrets.token_hex(8)
    lock = TaskLock(made.with_name(f"{made.name}{_LOCK}"))
    made.mkdir(mode=0o700)
    _locks.append(lock)
    atexit.register(_removed, made, lock)
    return made


def _removed(directory: Path, lock: TaskLock) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):
        lock.path.unlink()
    lock.release()
