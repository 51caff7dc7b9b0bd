"""Serdes of a Kafka Streams application's changelog: they report keys and values that do not fit the declaration.

The topic says neither its kind of store nor its types. The serde refuses a value or key of another type. A key that
looks like one of another kind may still be as declared: it is logged once, and kept.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from stateline.serde.binding import WrappingSerde
from stateline.serde.plain import StringSerde, shown
from stateline_store import InvalidArgumentError
from stateline_store.rows.windowed_keys import SESSION_SUFFIX, WINDOW_SUFFIX

# Times of a key from here on (the year 10000) are other bytes, read as times.
_NO_TIME_MS = 253_402_300_800_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExternalValue(WrappingSerde):
    """The serde of a changelog's values. Its errors name the store."""

    whose: str

    @property
    def name(self) -> str:
        return self.inner.name

    def serialize(self, value: Any) -> bytes:
        return self.inner.serialize(value)

    def deserialize(self, data: bytes) -> Any:
        self.check(data)
        return self.inner.deserialize(data)

    def check(self, data: bytes) -> None:
        self._check(data, "value", "the type")

    def parse_text(self, text: str) -> bytes:
        return self.inner.parse_text(text)

    def from_json(self, value: Any) -> bytes:
        return self.inner.from_json(value)

    def to_json(self, data: bytes) -> Any:
        return self.inner.to_json(data)

    def key_to_json(self, data: bytes) -> Any:
        return self.inner.key_to_json(data)

    def _check(self, data: bytes, part: str, what: str) -> None:
        try:
            self.inner.check(data)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{error} {self.whose} is declared with {part}={self.name}: declare {what} that it has there."
            ) from error


@dataclass(frozen=True, slots=True)
class ExternalKey(ExternalValue):
    """The serde of a changelog's keys, `inner` with its times: warns of one that looks like those of another kind.

    `kind` is `StoreDefinition.plain_kind`. Among other keys, only texts can be told from keys of windows and sessions.
    """

    kind: str
    duplicates: bool = False
    _warned_of: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def check(self, data: bytes) -> None:
        self._check(data, "key", "the kind and type")
        if not self._warned_of and (other := self._other_kind(data)) is not None:
            self._warned_of.append(other)
            logger.warning(
                "%s in the changelog of %s looks like a key of %s, and is one of kind %s%s here: all keys are taken as "
                "declared. If the store is another one there, declare that, under another name (store=).",
                shown(data), self.whose, other, self.kind,
                " without duplicates" if self.kind == "window" and not self.duplicates else "",
            )  # fmt: skip

    def _other_kind(self, data: bytes) -> str | None:
        """Return the kind whose key these bytes look like; None if they may be a key of this kind."""
        match self.kind:
            case "window":
                fits = _ends_as_window(data, duplicates=self.duplicates)
            case "session":
                fits = _ends_as_session(data)
            case _:  # hardly a text has zeros; the times of our days begin with two
                fits = not isinstance(self.inner, StringSerde) or b"\0\0" not in data
        if fits:
            return None
        if _ends_as_window(data, duplicates=False):
            return "a window store"
        if _ends_as_session(data):
            return "a session store"
        return "another kind of store" if self.kind in ("window", "session") else None


def _ends_as_window(data: bytes, *, duplicates: bool) -> bool:
    if len(data) < WINDOW_SUFFIX.size:
        return False
    start_ms, sequence = WINDOW_SUFFIX.unpack_from(data, len(data) - WINDOW_SUFFIX.size)
    numbered: bool = sequence >= 0 if duplicates else sequence == 0
    return numbered and 0 <= start_ms < _NO_TIME_MS


def _ends_as_session(data: bytes) -> bool:
    if len(data) < SESSION_SUFFIX.size:
        return False
    end_ms, start_ms = SESSION_SUFFIX.unpack_from(data, len(data) - SESSION_SUFFIX.size)
    ordered: bool = 0 <= start_ms <= end_ms
    return ordered and end_ms < _NO_TIME_MS
