"""`listen`: the worker's query socket, for this user alone."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from stateline.deployment.unix_sockets import is_served, listening
from stateline_store import ConfigurationError, LockedError
from stateline_store.durable_files import refused

_DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def listen(path: Path) -> socket.socket:
    """Make a listening socket, which never blocks. Replaces the file of a dead process.

    Raises `LockedError` when a live process listens there, `StorageError` when the disk refuses, and
    `ConfigurationError` when the path cannot be a socket's.
    """
    try:
        if path.is_socket():
            if is_served(path):
                raise LockedError(f"Another process answers queries at {path}: stop it, or choose another path.")
            path.unlink(missing_ok=True)
        listener = listening(path)
    except OSError as error:
        if error.errno in _DISK_REFUSES:
            raise refused(path, "created", error) from error
        raise ConfigurationError(
            f"No query socket can be made at {path} ({error}): choose a short name in a directory of your own."
        ) from error
    listener.setblocking(False)
    return listener
