"""Values for a node that has declared their store otherwise: with timestamps where this one has none, or without.

So it is while stores get timestamps at one node after the other (KIP-258). Between the two a value is what is stored,
`timestamp:i64 ‖ value` or the value alone (`stateline_store.timestamped_rows`); a timestamp that is not known is -1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stateline.query.values import Entry, Failure, Outcome, QueryRows, Rest
from stateline_store.timestamped_rows import UNKNOWN_TIMESTAMP, join, split


def as_asked(outcome: Outcome, *, has_timestamps: bool, wants_timestamps: bool | None) -> Outcome:
    """The same with values as who asks has declared them; None: as they are."""
    if isinstance(outcome, Failure) or wants_timestamps is None or wants_timestamps is has_timestamps:
        return outcome
    outcome.rows = _changed(outcome.rows, _stamped if wants_timestamps else _plain)
    return outcome


@dataclass
class _ChangedRest:
    """The rest of such rows: a `Rest`."""

    rest: Rest
    change: Callable[[bytes], bytes]

    async def more(self, limit: int) -> QueryRows:
        return _changed(await self.rest.more(limit), self.change)

    def close(self) -> None:
        self.rest.close()


def _changed(rows: QueryRows, change: Callable[[bytes], bytes]) -> QueryRows:
    rest = None if rows.rest is None else _ChangedRest(rows.rest, change)
    return replace(rows, entries=[_entry(entry, change) for entry in rows.entries], rest=rest)


def _entry(entry: Entry, change: Callable[[bytes], bytes]) -> Entry:
    name, value = entry
    return (name, change(value)) if isinstance(value, bytes) else entry  # versions have their times beside them


def _plain(stored: bytes) -> bytes:
    return split(stored).value


def _stamped(value: bytes) -> bytes:
    return join(value, UNKNOWN_TIMESTAMP)
