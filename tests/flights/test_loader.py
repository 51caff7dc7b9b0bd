"""The feed of departures: each once, in order, and the position of what is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flights.catching_up import last_position
from flights.data import SourceRecord
from flights.loader import Feed, create_topics
from stateline.log.embedded import EmbeddedLog
from stateline_store import Position
from support.processes.running_worker import read_all


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path / "log.db")
    create_topics(log)
    yield log
    log.close()


def test_departures_are_written_once_each_in_pieces_of_any_size(
    log: EmbeddedLog, departures: list[SourceRecord]
) -> None:
    some = departures[:1_000]
    with closing(log.producer()) as producer:
        feed = Feed(producer, some)
        for count in (1, 0, 299, 600, 500):
            feed.send(count)
    assert (feed.sent, feed.waiting) == (1_000, 0)
    written = sorted((r.key, r.value, r.timestamp_ms) for r in read_all(log, "departures", 4))
    assert written == sorted(tuple(record) for record in some)


def test_the_position_of_a_feed_is_that_of_a_store_which_has_read_it_all(
    log: EmbeddedLog, departures: list[SourceRecord]
) -> None:
    with closing(log.producer()) as producer:
        feed = Feed(producer, departures)
        feed.send(500)
        assert feed.next == departures[500]
        last = feed.send(1)
    assert feed.position == last_position(log, "departures")
    assert len(list(last)) == 1
    assert feed.position.merge(last) == feed.position


def test_an_exhausted_feed_writes_nothing(log: EmbeddedLog) -> None:
    with closing(log.producer()) as producer:
        feed = Feed(producer, [])
        assert feed.send(10) == Position()
    assert feed.waiting == 0
