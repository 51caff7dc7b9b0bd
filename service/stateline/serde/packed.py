"""MessagePack, by the package msgpack: `serdes.msgpack`.

Text and bytes are different types (str and bin). Times use the format's extension type -1, and are read as `datetime`
in UTC. JSON shows bytes as base64."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from stateline.serde.json_view import json_text
from stateline.serde.plain import shown
from stateline.serde.schema_registry import import_extra
from stateline_store import InvalidArgumentError

_AS_DATETIME = 3  # msgpack's name for it


class MsgpackSerde:
    """JSON's types, bytes, and times with a zone, in MessagePack. Raises `ConfigurationError` where the package is
    missing."""

    name = "msgpack"

    def serialize(self, value: Any) -> bytes:
        try:
            packed: bytes = self._msgpack.packb(value, datetime=True)
        except (TypeError, ValueError, OverflowError) as error:
            hint = " (a time without a zone is none)" if isinstance(value, datetime) else ""
            raise InvalidArgumentError(f"{shown(value)} cannot be written as MessagePack{hint}: {error}.") from error
        self.check(packed)  # a tuple is read as a list, which Python takes for no key
        return packed

    def deserialize(self, data: bytes) -> Any:
        msgpack = self._msgpack
        try:
            return msgpack.unpackb(data, timestamp=_AS_DATETIME, strict_map_key=False)
        except (msgpack.UnpackException, ValueError, TypeError, OverflowError) as error:
            why = str(error) or type(error).__name__
            raise InvalidArgumentError(f"{shown(data)} is not MessagePack that can be read: {why}.") from error

    def check(self, data: bytes) -> None:
        self.deserialize(data)

    def parse_text(self, text: str) -> bytes:
        try:
            return self.serialize(orjson.loads(text))
        except orjson.JSONDecodeError as error:
            raise InvalidArgumentError(f"{shown(text)} is not the JSON of a MessagePack value: {error}.") from error

    from_json = serialize

    def to_json(self, data: bytes) -> Any:
        return orjson.Fragment(json_text(self.deserialize(data)))

    key_to_json = to_json

    @property
    def _msgpack(self) -> Any:
        return import_extra("msgpack", "msgpack")
