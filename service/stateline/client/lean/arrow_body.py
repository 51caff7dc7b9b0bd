"""An HTTP answer in Arrow's IPC streaming format, as the file that pyarrow reads from."""

from __future__ import annotations

from http.client import HTTPResponse, IncompleteRead

# The end of a stream: a continuation marker and a length of 0 (Arrow's columnar format, "IPC Streaming Format").
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class ArrowBody:
    """The body of an answer. It remembers its last bytes, for `check_end`. For one thread."""

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self._tail = b""
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data = self._response.read(None if size < 0 else size)
        self._tail = data[-len(_END) :] if len(data) >= len(_END) else (self._tail + data)[-len(_END) :]
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def check_end(self) -> None:
        """Raise `IncompleteRead` unless the body ended with Arrow's end mark. Without it, the stream broke off."""
        if self._tail != _END:
            raise IncompleteRead(self._tail)
