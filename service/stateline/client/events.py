"""Parse Server-Sent Events as they arrive (WHATWG HTML, 9.2.6 "Interpreting an event stream")."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

# Lines end only with CRLF, LF or CR. `str.splitlines` knows more line ends.
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    data: str
    type: str = "message"
    id: str | None = None
    """The last id so far in the stream, of this event or an earlier one; None without any."""


class EventParser:
    """Turns bytes, cut anywhere, into whole events.

    `last_id` is the id to resume after: that of the newest whole event, or None. `retry_ms` is the pause that the
    server last asked for. An event without its ending empty line is dropped, with its id. So a lost connection leaves
    no half event.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._rest = ""
        self._data: list[str] = []
        self._type = ""
        self._id: str | None = None
        self.last_id: str | None = None
        self.retry_ms: int | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that these bytes complete."""
        text = self._rest + self._decoder.decode(chunk)
        # A CR at the end may be the first half of a CRLF, so it waits for the next bytes.
        held = text[-1:] if text.endswith("\r") else ""
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        self._rest = rest + held
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:  # a comment has no name
            case "data":
                self._data.append(value)
            case "event":
                self._type = value
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdecimal() and len(value) < 10:
                self.retry_ms = int(value)
        return None

    def _dispatch(self) -> Event | None:
        data, kind = self._data, self._type
        self._data, self._type = [], ""
        self.last_id = self._id
        return Event("\n".join(data), kind or "message", self._id) if data else None
