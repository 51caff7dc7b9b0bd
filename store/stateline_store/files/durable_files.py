"""Small files that are replaced as a whole, durably, and errors for refusals of the file system."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import tempfile
from pathlib import Path

from stateline_store.errors import StorageError
from stateline_store.steps import reached

FILE_MODE = 0o640
PROBE_BYTES = 4 << 20
"""What a disk must have room for before stores are opened on it again: about what one flush writes."""


def replace_file(
    path: Path, content: bytes, *, mode: int = FILE_MODE, sync: bool = True, only_writer: bool = False
) -> None:
    """Replace the file's content. Readers at any time see the old or the new content.

    With `sync`, so do readers after a power cut, at the cost of two fsyncs. Without it for content that is written
    again anyway, such as a status. `only_writer`: the caller's own lock keeps other writers out. Then the draft has the
    fixed name ``<name>.tmp``, and the next write replaces a draft that a crash has left. Such a file has `mode` as far
    as the umask allows, others exactly. With several writers, the last one wins. Raises `StorageError` naming the path
    when the file system refuses. The file is then unchanged.
    """
    draft = None
    try:
        handle, draft = _draft(path, mode, only_writer=only_writer)
        with os.fdopen(handle, "wb") as file:
            if not only_writer:
                os.fchmod(handle, mode)
            reached(f"{path.name}:draft-created")
            file.write(content)
            if sync:
                file.flush()
                os.fsync(handle)
        reached(f"{path.name}:draft-written")
        os.rename(draft, path)
        draft = None
        reached(f"{path.name}:renamed")
        if sync:
            sync_directory(path.parent)
    except OSError as error:
        raise refused(path, "written", error) from error
    finally:
        if draft is not None:
            _discard(draft)


def create_file(path: Path, content: bytes, *, mode: int) -> None:
    """Make a file with this content, unless it exists. If several processes do this at once, the first one's file
    stays. It is whole as soon as it can be seen, and after a power cut too. Raises `OSError`."""
    handle, draft = _draft(path, mode, only_writer=False)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(content)
            file.flush()
            os.fsync(handle)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
            sync_directory(path.parent)
    finally:
        _discard(draft)


def has_room(directory: Path) -> bool:
    """Return whether the file system says that `PROBE_BYTES` can be written in this directory."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= PROBE_BYTES and not found.f_flag & os.ST_RDONLY


def check_writable(path: Path) -> None:
    """Raise `StorageError` unless a file of `PROBE_BYTES` can be written here and synced. The file is deleted again."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(bytes(PROBE_BYTES))
                file.flush()
                os.fsync(handle)
        finally:
            _discard(str(path))
    except OSError as error:
        raise refused(path, "written", error) from error


def remove_file(path: Path) -> None:
    """Delete the file, if it exists, durably also after a power cut. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        reached(f"{path.name}:removed")
        sync_directory(path.parent)


def _draft(path: Path, mode: int, *, only_writer: bool) -> tuple[int, str]:
    """Return an empty file beside this one, opened, and its path."""
    if only_writer:
        draft = f"{path}.tmp"
        return os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), draft
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")


def _discard(draft: str) -> None:
    """Delete a draft, so that a full disk does not fill with names. The caller's error counts, not one of this
    deletion."""
    with contextlib.suppress(OSError):
        os.unlink(draft)


def sync_file(path: Path) -> None:
    """Sync the file's content to the disk. Raises `OSError`."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Sync the names in the directory. A rename or an unlink is durable only then. Raises `OSError`."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refused(path: Path, done: str, error: OSError) -> StorageError:
    """Return the error for a path that cannot be `done` ("created", "opened", …): why, and what to do."""
    return StorageError(f"{path} cannot be {done}: {error.strerror}. {_advice(path, error.errno)}.")


def _advice(path: Path, code: int | None) -> str:
    if code in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space, then try again; nothing was deleted"
    if code == errno.EROFS:
        return "The file system is read-only: mount it writable, or set another state.dir"
    if code in (errno.EACCES, errno.EPERM):
        return f"{_ownership(path)}: run as its owner, let this user write there, or set another state.dir"
    return "Make it writable, or set another state.dir"


def _ownership(path: Path) -> str:
    """Describe the owner of the path, or of the nearest visible parent."""
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
