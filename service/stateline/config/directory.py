"""Check the state directory before anything else is done, and hold it for one node."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline_store.errors import ConfigurationError, RetryLaterError
from stateline_store.files.directory import StateDirectory
from stateline_store.files.durable_files import FILE_MODE

_NODE_FILE = ".node"  # on disk: never change

# Errors that may pass. All others mean a wrong path.
_PASSES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def check_state_directory(config: Config) -> None:
    """Raise `ConfigurationError` if state.dir, or a folder above it, is a file or closed to this user. Reads only.

    A missing directory is fine if the first existing one above it is writable.
    """
    directory = config.state_dir.absolute()
    for path in (directory / config.application_id, directory, *directory.parents):
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue  # a folder above it decides
        except OSError as error:
            raise _refused(config, f"{path} cannot be read ({error.strerror})") from error
        if not stat.S_ISDIR(mode):
            raise _refused(config, f"{path} is a file, not a directory")
        is_made = path == directory or directory in path.parents
        if not os.access(path, os.R_OK | os.X_OK if is_made else os.W_OK | os.X_OK, effective_ids=True):
            raise _refused(config, f"this user may not {'read' if is_made else 'write to'} {path}")
        if not is_made or path == directory:
            return


def check_writable(config: Config) -> None:
    """Raise `ConfigurationError` if this user may not write to the application's directory, or to the first existing
    one above it. Reads only."""
    directory = config.state_dir.absolute()
    path = next(each for each in (directory / config.application_id, directory, *directory.parents) if each.exists())
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise _refused(config, f"{path} is on a read-only file system")
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        raise _refused(config, f"this user may not write to {path}")


def make_state_directory(config: Config) -> StateDirectory:
    """Return the application's directory, made if it is missing. Raises `ConfigurationError` if its path is wrong, and
    `RetryLaterError` for passing reasons such as a full disk."""
    try:
        return StateDirectory(config.state_dir, config.application_id)
    except RetryLaterError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno in _PASSES:
            raise
        path = config.state_dir / config.application_id
        raise _refused(config, f"{path} cannot be made ({cause.strerror})") from error


@contextmanager
def held_by_node(config: Config) -> Iterator[None]:
    """Hold the application's directory for this node during the block. Processes of one node hold it together.

    Raises `ConfigurationError` while a process of another node name holds it. Does nothing on the embedded log, which
    has no nodes, and where no file can be made.
    """
    if embedded_path(config.bootstrap_servers, config.state_dir) is not None:
        yield
        return
    path = config.state_dir / config.application_id / _NODE_FILE
    held = _held(path, config.node)
    try:
        if held is not None and (holder := os.pread(held, 255, 0).decode(errors="replace").strip()) != config.node:
            raise ConfigurationError(
                f"{path.parent} is the state directory of node {holder!r}, which runs: {config.node!r} needs another "
                "state.dir, or the same node.name to be a part of that node."
            )
        yield
    finally:
        if held is not None:
            os.close(held)


def _held(path: Path, node: str) -> int | None:
    """The file, locked together with others of this node. The first process writes the node's name. None if that
    fails."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError:  # read-only, or full
        return None
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, f"{node}\n".encode(), 0)
        except OSError:
            os.close(file)
            return None
    fcntl.flock(file, fcntl.LOCK_SH)  # waits only while another process writes its name
    return file


def _refused(config: Config, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"state.dir = {str(config.state_dir)!r} (from {config.origin('state.dir')}) cannot be used: {reason}. "
        "Set another state.dir, or run as the user whose directory it is."
    )
