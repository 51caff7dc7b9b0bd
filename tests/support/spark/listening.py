"""A `StreamingQueryListener` as users write them, and what it was told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQueryManager

from support.run.patience import HANGING_S


class Listener(StreamingQueryListener):
    """Keeps every report of the queries that it hears of, until one of them ends."""

    def __init__(self) -> None:
        self.reports: list[StreamingQueryProgress] = []
        self.ended = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        self.reports.append(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        self.ended.set()


@contextmanager
def listening(streams: StreamingQueryManager) -> Iterator[list[StreamingQueryProgress]]:
    """All reports of one query that runs within the block; when that has ended, they are whole."""
    listener = Listener()
    streams.addListener(listener)
    try:
        yield listener.reports
        assert listener.ended.wait(HANGING_S)
    finally:
        streams.removeListener(listener)
