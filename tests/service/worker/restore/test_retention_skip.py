"""Restores of window changelogs: records that the store's retention has dropped are not read."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from service.worker.faults import GUARANTEES
from stateline import App, SlidingWindows, TumblingWindows, serdes
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.log import Log, open_log
from stateline.log.interface import Record
from stateline.processing.changelog import owner_headers
from stateline.worker.restore import changelog_follower, retention_skip, store_restore
from stateline.worker.restore.restorer import Restorer
from stateline.worker.restore.store_restore import StoreRestore
from stateline_store import Position, TopicPartition
from stateline_store.clock import now_ms
from support import TESTS
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.run.length import long_only, on_one_log
from support.run.patience import HANGING_S

HOUR_MS = 3_600_000
HOUR, DAY = 60, 24 * 60  # in minutes
WHOLE = 1 << 60
SHORT_SESSION: dict[str, Any] = {"session__timeout__ms": 3_000, "consumer__heartbeat__interval__ms": 300}


class Kept(NamedTuple):
    """All that a store has."""

    rows: dict[bytes, bytes]
    offset: int
    position: Position
    stream_time_ms: int


class Scene:
    """An application that counts in windows, and a history of a day, of which the store keeps an hour.

    Exactly once, the day lies ahead of the clock, and its minutes are short: the broker finds the markers of
    transactions by the clock's time. A broker refuses records that are more than an hour ahead. It deletes records that
    are older than the store's retention and a day.
    """

    def __init__(self, log: Log, bootstrap: str, guarantee: str, root: Path, *, is_behind: bool = False) -> None:
        self.log, self.bootstrap, self.guarantee, self.root = log, bootstrap, guarantee, root
        self.minute_ms = 2_000 if guarantee == "exactly_once_v2" else 60_000
        segment_ms, ahead = HOUR // 2 * self.minute_ms, guarantee == "exactly_once_v2" and not is_behind
        begin_ms = now_ms() - (0 if ahead else 2 * HOUR_MS if is_behind else DAY * self.minute_ms)
        self.begin_ms = begin_ms // segment_ms * segment_ms - segment_ms // 2  # a day ends in the middle of a segment
        self.sliding, self.application_id, self.last = False, f"skips-{uuid4().hex[:8]}", -1
        self.app = counting(self.application_id, self.minute_ms, sliding=False)
        self.topic = f"{self.application_id}-in"
        self.read: list[int] = []
        create(log, {self.topic: 1})

    def slide(self) -> None:
        self.sliding = True
        self.app = counting(self.application_id, self.minute_ms, sliding=True)

    def count_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        advance, read = Restorer._advance, self.read

        def counted(self: Restorer, timeout_s: float) -> Any:
            done = advance(self, timeout_s)
            read.append(self._follower.read)
            return done

        monkeypatch.setattr(Restorer, "_advance", counted)

    def config(self, directory: str = "state", **more: Any) -> Config:
        settings = {"bootstrap__servers": self.bootstrap, "processing__guarantee": self.guarantee, **more}
        return configured(self.app, self.root / directory, **settings)

    def write(self, minutes: list[float], *, keys: int, pieces: int) -> None:
        """Count a record at each of these minutes, with commits in between."""
        size = -(-len(minutes) // pieces)
        with closing(self.stores()) as found, running(self.app, self.config(), self.log):
            for first in range(0, len(minutes), size):
                piece = enumerate(minutes[first : first + size], first)
                made = [(b"k%d" % (n % keys), b"v", self.begin_ms + int(at * self.minute_ms)) for n, at in piece]
                self.last = next(iter(produce(self.log, self.topic, made).values()))
                eventually(lambda: found.offset("counts", self.topic, 0) >= self.last, "a piece is counted")

    def stores(self, directory: str = "state") -> Stores:
        return Stores(self.app, self.config(directory), self.root / f"scratch-{uuid4().hex[:8]}")

    def restored(self, *, anew: bool = True) -> Kept:
        """All that the store has when a worker has restored it. `read` has the numbers of records."""
        if anew:
            shutil.rmtree(self.root / "state")
        self.read.clear()
        with closing(self.stores()) as found, running(self.app, self.config(), self.log) as worker:
            eventually(lambda: bool(worker.tasks.running), "the task runs")
            return self.kept(found)

    def kept(self, found: Stores) -> Kept:
        eventually(lambda: found.offset("counts", self.topic, 0) >= self.last, "everything is there")
        reader = found.reader("counts", 0)
        assert reader is not None
        with reader.range(None, None) as rows:
            kept = dict(rows)
        changelog = TopicPartition(f"{self.application_id}-counts-changelog", 0)
        return Kept(kept, reader.offsets[changelog], reader.position, reader.stream_time_ms)


def counting(application_id: str, minute_ms: int, *, sliding: bool) -> App:
    app = App(application_id)
    rows = app.stream(f"{application_id}-in", key=serdes.string, value=serdes.string)
    minute, grace = timedelta(milliseconds=minute_ms), timedelta(milliseconds=30 * minute_ms)
    windows = SlidingWindows(minute, grace=grace) if sliding else TumblingWindows(minute, grace=grace)
    rows.group_by_key().windowed_by(windows).count("counts", retention=timedelta(milliseconds=HOUR * minute_ms))
    return app


@pytest.fixture(params=GUARANTEES)
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scene(log: Log, bootstrap: str, guarantee: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(log, bootstrap, guarantee, tmp_path)
    made.count_read(monkeypatch)
    return made


def out_of_order(seed: int, count: int, minutes: int = DAY) -> list[float]:
    """About these minutes with pauses. Some records are late, and some of those too late."""
    chance, at, found = random.Random(seed), 0.0, []
    for _ in range(count):
        at += chance.expovariate(count / minutes) * chance.choice([0, 0, 1, 3])
        found.append(max(0.0, at - (chance.uniform(0, 45) if chance.random() < 0.2 else 0)))
    return found


def test_a_store_of_windows_that_was_restored_from_what_it_keeps_equals_one_that_was_restored_whole(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(scene.guarantee + scene.bootstrap[:8])
    if scene.bootstrap.startswith("embedded"):
        scene.slide()
    scene.write(out_of_order(chance.randrange(1 << 30), 4_000), keys=chance.choice([7, 300]), pieces=30)
    monkeypatch.setattr(retention_skip, "_LEAST_OFFSETS", 1)
    skipped, read = scene.restored(), sum(scene.read)
    monkeypatch.setattr(retention_skip, "_LEAST_OFFSETS", WHOLE)
    assert skipped == scene.restored()
    assert 0 < read < sum(scene.read) / 4


@on_one_log("embedded", "the test before restores half as many records on Kafka")
def test_a_store_that_keeps_an_hour_of_a_day_reads_less_than_a_fifth_more_than_it_keeps(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    minutes = [max(0, n / 8 - (20 if n % 50 == 0 else 0)) for n in range(8 * DAY)]
    scene.write(minutes, keys=500, pieces=24)
    caplog.set_level(logging.INFO)
    kept, read = scene.restored(), sum(scene.read)
    assert "Store counts skips offsets 0 to " in caplog.text
    monkeypatch.setattr(retention_skip, "_LEAST_OFFSETS", WHOLE)
    assert kept == scene.restored()
    assert len(kept.rows) <= read <= 1.2 * len(kept.rows) < sum(scene.read) / 10


def restored_and_killed(application_id: str, minute_ms: str, guarantee: str, bootstrap: str, root: str) -> None:
    """Restore a store by small commits, and die after the first. Its session is short: who comes next waits for it."""
    store_restore._BATCH_BYTES = retention_skip._LEAST_OFFSETS = 1
    changelog_follower.SLICE_RECORDS = 50
    commit = StoreRestore.commit

    def killed(self: StoreRestore) -> None:
        commit(self)
        if self.restored and self.remaining:
            os.kill(os.getpid(), signal.SIGKILL)

    StoreRestore.commit = killed  # type: ignore[method-assign]
    app = counting(application_id, int(minute_ms), sliding=False)
    given = {"bootstrap__servers": bootstrap, "processing__guarantee": guarantee, **SHORT_SESSION}
    config = configured(app, Path(root) / "state", **given)
    with closing(configured_log(config)) as log, running(app, config, log) as worker:
        eventually(lambda: bool(worker.tasks.running), "the task runs")


@on_one_log("embedded", "offsets are found by their times on either log, as other tests here show on Kafka")
def test_a_restore_that_skips_and_is_killed_continues_at_its_offset(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write(out_of_order(5, 3_000, minutes=6 * HOUR), keys=50, pieces=24)
    shutil.rmtree(scene.root / "state")
    module = "service.worker.restore.test_retention_skip"
    run = f"import sys, {module} as tests; tests.restored_and_killed(*sys.argv[1:])"
    given = [scene.application_id, str(scene.minute_ms), scene.guarantee, scene.bootstrap, str(scene.root)]
    process = subprocess.run([sys.executable, "-c", run, *given], cwd=TESTS, timeout=HANGING_S, check=False)
    assert process.returncode == -signal.SIGKILL
    monkeypatch.setattr(retention_skip, "_LEAST_OFFSETS", 1)
    resumed, read = scene.restored(anew=False), sum(scene.read)
    monkeypatch.setattr(retention_skip, "_LEAST_OFFSETS", WHOLE)
    assert resumed == scene.restored()
    assert 0 < read < sum(scene.read) / 2


@pytest.mark.parametrize(
    "guarantee",
    ["exactly_once_v2", pytest.param("at_least_once", marks=long_only("exactly once has markers between its records"))],
    indirect=True,
)
def test_a_standby_skips_what_its_owner_no_longer_keeps(
    kafka_broker: SharedBroker,
    guarantee: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = kafka_broker.bootstrap_servers
    with closing(open_log(servers, tmp_path)) as log:
        scene = Scene(log, servers, guarantee, tmp_path)
        scene.write(out_of_order(6, 3_000), keys=50, pieces=15)
        monkeypatch.setattr(retention_skip, "_LEAST_OFFSETS", 1)
        caplog.set_level(logging.INFO)
        more = {"num__standby__replicas": 1, **SHORT_SESSION}
        one = scene.config("state", group__instance__id="one", **more)
        two = scene.config("two", group__instance__id="two", **more)
        with (
            running(scene.app, one, log),
            closing(open_log(servers, tmp_path)) as other,
            running(scene.app, two, other, "worker-2") as worker,
            closing(scene.stores()) as owner,
            closing(scene.stores("two")) as standby,
        ):
            eventually(lambda: len(worker.standbys.followed.caught_up()) == 1, "the standby has everything")
            assert "Store counts skips offsets 0 to " in caplog.text
            # The offset of one of both may be that of the last transaction's marker.
            assert scene.kept(standby)._replace(offset=0) == scene.kept(owner)._replace(offset=0)


def test_kafkas_markers_that_are_newer_than_all_windows_let_a_restore_skip_no_record(
    kafka_broker: SharedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = kafka_broker.bootstrap_servers
    monkeypatch.setattr(retention_skip, "_LEAST_OFFSETS", 1)
    with closing(open_log(servers, tmp_path)) as log:
        scene = Scene(log, servers, "exactly_once_v2", tmp_path, is_behind=True)
        scene.write(out_of_order(7, 2_000), keys=50, pieces=10)
        changelog = TopicPartition(f"{scene.application_id}-counts-changelog", 0)
        with closing(log.admin()) as admin:
            first_marker = admin.offset_at(changelog, now_ms() - HOUR_MS)
        scene.count_read(monkeypatch)
        kept, read = scene.restored(), sum(scene.read)
        monkeypatch.setattr(retention_skip, "_LEAST_OFFSETS", WHOLE)
        assert kept == scene.restored()
        assert 0 <= sum(scene.read) - read <= first_marker


def test_the_end_of_a_changelog_tells_the_newest_window_of_its_newest_owner() -> None:
    def record(offset: int, start_ms: int, owner: int, timestamp_ms: int | None = None) -> Record:
        key = b"k" + start_ms.to_bytes(8, "big") + bytes(4)
        at_ms = start_ms if timestamp_ms is None else timestamp_ms
        return Record("changelog", 0, offset, at_ms, key, b"v", owner_headers(owner))

    records = [record(10, 9_000, 3), record(11, 5_000, 8), record(12, 9_500, 3), record(13, 4_000, 8)]
    assert retention_skip._newest_window(records) == (5_000, 11)
    assert retention_skip._newest_window([]) is None
    assert retention_skip._newest_window([*records, record(14, 6_000, 8, timestamp_ms=5_999)]) is None
