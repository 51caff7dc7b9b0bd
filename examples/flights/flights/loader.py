"""Writes the demo's records to the log: the small tables at once, departures as fast or as slow as told."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from flights.application import app
from flights.data import SourceRecord, table
from stateline.log import Log, NewTopic, Producer
from stateline.model.table_topics import table_settings
from stateline_store import Position

TABLES = {"airlines": 1, "airports": 1, "planes": 2, "weather": 2}
"""Partitions of the topics that become tables as they are."""

DEPARTURES, DEPARTURE_PARTITIONS = "departures", 4


def create_topics(log: Log) -> None:
    """Create the source topics; those that exist stay as they are."""
    counts, settings = {**TABLES, DEPARTURES: DEPARTURE_PARTITIONS}, table_settings(app.topology())
    with closing(log.admin()) as admin:
        admin.create_topics(NewTopic(name, count, settings[name]) for name, count in counts.items())


def load_tables(log: Log) -> Position:
    """Write weather, planes, airlines and airports; the Position of a store that has read all of them."""
    with closing(log.producer()) as producer:
        for name in TABLES:
            for key, value, timestamp_ms in table(name):
                producer.produce(name, key, value, timestamp_ms=timestamp_ms)
        return Position.of(producer.flush())


class Feed:
    """Writes departures one after another. One thread owns it, and the producer.

    `sent` departures are written and visible; `position` is that of a store that has read them all.
    """

    def __init__(self, producer: Producer, departures: Sequence[SourceRecord]) -> None:
        self.sent = 0
        self.position = Position()
        self._producer = producer
        self._departures = departures

    @property
    def waiting(self) -> int:
        """How many departures are left."""
        return len(self._departures) - self.sent

    @property
    def next(self) -> SourceRecord:
        """The departure that `send` writes next. Raises IndexError when none is left."""
        return self._departures[self.sent]

    def send(self, count: int) -> Position:
        """Write the next `count` departures, or as many as are left; the Position of what was written."""
        for key, value, timestamp_ms in self._departures[self.sent : self.sent + count]:
            self._producer.produce(DEPARTURES, key, value, timestamp_ms=timestamp_ms)
        written = Position.of(self._producer.flush())
        self.sent += min(count, self.waiting)
        self.position = self.position.merge(written)
        return written
