"""`QueryConnection`: the buffers of one client of the query socket. Moves bytes, never blocks."""

from __future__ import annotations

import selectors
import socket

from stateline.query.wire import COMMIT_EVENT, LENGTH, frame, frame_size

# Beyond this many unread bytes of replies a client has to read before more of its requests are answered.
MAX_UNREAD_BYTES = 1024 * 1024
_READ_BYTES = 256 * 1024
_COMMIT_FRAME = frame(COMMIT_EVENT)


class QueryConnection:
    """One accepted connection, non-blocking. For the thread that owns the query socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.closed = False
        self.ended = False  # the client sends no more; what it sent before is still answered
        self.subscribed = False
        self.commit_due = False
        self.interest = selectors.EVENT_READ
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def receive(self) -> None:
        """Read a bounded share of what has arrived; nothing while a whole request is still unanswered.

        Raises `OSError` when the connection is broken, `InvalidArgumentError` when what arrived is no frame.
        """
        if self._frame_end() is not None:
            return
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        self.ended = not data
        self._incoming += data

    def next_frame(self) -> bytearray | None:
        """The JSON of the next whole frame, or None when there is none, or none may be answered yet.

        Raises `InvalidArgumentError` when what arrived is no frame.
        """
        if len(self._outgoing) > MAX_UNREAD_BYTES or (end := self._frame_end()) is None:
            return None
        body = self._incoming[LENGTH.size : end]
        del self._incoming[:end]
        return body

    def put_back(self, body: bytes | bytearray) -> None:
        """Let `next_frame` return this again, which it has returned last."""
        self._incoming[:0] = LENGTH.pack(len(body)) + body

    def queue(self, data: bytes) -> None:
        """Put a frame behind those that are to be sent."""
        self._outgoing += data

    def send(self) -> None:
        """Send what the client takes, a commit event after everything else.

        Raises `OSError` when the connection is broken.
        """
        try:
            while self._outgoing or self.commit_due:
                if not self._outgoing:
                    self._outgoing += _COMMIT_FRAME
                    self.commit_due = False
                del self._outgoing[: self.socket.send(memoryview(self._outgoing)[:_READ_BYTES].tobytes())]
        except BlockingIOError:
            return

    def wanted_events(self) -> int:
        """What the selector should watch for: never nothing, for a full buffer waits to be written."""
        read = selectors.EVENT_READ if len(self._outgoing) <= MAX_UNREAD_BYTES else 0
        return read | (selectors.EVENT_WRITE if self._outgoing else 0)

    def _frame_end(self) -> int | None:
        if len(self._incoming) < LENGTH.size:
            return None
        end = LENGTH.size + frame_size(self._incoming)
        return end if end <= len(self._incoming) else None
