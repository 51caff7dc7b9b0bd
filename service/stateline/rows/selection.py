"""Which rows and columns of a store a reader wants."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stateline.model.store_definition import StoreDefinition
from stateline.serde.plain import BytesSerde
from stateline_store import InvalidArgumentError, UnknownQueryTypeError
from stateline_store.scan import EVERY_KEY, KeyRange

_bytes = BytesSerde()


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Wanted rows and columns. Times are milliseconds since the epoch, both ends included."""

    columns: tuple[str, ...] | None = None
    keys: KeyRange = EVERY_KEY
    from_ms: int | None = None
    to_ms: int | None = None
    as_of: int | None = None
    only: tuple[bytes, ...] | None = None
    """Of the keys in `keys` these alone, ascending."""
    split: KeyRange = EVERY_KEY
    """The stored keys of the rows, as the database has them."""
    skip: int = 0
    """So many of the rows that all the rest leaves are left out, from the first on."""

    def is_nothing(self, kind: str) -> bool:
        """Return whether no row can be wanted of a store of this kind. A session can end after `from_ms` and start
        before an earlier `to_ms`."""
        first_ms, last_ms = self.from_ms, self.to_ms
        backwards = kind != "session" and first_ms is not None and last_ms is not None and first_ms > last_ms
        return self.keys.is_empty or backwards or self.only == () or self.split.is_empty

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for another node, without `split` and `skip`."""
        end = None if self.keys.end is None else text_of(self.keys.end)
        only = None if self.only is None else [*map(text_of, self.only)]
        return {
            "columns": self.columns, "start": text_of(self.keys.start), "end": end, "from_ms": self.from_ms,
            "to_ms": self.to_ms, "as_of": self.as_of, "only": only,
        }  # fmt: skip

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> RowSelection:
        """Read the JSON object. Raises `KeyError`, `TypeError`, `ValueError` or `InvalidArgumentError` for anything
        else."""
        columns, end, only = told["columns"], told["end"], told["only"]
        from_ms, to_ms, as_of = (
            None if told[name] is None else int(told[name]) for name in ("from_ms", "to_ms", "as_of")
        )
        keys = KeyRange(_bytes.parse_text(told["start"]), None if end is None else _bytes.parse_text(end))
        only = None if only is None else tuple(map(_bytes.parse_text, only))
        return cls(None if columns is None else tuple(map(str, columns)), keys, from_ms, to_ms, as_of, only)


def keys_between(lower: bytes | None, upper: bytes | None, prefix: bytes | None) -> KeyRange:
    """Return the range of these keys, both included, or of those that begin with `prefix`. Raises
    `InvalidArgumentError` for both."""
    if prefix is None:
        return KeyRange(lower or b"", None if upper is None else upper + b"\0")  # the least key above upper
    if lower is not None or upper is not None:
        raise InvalidArgumentError("prefix stands alone: leave out lower and upper, or prefix.")
    return KeyRange.prefixed(prefix)


def check_times(definition: StoreDefinition, *, has_times: bool, as_of: int | None) -> None:
    """Raise `UnknownQueryTypeError` for times in a store without them, or `as_of` in one without versions, and
    `InvalidArgumentError` for both."""
    if as_of is not None and definition.kind != "versioned":
        raise UnknownQueryTypeError(
            f"{definition.name!r} is of kind {definition.kind}: only versioned stores have as_of."
        )
    if as_of is not None and has_times:
        raise InvalidArgumentError("as_of stands alone: leave out from and to, or as_of.")
    if has_times and definition.kind == "key_value":
        raise UnknownQueryTypeError(f"{definition.name!r} keeps no timestamps: leave out from and to.")


def text_of(boundary: bytes) -> str:
    """Return a stored key as base64url without padding."""
    return base64.urlsafe_b64encode(boundary).rstrip(b"=").decode()
