"""Finds how far in time a windowed store has come when its operator begins.

The store keeps the largest timestamp that its operator was given. A store that was restored from its changelog may be
further: its disk was lost, or its process was killed between the log's commit and its own.
"""

from __future__ import annotations

from stateline.model.windows import AnyWindows, SessionWindows, UnlimitedWindows
from stateline.processing.operators.grouping import picked, with_key
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Rows
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.stores.segmented_store import SegmentedStore


def begin(store: SegmentedStore, windows: AnyWindows, context: OperatorContext) -> None:
    """Take up the time of the store's rows.

    Exactly once, everything written for these rows' input was one transaction. So the time is theirs, and their final
    results were emitted. (Except if the newest record made an aggregate None: no row shows it, and windows that only
    that record has closed are emitted again.) This reads the segments of the newest windows: about a second for a
    million rows.

    At least once, rows may be missing, and their input comes again. It must not be too late because of other rows,
    except for what the retention hides. Final results continue from the store's last commit. Some windows are emitted
    again; if the disk was lost, all that are kept.
    """
    newest_ms = store.stream_time_ms
    if newest_ms < 0 or isinstance(windows, UnlimitedWindows):  # where no record is late, and no window closes
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
    """Return the rows with a key and a valid time. The others are dropped and counted."""
    rows = with_key(rows, context.failures)
    if not rows.records or min(rows.timestamps) >= 0:
        return rows
    places = [place for place, at_ms in enumerate(rows.timestamps) if at_ms >= 0]
    return picked(rows, places, context.failures, "no_timestamp")
