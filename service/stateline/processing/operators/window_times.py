"""Up to where in time a windowed store has come, when its operators begin.

The largest timestamp that an operator was given is kept with its store. A store that was restored from its changelog,
because its disk was lost or its process was killed between the log's commit and its own, is further than what it has
kept.
"""

from __future__ import annotations

from stateline.model.windows import AnyWindows, SessionWindows
from stateline.processing.operators.grouping import picked, with_key
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Rows
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.stores.segmented_store import SegmentedStore


def begin(store: SegmentedStore, windows: AnyWindows, context: OperatorContext) -> None:
    """Take up the time that the store's rows speak of.

    Exactly once, all that was written for the input that these rows are of was one transaction: its time is theirs, and
    the final results that followed from it have been given on. (Unless an aggregate became None by the newest record:
    then there is no row of it, and what only that record has closed comes again.) It reads the segments of the newest
    windows: about a second for a million rows.

    At least once, some rows may be missing, whose input comes again: nothing of it must be too late because of the
    others, apart from what the retention hides. Final results go on from the store's own last commit, and some windows
    come again, all that are kept when its disk was lost.
    """
    newest_ms = store.stream_time_ms
    if newest_ms < 0:
        return
    if not context.exactly_once:
        hidden_ms = newest_ms - store.segments.retention_ms
        context.times.observe(store.name, min(newest_ms, hidden_ms + windows.closed_after_ms))
        return
    # What raised stream time went into a window that had begun at most this long before.
    size_ms = 0 if isinstance(windows, SessionWindows) else windows.size_ms
    with store.rows_between(newest_ms - size_ms, newest_ms) as rows:
        stamps = [TIMESTAMP.unpack_from(row)[0] for _, row in rows]
    context.times.observe(store.name, max([newest_ms, *stamps]))
    context.times.emit(store.name, context.times.observed(store.name))


def placed_in_time(rows: Rows, context: OperatorContext) -> Rows:
    """The rows that have a key and a time; the others are dropped and counted."""
    rows = with_key(rows, context.failures)
    if not rows.records or min(rows.timestamps) >= 0:
        return rows
    places = [place for place, at_ms in enumerate(rows.timestamps) if at_ms >= 0]
    return picked(rows, places, context.failures, "no_timestamp")
