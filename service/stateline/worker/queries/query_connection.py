"""The query socket's listener, for this user alone, and `QueryConnection`: the buffers of one client. Never blocks."""

from __future__ import annotations

import errno
import selectors
import socket
from pathlib import Path

from stateline.deployment.unix_sockets import is_served, listening
from stateline.query.wire import COMMIT_EVENT, LENGTH, frame, frame_size
from stateline_store import ConfigurationError, LockedError
from stateline_store.files.durable_files import refused

# Beyond this many unread bytes of replies a client has to read before more of its requests are answered.
MAX_UNREAD_BYTES = 1024 * 1024
_READ_BYTES = 256 * 1024
_COMMIT_FRAME = frame(COMMIT_EVENT)
_DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


class QueryConnection:
    """One accepted connection, non-blocking. For the thread that owns the query socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.closed = False
        self.ended = False  # the client sends no more; its earlier requests are still answered
        self.subscribed = False
        self.commit_due = False
        self.interest = selectors.EVENT_READ
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def receive(self) -> None:
        """Read a bounded share of the bytes that have arrived; none while a whole request is unanswered. Raises
        `OSError` for a broken connection, `InvalidArgumentError` for bytes that are no frame."""
        if self._frame_end() is not None:
            return
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        self.ended = not data
        self._incoming += data

    def next_frame(self) -> bytearray | None:
        """Return the JSON of the next whole frame, None if none may be answered now. Raises `InvalidArgumentError`."""
        if len(self._outgoing) > MAX_UNREAD_BYTES or (end := self._frame_end()) is None:
            return None
        body = self._incoming[LENGTH.size : end]
        del self._incoming[:end]
        return body

    def put_back(self, body: bytes | bytearray) -> None:
        """Let `next_frame` return this again, which it has just returned."""
        self._incoming[:0] = LENGTH.pack(len(body)) + body

    def queue(self, data: bytes) -> None:
        self._outgoing += data

    def send(self) -> None:
        """Send as much as the client takes, a commit event last. Raises `OSError` for a broken connection."""
        try:
            while self._outgoing or self.commit_due:
                if not self._outgoing:
                    self._outgoing += _COMMIT_FRAME
                    self.commit_due = False
                del self._outgoing[: self.socket.send(memoryview(self._outgoing)[:_READ_BYTES].tobytes())]
        except BlockingIOError:
            return

    def wanted_events(self) -> int:
        """Return the events for the selector. There is always one: a full buffer waits to be written."""
        read = selectors.EVENT_READ if len(self._outgoing) <= MAX_UNREAD_BYTES else 0
        return read | (selectors.EVENT_WRITE if self._outgoing else 0)

    def _frame_end(self) -> int | None:
        if len(self._incoming) < LENGTH.size:
            return None
        end = LENGTH.size + frame_size(self._incoming)
        return end if end <= len(self._incoming) else None


def listen(path: Path) -> socket.socket:
    """Return a listening socket that never blocks. Replaces the file of a dead process. Raises `LockedError` if a live
    process listens there, `StorageError` if the disk refuses, and `ConfigurationError` for a path that no socket can
    have."""
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
