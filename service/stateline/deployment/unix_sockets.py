"""Unix sockets between the processes of one state directory.

A socket's address has room for about 100 bytes, and a state directory may lie deeper. So a socket is bound and reached
through an open descriptor of its folder. Server and worker check the user of the process at the other end.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `struct ucred` of Linux


@contextmanager
def address(path: Path) -> Iterator[str]:
    """A short address of this socket during the block. Raises `OSError` if its folder cannot be opened."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{folder}"
        yield f"{short}/{path.name}" if os.path.isdir(short) else str(path)
    finally:
        os.close(folder)


def listening(path: Path) -> socket.socket:
    """Listen at this path, for this user alone. Raises `OSError`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before bind, so that the file is never open to others: Linux gives it the socket's mode.
        os.fchmod(listener.fileno(), 0o600)
        with address(path) as near:
            listener.bind(near)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def connected(path: Path, trusted: Collection[int]) -> socket.socket:
    """Connect to the process that listens at this path; the connection never blocks. Raises `OSError` if none does,
    `BlockingIOError` if it has no room, `PermissionError` if it runs as no `trusted` user."""
    connection = _connected(path)
    try:
        check_user(connection, trusted)
    except OSError:
        connection.close()
        raise
    return connection


def is_served(path: Path) -> bool:
    """Whether a process listens at this path. Raises `OSError` if that is unknown."""
    try:
        _connected(path).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except BlockingIOError:  # it listens, and has no room for more
        return True
    return True


def trusted_users(application: Path) -> frozenset[int]:
    """Ids of the users whose processes may work on this directory: root, this user, and its owner. Raises `OSError` if
    it does not exist."""
    return frozenset({0, os.geteuid(), application.stat().st_uid})


def check_user(connection: socket.socket, trusted: Collection[int]) -> None:
    """Raise `PermissionError` if the process at the other end runs as none of these users."""
    if not hasattr(socket, "SO_PEERCRED"):  # macOS, where the modes of files guard sockets
        return
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    if user not in trusted:
        raise PermissionError(f"process {pid} at the other end runs as user {user}")


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        with address(path) as near:
            connection.connect(near)
    except OSError:
        connection.close()
        raise
    return connection
