"""Finds a NaN or an infinity in a value: orjson writes these as null. Pure."""

from __future__ import annotations

from dataclasses import is_dataclass
from enum import Enum
from typing import Any, NamedTuple


class NotFinite(NamedTuple):
    """A number that JSON does not have, and its place, as ``prices[0].mean``. The value itself has no place."""

    place: str
    number: float


def not_finite(written: Any, read: Any, place: str = "") -> NotFinite | None:
    """Returns the first number of `written` that is null in `read`, the value that was read of its JSON; or None."""
    if isinstance(written, Enum):
        written = written.value
    if isinstance(written, float):
        return NotFinite(place, written) if read is None else None
    if isinstance(written, list | tuple):
        items = [(f"{place}[{at}]", *pair) for at, pair in enumerate(zip(written, read, strict=True))]
    elif isinstance(written, dict):
        items = [(f"{place}.{name}".lstrip("."), written[name], part) for name, part in read.items()]
    elif is_dataclass(written):
        items = [(f"{place}.{name}".lstrip("."), getattr(written, name), part) for name, part in read.items()]
    else:
        return None
    return next(filter(None, (not_finite(one, other, at) for at, one, other in items)), None)
