"""All nodes and all changelogs are lost, with rows in them that operators hold back."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stateline import JoinWindows, TumblingWindows, serdes, until_time_limit, until_window_closes
from stateline.cli.backup.lost_changelogs import restored_without_changelogs
from stateline.cli.backup.making import make_now
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log import Log
from stateline.processing.changelog import own_headers
from stateline_store import NotPresentError, RetryLaterError
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running
from support.run.length import on_one_log

WAIT_MS, PARTITIONS = 5_000, 2
BUFFERS = ("waiting-store", "held-Buffer", "pairs-outer-shared-join-store")
RESULTS = ("calm", "final", "rated", "paired")
Row = tuple[bytes, bytes, int, list[tuple[str, bytes]]]
Live = tuple[bytes | None, int, Any]


def held_back(application_id: str, of: str) -> App:
    """One of each operator that holds rows back, over `trades` and `rates` of this name."""
    app, wait = App(application_id), timedelta(milliseconds=WAIT_MS)
    texts: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    prices = app.ktable(app.table(f"{of}-prices", store="newest", **texts))
    prices.suppress(until_time_limit(wait), name="waiting").to_stream().to(f"{application_id}-calm")
    rates = app.table(f"{of}-rates", versioned=timedelta(hours=1), store="rates", **texts)
    trades = app.stream(f"{of}-trades", **texts)
    trades.left_join(rates, _pair, grace=wait, store="held").to(f"{application_id}-rated")
    counted = trades.group_by_key().windowed_by(TumblingWindows(wait, grace=wait)).count("windows")
    counted.suppress(until_window_closes()).to_stream().to(f"{application_id}-final")
    orders = app.stream(f"{of}-orders", **texts)
    orders.outer_join(trades, _pair, within=JoinWindows(wait, grace=wait), store="pairs").to(f"{application_id}-paired")
    return app


def _pair(one: Any, other: Any) -> str:
    return f"{one}|{other}"


class Scene:
    """An application, and another one over the same topics that nothing happens to."""

    def __init__(self, log: Log, bootstrap: str, guarantee: str, path: Path) -> None:
        self.log, self.path, self._readers, self._clock_ms = log, path, 0, 1_000_000
        self.given = {"bootstrap.servers": bootstrap, "processing.guarantee": guarantee, "session.timeout.ms": "3000"}
        self.of = f"in-{uuid4().hex[:8]}"
        self.inputs = [f"{self.of}-{name}" for name in ("prices", "rates", "trades", "orders")]
        self.lost, self.whole = (held_back(f"{self.of}-{name}", self.of) for name in ("lost", "whole"))
        self._random, self._sent = random.Random(7), 0
        create(log, dict.fromkeys(self.inputs, PARTITIONS))
        for app in (self.lost, self.whole):
            create(log, {f"{app.application_id}-{name}": PARTITIONS for name in RESULTS})

    def config(self, app: App) -> Config:
        settings = {name.replace(".", "__"): value for name, value in self.given.items()}
        return configured(app, self.path / app.application_id, backup__location=self.path / "backups", **settings)

    def write(self, count: int) -> None:
        """Write records of a few keys, some of them late, to all topics."""
        rows: dict[str, list[Row]] = {topic: [] for topic in self.inputs}
        for _ in range(count):
            self._clock_ms += 400
            self._sent += 1
            for topic in self.inputs:
                key, at_ms = b"k%d" % self._random.randrange(9), self._clock_ms - self._random.randrange(3_000)
                rows[topic].append((key, b"%d" % self._sent, at_ms, [("trace", key)]))
        for topic in self.inputs:
            produce(self.log, topic, rows[topic])

    def works(self, app: App, then: Callable[[App, Config], object] | None = None) -> None:
        """Run a worker until it has processed all input, do something, and stop it."""
        config = self.config(app)
        with closing(self.log.admin()) as admin:
            wanted = {place: end for info in admin.topics(self.inputs).values() for place, (_, end) in
                      admin.bounds(info.places).items()}  # fmt: skip

            def is_done() -> bool:
                at = admin.committed(app.application_id, list(wanted))
                return all(at.get(place, 0) >= end for place, end in wanted.items())

            with running(app, config, self.log):
                eventually(is_done, "all input is processed")
                if then is not None:
                    then(app, config)

    def live(self, app: App, store: str) -> dict[tuple[int, bytes | None], Live]:
        """The rows of a store's changelog: the newest of each key, with its time and its own headers."""
        topic, found = f"{app.application_id}-{store}-changelog", dict[tuple[int, bytes | None], Live]()
        for record in read_all(self.log, topic, PARTITIONS):
            where = record.partition, record.key
            found.pop(where, None)
            if record.value is not None:
                found[where] = record.value, record.timestamp_ms, tuple(own_headers(record.headers))
        return found

    def rows(self, app: App) -> dict[str, dict[bytes, bytes]]:
        """The rows of the buffers on disk."""
        self._readers += 1
        with closing(Stores(app, self.config(app), self.path / f"readers-{self._readers}")) as stored:
            return {name: stored.rows(name, PARTITIONS) for name in BUFFERS}

    def results(self, app: App, name: str) -> set[tuple[bytes | None, bytes | None, int]]:
        """What the application has written, each record once: those since a backup are written again."""
        found = read_all(self.log, f"{app.application_id}-{name}", PARTITIONS)
        return {(record.key, record.value, record.timestamp_ms) for record in found}


@pytest.fixture
def scene(log: Log, bootstrap: str, guarantee: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    # A table gives one change of a key in each slice, so the results depend on the slices.
    monkeypatch.setattr("stateline.worker.loop.pace.SlicePace.cut", _one_by_one)
    return Scene(log, bootstrap, guarantee, tmp_path)


def _one_by_one(_: object, records: list[Any], at: int) -> tuple[list[Any], int]:
    return records[at : at + 1], 1


def _backs_up(app: App, config: Config) -> None:
    def is_made() -> bool:
        with suppress(NotPresentError, RetryLaterError):
            return make_now(app, config)["partitions"] == len(app.topology().stores) * PARTITIONS
        return False

    eventually(is_made, "all stores are backed up")


def _changelogs(app: App) -> Iterable[str]:
    stores = (store.changelog(app.application_id) for store in app.topology().stores.values() if store.source is None)
    return [name for name in stores if name is not None]


@on_one_log("embedded", "test_lost_changelogs.py restores changelogs of Kafka")
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_what_is_held_back_comes_again_with_its_times_and_headers(scene: Scene) -> None:
    scene.write(40)
    scene.works(scene.lost, _backs_up)
    scene.works(scene.whole)
    before = {name: scene.live(scene.lost, name) for name in BUFFERS}
    assert all(before.values()), "each buffer holds rows"
    scene.write(20)
    scene.works(scene.lost)
    scene.works(scene.whole)
    shutil.rmtree(scene.path / scene.lost.application_id)
    with closing(scene.log.admin()) as admin:
        admin.delete_topics(_changelogs(scene.lost))
    restored_without_changelogs(scene.lost, scene.config(scene.lost), None, [], print)
    for name in BUFFERS:
        assert scene.live(scene.lost, name) == before[name]
    scene.works(scene.lost)
    for name in RESULTS:
        assert scene.results(scene.lost, name) == scene.results(scene.whole, name)
    expected = scene.rows(scene.whole)
    assert scene.rows(scene.lost) == expected
    shutil.rmtree(scene.path / scene.lost.application_id)  # another machine reads the new changelogs
    scene.works(scene.lost, lambda *_: eventually(lambda: scene.rows(scene.lost) == expected, "they are the same"))
