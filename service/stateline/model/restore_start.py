"""Find the offset at which the restore of a store begins. Pure.

`stateline.worker.restore.restore_plan` uses it, and `stateline check` shows it before a start. A store's offset is that
of its last applied record, or None without any. A log has the offsets from `first` up to `end`, exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stateline_store import Position, TopicPartition


class RestoreStart(NamedTuple):
    """The next offset to read. `anew`: the store is emptied first. `missed` has the offsets that the log deleted before
    the store read them, if the store keeps its rows."""

    at: int
    anew: bool = False
    missed: range = range(0)


def start_of_table(offset: int | None, first: int, end: int) -> RestoreStart:
    """Return the start of a table in its topic. A table that is ahead of its topic is rebuilt. Rows stay if the topic
    deleted the next records: rows of windows have expired then, and other tables have the only copy."""
    if offset is None:
        return RestoreStart(first)
    if offset + 1 > end:
        return RestoreStart(first, anew=True)
    return _kept(offset, first)


def start_of_logged(
    offset: int | None, first: int, *, forgets: bool, has_markers: bool, has_all_input: bool
) -> RestoreStart:
    """Return the start of a store in its changelog. A store that lacks a deleted record is rebuilt, because the
    changelog has all that such a store may show.

    A store keeps its rows if it `forgets` (windows, sessions): deleted records have expired, or the store has them. So
    does a store that `has_all_input` that the group has committed, and one that lacks a single offset of a changelog
    that `has_markers`: a transaction ends with an offset that holds no record.
    """
    if offset is None:
        return RestoreStart(first)
    start = _kept(offset, first)
    is_kept = forgets or has_all_input or len(start.missed) <= (1 if has_markers else 0)
    return start if is_kept else RestoreStart(first, anew=True)


def is_behind_store(offset: int | None, end: int) -> bool:
    """Whether the store has records that the changelog, which ends at `end`, has lost."""
    return offset is not None and offset + 1 > end


def has_seen(position: Position, committed: Mapping[TopicPartition, int]) -> bool:
    """Whether a store with this Position has seen all input before the group's next offsets. False without offsets,
    because nothing proves it."""
    return bool(committed) and all(
        (seen := position.get(*source)) is not None and seen + 1 >= at for source, at in committed.items()
    )


def may_be_markers(missed: range) -> bool:
    """Whether all these offsets may be markers. Each transaction ends with one, an offset without a record."""
    return len(missed) <= 1


def _kept(offset: int, first: int) -> RestoreStart:
    return RestoreStart(max(offset + 1, first), missed=range(offset + 1, max(offset + 1, first)))
