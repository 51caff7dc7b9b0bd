"""Finds the part of a value that comes back from JSON as something else. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple


class Change(NamedTuple):
    """The first part that JSON changes: its place, as ``prices[0].mean``, and both sides. The value itself has none."""

    place: str
    written: Any
    read: Any


def change(written: Any, read: Any, place: str = "") -> Change | None:
    """Returns the first change between a value and what was read of its JSON, or None.

    Subclasses of the types that JSON has are no change, nor is a tuple that comes back as a list.
    """
    if isinstance(written, dict) and isinstance(read, dict):
        parts = ((member, read.get(name), f"{place}.{name}".lstrip(".")) for name, member in written.items())
        return next(filter(None, (change(*part) for part in parts)), None)
    if isinstance(written, list | tuple) and isinstance(read, list):
        items = enumerate(zip(written, read, strict=True))
        return next(filter(None, (change(*pair, f"{place}[{at}]") for at, pair in items)), None)
    kept = isinstance(written, str | int | float | None) and written == read
    return None if kept else Change(place, written, read)
