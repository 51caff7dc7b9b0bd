"""Where a store goes on in what it is restored from. Pure: `stateline.worker.restore_plan` acts by it, and
`stateline.cli.check` tells it beforehand.

Offsets of stores are those of the last applied record, None of one that has applied nothing; a log holds `first` to
`end`, not included.
"""

from __future__ import annotations

from typing import NamedTuple


class RestoreStart(NamedTuple):
    """The next offset to read. `anew`: the store is emptied first."""

    at: int
    anew: bool = False


def start_of_table(offset: int | None, first: int, end: int, *, forgets: bool) -> RestoreStart:
    """Of a table in its topic. A table is what its topic says: one that is ahead of it is rebuilt, and so is one that
    `forgets` (of windows or sessions) whose topic has let go of records that it has not read, as they both let go of
    old ones. Rows of what was deleted stay in others: what was made of them (joins, sums) stays as well."""
    if offset is None:
        return RestoreStart(first)
    if offset + 1 > end or (offset + 1 < first and forgets):
        return RestoreStart(first, anew=True)
    return RestoreStart(max(offset + 1, first))


def start_of_logged(offset: int | None, first: int) -> RestoreStart:
    """Of a store in its changelog, which has all that the store has: one that cannot know what it missed is rebuilt."""
    if offset is None:
        return RestoreStart(first)
    return RestoreStart(first, anew=True) if offset + 1 < first else RestoreStart(offset + 1)


def is_behind_store(offset: int | None, end: int) -> bool:
    """Whether a changelog that ends there has lost what the store still has."""
    return offset is not None and offset + 1 > end
