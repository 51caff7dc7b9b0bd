"""Drivers, their JVMs, workers and servers killed with `kill -9`, at every step of a micro-batch and of a commit, while
input keeps coming: when it pauses, the stores are what plain Python makes of all of it, and every answer that was given
meanwhile over all partitions of a pipeline of whole epochs was of one micro-batch.

`make test` kills at some of the steps, `make test-all` at each. `CRASH_ROUNDS` says how often all of it is done: once,
then with 24 kills, unless it is set. The long run, with 124:

    CRASH_ROUNDS=5 .venv/bin/pytest -n 0 --long tests/integration/test_pipeline_crashes.py -o log_cli_level=INFO
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.spark.departures import settings
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log.embedded import EmbeddedLog
from stateline.model.pipeline import epochs_topic
from support.apps.pipeline_app import NAME, PARTITIONS
from support.oracles.pipeline_ledger import Books, Feeder, Ledger, Sums, difference
from support.processes.pipeline_processes import ANY_MOMENT, JVM, Kill, Processes, moments
from support.processes.ports import free_port
from support.processes.running_worker import create, read_all
from support.run.length import long_or_short
from support.run.patience import HANGING_S
from support.spark.on_cluster import wanted_cluster
from support.spark.spark_archive import put_class_archive

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "1"))
SINK_STEPS = long_or_short(
    ["sink:computed", "sink:encoded", "sink:begun", "sink:rows-produced", "sink:flushed", "sink:marker-produced",
     "sink:committed"],
    ["sink:marker-produced"],  # all is written, and nothing committed
)  # fmt: skip
OF_WHOLE_EPOCHS = long_or_short("sink:flushed", "sink:marker-produced")  # where a driver of theirs is killed
COMMIT_STEPS = long_or_short(
    ["commit:begun", "commit:changes-produced", "commit:changes-flushed", "commit:offsets-sent",
     "commit:log-committed"],
    ["commit:changes-flushed", "commit:log-committed"],
)  # fmt: skip
STORE_STEPS = long_or_short(
    ["commit:batch-ready", "commit:batch-written", "commit:store-committed", "commit:task-committed",
     "commit:store-announced", "commit:task-announced"],
    ["commit:batch-ready", "commit:store-committed"],
)  # fmt: skip
RESULTS = {"keep_uneven": "uneven", "by_minute": "minutes", "by_visit": "visits", "pass_on": "entries"}
OUR_STATE = ["by_visit"]  # in processors of Stateline's own; Spark's operators keep the others'
VISITORS = "0123456789"
TIMES = {"from": 0, "to": 2**62}
TYPED = {"NOT_READY", "NOT_PRESENT", "NOT_ACTIVE"}
_log = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or newer: there is no java.")


def sums(values: list[tuple[Any, Any]]) -> Sums:
    """Entries of a store, each of which must be there once."""
    found = {key: (value["n"], value["total"]) if isinstance(value, dict) else tuple(value) for key, value in values}
    assert len(found) == len(values), "a key came twice"
    return found


class Reader:
    """Committed stores, over HTTP."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=HANGING_S)

    def store(self, name: str) -> Sums:
        """All of a store that is kept of results."""
        if name == "minutes":
            return sums([((e["key"], e["start"]), e["value"]) for e in self._entries("minutes/windows", TIMES)])
        if name == "visits":
            visits = ((key, e) for key in VISITORS for e in self._entries(f"visits/keys/{key}/sessions", TIMES))
            return sums([((key, e["start"], e["end"]), e["value"]) for key, e in visits])
        return sums([(e["key"], e["value"]) for e in self._entries(f"{name}/range")])

    def books(self) -> Books | None:
        """All of the store at one moment, as one answer over all partitions says; None while there is none."""
        try:
            answer = self.client.get("/v1/stores/books/range", params={"isolation_level": "read_committed"})
        except httpx.TransportError:
            return None
        told = answer.json()
        if answer.status_code != 200:
            assert told["reason"] in TYPED, str(told)
            return None
        assert told.get("cursor") is None
        return tuple(sorted(sums([(e["key"], e["value"]) for e in told["entries"]]).items()))

    def _entries(self, path: str, parameters: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        given: dict[str, Any] = {"isolation_level": "read_committed", "limit": 10_000, "wait_ms": 5_000}
        told = self.client.get(f"/v1/stores/{path}", params=given | (parameters or {})).raise_for_status().json()
        yield from told["entries"]
        while (cursor := told.get("cursor")) is not None:
            told = self.client.get(f"/v1/stores/{path}", params={"cursor": cursor}).raise_for_status().json()
            yield from told["entries"]


class Watcher(threading.Thread):
    """Asks for all books again and again; `seen` is what it was told, without repetitions."""

    def __init__(self, url: str) -> None:
        super().__init__(name="watcher")
        self._reader = Reader(url)
        self._stopping = threading.Event()
        self.seen: list[Books] = []
        self.answers = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.wait(long_or_short(0.05, 0.25)):
                if (books := self._reader.books()) is not None:
                    self.answers += 1
                    if self.seen[-1:] != [books]:
                        self.seen.append(books)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._reader.client.close()
        if self.error is not None:
            raise self.error


class Scene:
    """One log, one state directory, input that keeps coming, and processes that are killed."""

    def __init__(self, root: Path, of_cluster: list[str]) -> None:
        url = f"http://127.0.0.1:{(port := free_port())}"
        log_file = root / "log.db"
        self.log, self.ledger, self.reader = EmbeddedLog(log_file), Ledger(), Reader(url)
        create(self.log, {"journal": PARTITIONS})
        put_class_archive(root / "state")
        self.processes = Processes(root, url, [
            *settings(str(root / "state"), f"embedded:{log_file}"),
            f"spark.trigger.interval.ms={long_or_short(100, 1_000)}",
            "pipeline.drivers=one",
            "processing.guarantee=exactly_once_v2",
            f"commit.interval.ms={long_or_short(1, 100)}",
            "group.instance.id=the-worker",
            f"server.port={port}",
            *of_cluster,
        ])  # fmt: skip
        self.feeder, self.watcher = Feeder(self.log, self.ledger), Watcher(url)
        self.feeder.start()
        self.watcher.start()

    def close(self) -> None:
        try:
            self.feeder.stop()
            self.watcher.stop()
        finally:
            self.processes.close()
            self.reader.client.close()
            self.log.close()

    def go_through(self, driver: list[Kill], worker: list[Kill], server: list[Kill]) -> None:
        """Kill them in these ways while input comes."""
        self.feeder.flow()
        plans = zip(self.processes.every, (driver, worker, server), strict=True)
        for process, kills in plans:
            process.plan(kills)
        self.processes.until_left_alone((len(driver) + 1) * HANGING_S)

    def check_stores(self) -> None:
        """Once the input pauses, the stores come to what all of it makes."""
        self.feeder.be_quiet()
        wanted = self.ledger.stores()
        found = ""

        def are_equal() -> bool:
            nonlocal found
            found = _difference(self.reader, wanted)
            return not found

        self.processes.until(are_equal, lambda: found, HANGING_S, pause_s=0.3)

    def check_epochs(self) -> None:
        """Markers count on, the rows that they tell of are there, and what the watcher was told were their epochs."""
        for pipeline, topic in RESULTS.items():
            markers, records = self._markers(pipeline), read_all(self.log, topic, PARTITIONS)
            assert [marker.batch_id for marker in markers] == list(range(len(markers)))
            if topic != "uneven":  # complete mode: markers tell of the whole result, records are what differs
                assert sum(marker.rows or 0 for marker in markers) == len(records), topic
            disappeared, may_disappear = any(r.value is None for r in records), topic not in ("minutes", "entries")
            # In the short form there is too little input for it to be certain.
            assert disappeared == may_disappear or (may_disappear and long_or_short(False, True)), (
                f"rows of {topic} that disappeared"
            )
        numbers = {books: number for number, books in enumerate(self.ledger.books_at_epochs(self._markers("pass_on")))}
        strange = [books for books in self.watcher.seen if books not in numbers]
        assert not strange, f"{len(strange)} of {len(self.watcher.seen)} answers are of no epoch, as {strange[0]}"
        seen = [numbers[books] for books in self.watcher.seen]
        assert seen == sorted(seen), "an answer went back"
        _log.info("%d answers, of %d of %d epochs", self.watcher.answers, len(seen), len(numbers))

    def _markers(self, pipeline: str) -> list[EpochMarker]:
        records = read_all(self.log, epochs_topic(NAME, pipeline), 1)
        return [EpochMarker.decode(record.value) for record in records if record.value is not None]


def _difference(reader: Reader, wanted: dict[str, Sums]) -> str:
    """Of the first store that is not as it should be; the others are not asked for."""
    try:
        told = ((name, difference(reader.store(name), sums)) for name, sums in wanted.items())
        return next((f"{name}: {said}" for name, said in told if said), "")
    except httpx.HTTPStatusError as error:
        return f"{error}: {error.response.text}"


@pytest.fixture
def scene(tmp_path: Path, python_of_spark: None) -> Iterator[Scene]:
    # A checkpoint location is for Kafka alone: checkpoints are in the state directory, which all of this cluster see.
    with ExitStack() as stack:
        cluster = stack.enter_context(wanted_cluster(tmp_path))
        yield stack.enter_context(closing(Scene(tmp_path, [] if cluster is None else cluster.settings)))


def plans(chance: random.Random, number: int) -> tuple[list[Kill], list[Kill], list[Kill]]:
    """What this round does to driver, worker and server. Whoever lives from the round before is killed at any moment,
    before it can be told of a step. A driver that dies at a step runs one pipeline, which starts sooner; others all."""
    pipelines = chance.sample([*OUR_STATE * 4, "keep_uneven", "by_minute"], len(SINK_STEPS) - 1)
    sink = [
        Kill(f"{step}#{chance.randint(1, 3)}", arguments=("pass_on" if step == OF_WHOLE_EPOCHS else pipelines.pop(),))
        for step in SINK_STEPS
    ]
    commits = [Kill(f"{step}#{chance.randint(1, 3)}") for step in COMMIT_STEPS]
    commits += [Kill(f"{step}#{chance.randint(1, 2 * PARTITIONS)}") for step in STORE_STEPS]
    commits += moments(chance, long_or_short(2, 1), busy_s=2, start_s=1)
    chance.shuffle(sink)
    chance.shuffle(commits)
    all_run = moments(chance, min(number, 1), busy_s=2, start_s=8, at=JVM if number % 2 else ANY_MOMENT)
    servers = moments(chance, long_or_short(3, 1), busy_s=4, start_s=1)
    return all_run + sink, moments(chance, 1, busy_s=2, start_s=1) + commits, servers


def test_whoever_is_killed_and_whenever_the_stores_are_what_the_whole_input_makes(scene: Scene) -> None:
    chance = random.Random(ROUNDS)
    for number in range(ROUNDS):
        scene.go_through(*plans(chance, number))
        began_s = time.monotonic()
        scene.check_stores()
        _log.info(
            "round %d: %d kills, right after %.1f s", number, scene.processes.kills.total(), time.monotonic() - began_s
        )
    scene.processes.stop()
    scene.watcher.stop()
    scene.check_epochs()
    kills = scene.processes.kills
    assert kills.total() >= long_or_short(24, 8) * ROUNDS
    assert {f"driver {step}" for step in SINK_STEPS} | {f"worker {step}" for step in COMMIT_STEPS + STORE_STEPS} < set(
        kills
    )
    for what, count in sorted(kills.items()):
        _log.info("%4d  %s", count, what)
