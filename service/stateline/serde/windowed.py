"""Keys of a topic of windows or sessions: a key and its times, around the serde of the key alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import orjson

from stateline.serde.binding import WrappingSerde
from stateline.serde.plain import Serde, check_serde, shown
from stateline_store import InvalidArgumentError
from stateline_store.rows.windowed_keys import (
    SESSION_SUFFIX,
    WINDOW_SUFFIX,
    session_key,
    split_session_key,
    split_window_key,
    window_key,
)

_SEQUENCE_BYTES = 4  # of the number at the end of a window's key. In topics: never change


class WindowKey(NamedTuple):
    """A key and the start of a window of it, in milliseconds since the epoch."""

    key: Any
    start_ms: int


class SessionKey(NamedTuple):
    """A key and a session of it, in milliseconds since the epoch: from the first record to the last one, included."""

    key: Any
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class WindowedSerde(WrappingSerde):
    """Keys of a topic of windows or of sessions: `WindowKey` or `SessionKey` around a key of the serde `inner`.

    The bytes are those of a changelog of such a store (`stateline_store.rows.windowed_keys`), so that a table can be
    kept of the topic. As text and in JSON a key is the array of its parts: ``["JFK", 1356998400000]``. Another
    array, or a time before 1970, is refused. Records belong into the partition of the inner key.
    """

    kind: Literal["window", "session"]

    def __post_init__(self) -> None:
        check_serde(self.inner)

    @property
    def name(self) -> str:
        return f"windowed-{self.inner.name}" if self.kind == "window" else f"session-windowed-{self.inner.name}"

    @property
    def suffix_bytes(self) -> int:
        """How many bytes of a key come behind the inner one."""
        return WINDOW_SUFFIX.size if self.kind == "window" else SESSION_SUFFIX.size

    def inner_bytes(self, data: bytes) -> bytes:
        """Return the inner key's bytes from the bytes of a key."""
        return data[: -self.suffix_bytes]

    def serialize(self, value: Any) -> bytes:
        key, times = self._parts(value)
        return self._packed(self.inner.serialize(key), times, value)

    def deserialize(self, data: bytes) -> WindowKey | SessionKey:
        key, *times = self._split(data)
        return self._made(self.inner.deserialize(key), times)

    def check(self, data: bytes) -> None:
        self.inner.check(self._split(data)[0])

    def parse_text(self, text: str) -> bytes:
        try:
            return self.from_json(orjson.loads(text))
        except orjson.JSONDecodeError as error:
            raise InvalidArgumentError(f"{shown(text)} is not the JSON of {self._form}.") from error

    def from_json(self, value: Any) -> bytes:
        key, times = self._parts(value)
        return self._packed(self.inner.from_json(key), times, value)

    def to_json(self, data: bytes) -> Any:
        key, *times = self._split(data)
        return [self.inner.key_to_json(key), *times]

    key_to_json = to_json

    @property
    def _form(self) -> str:
        return "[key, start]" if self.kind == "window" else "[key, start, end]"

    def _parts(self, value: Any) -> tuple[Any, tuple[int, ...]]:
        if isinstance(value, list | tuple) and len(value) == self._form.count(",") + 1:
            return value[0], tuple(value[1:])
        raise InvalidArgumentError(f"{shown(value)} is no {self.name}: it is {self._form}, times in milliseconds.")

    def _packed(self, key: bytes, times: tuple[int, ...], value: Any) -> bytes:
        if any(isinstance(time, bool) or not isinstance(time, int) for time in times) or not self._in_order(times):
            raise InvalidArgumentError(
                f"{shown(value)} is no {self.name}: times are milliseconds since 1970, the end not before the start."
            )
        return window_key(key, times[0]) if self.kind == "window" else session_key(key, times[0], times[1])

    def _split(self, data: bytes) -> tuple[Any, ...]:
        """The inner key's bytes, then the times."""
        if len(data) < self.suffix_bytes:
            raise InvalidArgumentError(f"{shown(data)} is no {self.name}: it has only {len(data)} bytes.")
        parts = split_window_key(data)[:2] if self.kind == "window" else tuple(split_session_key(data))
        if not self._in_order(parts[1:]):
            raise InvalidArgumentError(f"{shown(data)} is no {self.name}: its times are {shown(list(parts[1:]))}.")
        return parts

    def _in_order(self, times: tuple[Any, ...]) -> bool:
        return all(0 <= time < 1 << 63 for time in times) and list(times) == sorted(times)

    def _made(self, key: Any, times: list[int]) -> WindowKey | SessionKey:
        return WindowKey(key, *times) if self.kind == "window" else SessionKey(key, *times)


@dataclass(frozen=True, slots=True)
class TimeWindowedSerde(WrappingSerde):
    """Keys of a topic of windows, as Java's `TimeWindowedSerializer` writes them: ``key ‖ start:i64``, without the
    number at the end of `WindowedSerde`. Such a topic cannot be a table. Values are `WindowKey`; text and JSON are the
    array of its parts. The inner key decides the partition."""

    @property
    def name(self) -> str:
        return f"time-windowed-{self.inner.name}"

    def inner_bytes(self, data: bytes) -> bytes:
        """Return the inner key's bytes from the bytes of a key."""
        return self._windows.inner_bytes(data + bytes(_SEQUENCE_BYTES))

    def serialize(self, value: Any) -> bytes:
        return self._windows.serialize(value)[:-_SEQUENCE_BYTES]

    def deserialize(self, data: bytes) -> WindowKey | SessionKey:
        return self._windows.deserialize(data + bytes(_SEQUENCE_BYTES))

    def check(self, data: bytes) -> None:
        self._windows.check(data + bytes(_SEQUENCE_BYTES))

    def parse_text(self, text: str) -> bytes:
        return self._windows.parse_text(text)[:-_SEQUENCE_BYTES]

    def from_json(self, value: Any) -> bytes:
        return self._windows.from_json(value)[:-_SEQUENCE_BYTES]

    def to_json(self, data: bytes) -> Any:
        return self._windows.to_json(data + bytes(_SEQUENCE_BYTES))

    key_to_json = to_json

    @property
    def _windows(self) -> WindowedSerde:
        return WindowedSerde(self.inner, "window")


def partition_key(serde: Serde, key: bytes | None) -> bytes | None:
    """Return the bytes that choose the partition of a record with this key: for windows and sessions the inner key
    (Kafka Streams' `WindowedStreamPartitioner`), else the key."""
    return serde.inner_bytes(key) if key is not None and isinstance(serde, WindowedSerde | TimeWindowedSerde) else None
