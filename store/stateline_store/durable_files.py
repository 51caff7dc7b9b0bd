"""Small files that a crash leaves whole, and what a file system's refusal means for whoever has to mend it."""

from __future__ import annotations

import errno
import os
import pwd
import tempfile
from pathlib import Path

from stateline_store.errors import RetryLaterError
from stateline_store.steps import reached

FILE_MODE = 0o640


def replace_file(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Put this content in place of what the file holds, durably: after a crash at any step it is the old or the new.
    Without `sync` readers see the one or the other as well, but a power cut may take both.

    Readers may come at any time; writers take a lock of their own. Raises `RetryLaterError` naming the path when the
    file system refuses: the file is as it was then.
    """
    draft = None
    try:
        # A name of its own each time: a draft that a crash left behind is in nobody's way.
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, FILE_MODE)
            file.write(content)
            if sync:
                file.flush()
                os.fsync(handle)
        reached("file:draft-written")
        os.rename(draft, path)
        draft = None
        if sync:
            sync_directory(path.parent)
    except OSError as error:
        raise refused(path, "written", error) from error
    finally:
        if draft is not None:
            os.unlink(draft)


def sync_directory(directory: Path) -> None:
    """Make the names in it durable: a rename or an unlink lasts only once its directory is on disk.

    Raises `OSError`.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refused(path: Path, done: str, error: OSError) -> RetryLaterError:
    """The error for a path that cannot be `done` ("created", "opened", …): why, and what to do about it."""
    return RetryLaterError(f"{path} cannot be {done}: {error.strerror}. {_advice(path, error.errno)}.")


def _advice(path: Path, code: int | None) -> str:
    if code in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space, then try again; nothing was deleted"
    if code == errno.EROFS:
        return "The file system is read-only: mount it writable, or set another state.dir"
    if code in (errno.EACCES, errno.EPERM):
        return f"{_ownership(path)}: run as its owner, let this user write there, or set another state.dir"
    return "Make it writable, or set another state.dir"


def _ownership(path: Path) -> str:
    """Whose the path is, or the nearest of its parents that this user can see."""
    for place in (path, *path.parents):
        try:
            owner = place.stat().st_uid
        except OSError:
            continue
        return f"{place} belongs to {_user(owner)}, and this process runs as {_user(os.geteuid())}"
    return f"This process runs as {_user(os.geteuid())}"


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"
