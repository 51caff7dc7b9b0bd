"""`PendingChanges`: records of one partition that a change feed has read, until the store is known to have them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from stateline.log import Record
from stateline.processing.changelog import position_of_changelog
from stateline_store import Position, PositionBound

_offset = attrgetter("offset")


class _Commit(NamedTuple):
    """`ends` is how many records were added up to its last one, which carries the Position."""

    ends: int
    position: Position


class PendingChanges:
    """In the order of the log. A commit can have any number of records, which come a few at a time: each record is
    looked at once as it comes, and each commit once per Position that the store tells."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._records: list[Record] = []
        self._taken = 0
        self._commits: list[_Commit] = []
        self._seen: Position | None = None
        self._missing = 0  # so many commits, the first ones, are known not to be in `_seen`

    def __len__(self) -> int:
        return len(self._records)

    def add(self, records: Iterable[Record], *, by_position: bool) -> None:
        """These as well; `by_position` when they will be taken by that."""
        for record in records:
            self._records.append(record)
            if by_position and record.headers and (position := position_of_changelog([record])):
                self._commits.append(_Commit(self._taken + len(self._records), position))

    def up_to_offset(self, offset: int) -> list[Record]:
        """Take those up to this offset, which is included."""
        return self._take(bisect_right(self._records, offset, key=_offset))

    def up_to_position(self, seen: Position) -> list[Record]:
        """Take those of all commits up to the last one that `seen` is at or past."""
        if seen != self._seen:
            self._seen, self._missing = seen, 0
        for at in range(len(self._commits) - 1, self._missing - 1, -1):
            ends, position = self._commits[at]
            if PositionBound(position).is_met(seen, self._partition):
                del self._commits[: at + 1]
                self._missing = len(self._commits)
                return self._take(ends - self._taken)
        self._missing = len(self._commits)
        return []

    def _take(self, count: int) -> list[Record]:
        taken = self._records[:count]
        del self._records[:count]
        self._taken += count
        return taken
