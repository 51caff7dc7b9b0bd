"""Many keys of one partition, looked up some at a time, so that requests of others are answered in between.

What an answer has of a partition is of one commit. So when the partition has moved meanwhile all keys are looked up
anew, and where commits come too fast for that, at last all at once.
"""

from __future__ import annotations

from dataclasses import replace

from stateline.query.open_scan import size_of
from stateline.query.values import Entry, Failure, Outcome, PartitionAnswer, QueryRows, Terms
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.server.wire.turns import let_others_in
from stateline_store import KeysQuery, VersionedKeysQuery
from stateline_store.queries import too_large

_AT_ONCE = 500  # about a millisecond
_ATTEMPTS = 3


async def ask_for_keys(
    partitions: Partitions, store: ServedStore, terms: Terms, partition: int, query: KeysQuery | VersionedKeysQuery
) -> Outcome:
    """As `Partitions.ask`."""
    if len(query.keys) > _AT_ONCE:
        for _ in range(_ATTEMPTS):
            if (outcome := await _in_slices(partitions, store, terms, partition, query)) is not None:
                return outcome
    return partitions.ask(store, terms, partition, query)


async def _in_slices(
    partitions: Partitions, store: ServedStore, terms: Terms, partition: int, query: KeysQuery | VersionedKeysQuery
) -> Outcome | None:
    """None when the partition has moved between two slices."""
    entries: list[Entry] = []
    answer, state, size = None, None, 0
    for first in range(0, len(query.keys), _AT_ONCE):
        some = replace(query, keys=query.keys[first : first + _AT_ONCE])
        outcome = partitions.ask(store, terms, partition, some)
        if not isinstance(outcome, PartitionAnswer):
            return outcome
        answer = outcome
        shown = partitions.shown(store, partition)
        if first and shown != state:
            return None
        state, found = shown, list(outcome.rows.entries)
        entries += found
        size += size_of(found)
        if query.most_bytes is not None and size > query.most_bytes:
            return Failure(too_large(size))
        await let_others_in()
    assert answer is not None, "there are keys"
    answer.rows = QueryRows(entries)
    return answer
