"""Checks timestamps of records to be written. Pure."""

from __future__ import annotations

import operator
from typing import Any

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError

TIMESTAMPS = range(2**63)
"""Milliseconds since 1970."""


def checked_timestamp(given: Any) -> int:
    """Return the given milliseconds as an int. Raises `InvalidArgumentError` for a value that no record can have."""
    try:
        found = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        found = -1
    if found not in TIMESTAMPS:
        raise InvalidArgumentError(f"{shown(given)} is no timestamp: give whole milliseconds since 1970, 0 or more.")
    return found
