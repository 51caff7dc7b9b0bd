"""`listen`: a unix socket at a path, for this user alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from stateline_store import ConfigurationError, LockedError


def listen(path: Path) -> socket.socket:
    """A listening socket, which never blocks. Raises `LockedError` when a live process listens there, and
    `ConfigurationError` where none can be made; the file of a dead one is replaced."""
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before bind: Linux gives the file the socket's own mode, so that it is never open to others.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"No query socket can be made at {path} ({error}): choose a short path in a directory of your own."
        ) from error
    listener.setblocking(False)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a process that is gone."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigurationError(f"The query socket {path} cannot be replaced: {error}") from error
    raise LockedError(f"Another process answers queries at {path}: stop it, or choose another path.")
