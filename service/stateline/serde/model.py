"""Values of a class of the application's own, as JSON: pydantic models, dataclasses, and what else pydantic knows.

Bytes are JSON text. Values are validated when they are read. A record of another shape cannot be read, and the
message names the field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from stateline.serde.plain import JsonSerde, one_line, shown
from stateline_store import InvalidArgumentError

_JSON = JsonSerde()


@dataclass(frozen=True)
class ModelSerde:
    """Raises `InvalidArgumentError` for a class whose fields pydantic does not know."""

    model: type
    _adapter: TypeAdapter[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.model, str):  # pydantic would look for a class of that name, at the first value
            raise InvalidArgumentError(
                f"{shown(self.model)} cannot be a model: use a pydantic model, a dataclass or a TypedDict itself, not "
                "its name."
            )
        if self.model in (int, float, bool, str, bytes):
            raise InvalidArgumentError(
                f"{self.model.__name__} has no fields: use a pydantic model, a dataclass or a TypedDict, or another of "
                "the serdes."
            )
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(self.model)
        except PydanticUserError as error:
            raise InvalidArgumentError(
                f"{shown(self.model)} cannot be a model: use a pydantic model, a dataclass or a TypedDict "
                f"({str(error).splitlines()[0]})."
            ) from error
        object.__setattr__(self, "_adapter", adapter)

    @property
    def name(self) -> str:
        """With the class's name, without its module, which changes as code is moved. In stores' files: never change."""
        return f"model({getattr(self.model, '__qualname__', self.model)})"

    def serialize(self, value: Any) -> bytes:
        """Raises for a value that would be read back as another one, like NaN or a hidden secret. It reads the JSON
        again and compares the fields (of the declared class, without `exclude`)."""
        try:
            given = self._adapter.validate_python(value)
            data = self._adapter.dump_json(given, by_alias=True)
        except (ValidationError, ValueError) as error:
            raise InvalidArgumentError(f"{shown(value)} is no {self.name}: {_first(error)}.") from error
        try:
            back = self._adapter.validate_json(data)
        except ValidationError as error:
            raise InvalidArgumentError(
                f"{shown(value)} cannot be read again as {self.name} from its JSON, {shown(data)}: {_first(error)}."
            ) from error
        if self._adapter.dump_python(back) != self._adapter.dump_python(given):
            raise InvalidArgumentError(
                f"{shown(value)} would come back as {shown(back)} from its JSON, {shown(data)}: give {self.name} "
                "fields that JSON has."
            )
        return data

    def deserialize(self, data: bytes) -> Any:
        try:
            return self._adapter.validate_json(data)
        except ValidationError as error:
            raise InvalidArgumentError(f"{shown(data)} is no {self.name}: {_first(error)}.") from error

    def check(self, data: bytes) -> None:
        self.deserialize(data)

    def parse_text(self, text: str) -> bytes:
        return self.serialize(self.deserialize(text.encode("utf-8", "replace")))

    def from_json(self, value: Any) -> bytes:
        return self.serialize(self.deserialize(_JSON.serialize(value)))

    def to_json(self, data: bytes) -> Any:
        """Return the stored JSON in one line."""
        return orjson.Fragment(one_line(data))

    key_to_json = to_json


def _first(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {first['msg']}{more}" if where else f"{first['msg']}{more}"
