"""Loading departures, with bars that show how far the worker and the pipelines are."""

from __future__ import annotations

import time
from collections.abc import Callable

from flights.catching_up import PIPELINES, Idle, await_all_stores, pipeline_read_so_far, read_so_far
from flights.loader import Feed
from flights.screen import Screen
from stateline.client import Client
from stateline.log import Log
from stateline_store import Position

LOOK_INTERVAL_S = 0.5
_CHUNK = 5_000


def load(
    feed: Feed, count: int, client: Client, log: Log, screen: Screen, poll: Idle, *, workers: str
) -> dict[str, Position]:
    """Write so many departures; once every store reflects them, the Position of each that does.

    `poll` looks after the processes meanwhile; `workers` is what the bar of those is called. Raises
    `NotUpToBoundError` when catching up takes minutes.
    """
    with screen.bars(dict.fromkeys(("written", workers, *PIPELINES), count)) as bars:

        def look() -> None:
            poll()
            bars.set("written", feed.sent)
            bars.set(workers, _records(read_so_far(client, "aircraft")))
            for name, epochs in PIPELINES.items():
                bars.set(name, _records(pipeline_read_so_far(log, epochs)))

        idle = at_most_every(LOOK_INTERVAL_S, look)
        while feed.sent < count:
            feed.send(min(_CHUNK, count - feed.sent))
            idle()
        positions = await_all_stores(client, log, feed.position, idle)
        look()
    return positions


def _records(position: Position) -> int:
    """How many departures a store at this Position has read: their topic has no gaps."""
    return sum(offset + 1 for _, offset in position)


def at_most_every(interval_s: float, action: Callable[[], None]) -> Callable[[], None]:
    """The action, left out when it ran less than this ago."""
    last = -interval_s

    def limited() -> None:
        nonlocal last
        if time.monotonic() - last >= interval_s:
            action()
            last = time.monotonic()

    return limited
