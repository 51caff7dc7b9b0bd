"""`listen`: the worker's query socket, for this user alone."""

from __future__ import annotations

import socket
from pathlib import Path

from stateline.deployment.unix_sockets import is_served, listening
from stateline_store import ConfigurationError, LockedError


def listen(path: Path) -> socket.socket:
    """A listening socket, which never blocks. Raises `LockedError` when a live process listens there, and
    `ConfigurationError` where none can be made; the file of a dead one is replaced."""
    try:
        if path.is_socket():
            if is_served(path):
                raise LockedError(f"Another process answers queries at {path}: stop it, or choose another path.")
            path.unlink(missing_ok=True)
        listener = listening(path)
    except OSError as error:
        raise ConfigurationError(
            f"No query socket can be made at {path} ({error}): choose a short name in a directory of your own."
        ) from error
    listener.setblocking(False)
    return listener
