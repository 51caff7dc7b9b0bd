"""UUIDs and times, in bytes that Kafka's own deserializers read.

| serde    | bytes                                                                   | text and JSON                |
|----------|-------------------------------------------------------------------------|------------------------------|
| uuid     | its 36 characters in UTF-8 (`org.apache.kafka…UUIDSerializer`)           | the same, in either case     |
| datetime | milliseconds since 1970, 8 bytes, big-endian (`LongSerializer`)          | ISO 8601 with Z, or a number |
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from stateline.serde.iso_times import EPOCH, MILLISECOND, epoch_ms, iso_time
from stateline.serde.plain import IntegerSerde, shown
from stateline_store import InvalidArgumentError

_INT64 = IntegerSerde("int64", 8)


class UuidSerde:
    """`uuid.UUID`, written in lower case. Text and JSON of 36 characters keep their bytes, in either case."""

    name = "uuid"

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, UUID):
            raise InvalidArgumentError(f"{shown(value)} is not a UUID: give a uuid.UUID.")
        return str(value).encode()

    def deserialize(self, data: bytes) -> UUID:
        try:
            read = UUID(data.decode("ascii"))
        except ValueError as error:
            raise InvalidArgumentError(f"{shown(data)} is not the text of a UUID.") from error
        if len(data) != 36:  # Python accepts other spellings
            raise InvalidArgumentError(f"{shown(data)} is not the text of a UUID: that has 36 characters.")
        return read

    def check(self, data: bytes) -> None:
        self.deserialize(data)

    def parse_text(self, text: str) -> bytes:
        try:
            read = UUID(text)
        except ValueError as error:
            raise InvalidArgumentError(f"{shown(text)} is not a UUID.") from error
        return (text if len(text) == 36 else str(read)).encode()

    def from_json(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{shown(value)} is not the text of a UUID.")
        return self.parse_text(value)

    def to_json(self, data: bytes) -> str:
        self.check(data)
        return data.decode()

    key_to_json = to_json


class DatetimeSerde:
    """A `datetime` with a zone, cut off to the millisecond. It is read in UTC. Keys are ordered by time from 1970 on;
    earlier times follow, as for all integers of Kafka's."""

    name = "datetime"

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, datetime):
            raise InvalidArgumentError(f"{shown(value)} is not a datetime.")
        if value.tzinfo is None:
            raise InvalidArgumentError(
                f"{shown(value)} has no zone, so it is no point in time: give one, as in datetime.now(UTC)."
            )
        return _INT64.serialize(epoch_ms(value))

    def deserialize(self, data: bytes) -> datetime:
        at_ms = _INT64.deserialize(data)
        try:
            return EPOCH + at_ms * MILLISECOND
        except OverflowError as error:
            raise InvalidArgumentError(f"{at_ms} milliseconds are no time of the years 1 to 9999.") from error

    def check(self, data: bytes) -> None:
        self.deserialize(data)

    def parse_text(self, text: str) -> bytes:
        if text.removeprefix("-").isdigit():
            return self._of_number(_INT64.parse_text(text))
        try:
            return self.serialize(iso_time(text))
        except ValueError as error:
            raise InvalidArgumentError(
                f"{shown(text)} is neither a time of ISO 8601 with a zone nor milliseconds since 1970."
            ) from error

    def from_json(self, value: Any) -> bytes:
        return self.parse_text(value) if isinstance(value, str) else self._of_number(_INT64.serialize(value))

    def to_json(self, data: bytes) -> str:
        return self.deserialize(data).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    key_to_json = to_json

    def _of_number(self, data: bytes) -> bytes:
        self.check(data)
        return data
