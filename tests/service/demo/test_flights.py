"""The demo's application on its first real departures, through a worker: what it keeps is what the oracle says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from stateline.demo import data, oracle
from stateline.demo.catching_up import last_position
from stateline.demo.flights import app, by_airport, weather_by_airport
from stateline.demo.loader import TABLES, Feed, create_topics, load_tables
from stateline.log.embedded import EmbeddedLog
from stateline.model.internal_topics import required_topics
from support.processes.running_worker import Stores, configured, eventually, running

COUNT = 3_000


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, departures: list[data.SourceRecord]) -> Iterator[Stores]:
    """The committed stores after the first departures."""
    directory = tmp_path_factory.mktemp("demo")
    log = EmbeddedLog(directory / "log.db")
    create_topics(log)
    config = configured(app, directory / "state", processing__guarantee="exactly_once_v2", commit__interval__ms=1000)
    with closing(Stores(app, config, directory / "scratch")) as stores:
        with running(app, config, log):
            load_tables(log)
            with closing(log.producer()) as producer:
                feed = Feed(producer, departures)
                feed.send(COUNT)
            _caught_up(log, stores, "aircraft", "departures")
            for name in TABLES:
                _caught_up(log, stores, name, name)
            _caught_up(log, stores, "airport_totals", by_airport.name)
            _caught_up(log, stores, "weather_as_of", weather_by_airport.name)
        yield stores


def _caught_up(log: EmbeddedLog, stores: Stores, store: str, topic: str) -> None:
    position = last_position(log, topic)

    def reached() -> bool:
        return all(stores.offset(store, tp.topic, tp.partition) >= offset for tp, offset in position)

    eventually(reached, f"{store} has read {topic}")


def _json(stores: Stores, store: str, partitions: int) -> dict[str, object]:
    return {key.decode(): orjson.loads(value) for key, value in stores.rows(store, partitions).items()}


def test_the_latest_departure_of_every_aircraft_and_the_totals_of_every_airport_are_kept(
    stores: Stores,
) -> None:
    expected = oracle.expected(COUNT)
    assert _json(stores, "aircraft", 4) == expected.aircraft
    assert _json(stores, "airport_totals", 2) == expected.airport_totals


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_a_table_is_kept(stores: Stores, name: str) -> None:
    assert _json(stores, name, TABLES[name]) == oracle.expected_table(name)


def test_the_app_waits_for_nothing_but_the_topics_that_the_demo_loads(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log.db")
    create_topics(log)
    with closing(log.admin()) as admin:
        assert set(required_topics(app.topology())) == set(admin.topics())
