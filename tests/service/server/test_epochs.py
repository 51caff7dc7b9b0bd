"""Whole epochs over HTTP: what an answer has is of one micro-batch, whatever it asks for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from stateline.deployment.pipelines.epoch_marker import LOADING
from stateline.log import Log, open_log
from stateline.server.state import epochs
from stateline.worker.files.registration import Registration
from stateline_store import StateDirectory, StoreContext, TimestampedKeyValueStore, TopicPartition
from support.oracles.whole_epochs import PARTITIONS, Pipeline, whole_app
from support.processes.running_worker import configured, eventually, running
from support.processes.served_here import Here, served_here

NAME = "whole-app"
ROWS = {0: 20, 1: 1, 2: 20}
KEYS = [f"p{partition}-{number}" for partition, count in ROWS.items() for number in range(count)]
STORE = "/v1/stores/newest"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(open_log(f"embedded:{tmp_path / 'log.db'}", tmp_path)) as made:
        yield made


@pytest.fixture
def pipeline(log: Log) -> Iterator[Pipeline]:
    made = Pipeline(log, NAME)
    yield made
    made.producer.close()


def values(body: dict[str, Any]) -> list[int]:
    return [entry["value"] for entry in body["entries"] if entry.get("found", True)]


def looks(here: Here) -> Iterator[list[int]]:
    """What answers have, in turn of the ways to ask; an answer that is refused is left out."""
    get, post = here.client.get, here.client.post
    ways: list[Callable[[], httpx.Response]] = [
        lambda: get(f"{STORE}/range"),
        lambda: get(f"{STORE}/range", params={"order": "desc", "limit": 1000}),
        lambda: post(f"{STORE}/query", json={"type": "keys", "keys": KEYS}),
        lambda: post(f"{STORE}/query", json={"type": "keys", "keys": ["p0-0", "p2-0", "absent"]}),
    ]
    for way in itertools.cycle(ways):
        answer = way()
        if answer.status_code == 200:
            yield values(answer.json())
        else:
            assert answer.status_code == 503, answer.text


def test_no_answer_has_rows_of_two_epochs(log: Log, pipeline: Pipeline, tmp_path: Path) -> None:
    app = whole_app(NAME)
    config = configured(app, tmp_path / "state", commit__interval__ms=1)
    pipeline.write(ROWS)
    with running(app, config, log), served_here(tmp_path / "state", app=app) as here:
        asked = looks(here)
        for _ in range(40):
            pipeline.write(ROWS)
            for _ in range(6):
                found = next(asked)
                assert len(set(found)) <= 1, found
        eventually(lambda: set(next(asked)) == {pipeline.batches - 1}, "the last epoch")


@pytest.fixture
def stopped(log: Log, pipeline: Pipeline, tmp_path: Path) -> Path:
    """A state directory whose worker has committed one epoch and is gone."""
    app = whole_app(NAME)
    config = configured(app, tmp_path / "state")
    pipeline.write(ROWS)
    with running(app, config, log), served_here(tmp_path / "state", app=app) as here:

        def is_there() -> bool:
            answer = here.client.get(f"{STORE}/range")
            return answer.status_code == 200 and len(values(answer.json())) == len(KEYS)

        eventually(is_there, "the epoch")
    return tmp_path / "state"


def set_number(state_dir: Path, pipeline: Pipeline, partition: int, number: int) -> None:
    """As a worker leaves a partition that dies in the middle of a commit."""
    directory = StateDirectory(state_dir, NAME)
    task = next(directory.application.glob(f"*_{partition}")).name
    store = TimestampedKeyValueStore("newest")
    store.init(StoreContext(task, directory.task(task)))
    store.commit({TopicPartition(pipeline.epochs, 0): number})
    store.close()


@pytest.mark.parametrize("number", [7, LOADING])
def test_half_a_commit_is_not_shown(
    stopped: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(epochs, "_PATIENCE_S", 0.3)
    with served_here(stopped, app=whole_app(NAME)) as here:
        assert len(values(here.client.get(f"{STORE}/range").json())) == len(KEYS)
        set_number(stopped, pipeline, 0, number)
        for params in ({}, {"partition": [0, 2]}):
            answer = here.client.get(f"{STORE}/range", params=params)
            assert (answer.status_code, answer.json()["reason"]) == (503, "NOT_READY"), answer.text
        one = here.client.get(f"{STORE}/range", params={"partition": 0})
        assert one.status_code == (503 if number == LOADING else 200)
        key = here.client.get(f"{STORE}/keys/p0-0", params={"partition": 0})
        assert key.status_code == one.status_code
        assert len(values(here.client.get(f"{STORE}/range", params={"partition": [1, 2]}).json())) == 21
        for partition in range(PARTITIONS):
            set_number(stopped, pipeline, partition, 9)
        assert len(values(here.client.get(f"{STORE}/range").json())) == len(KEYS)


def test_what_no_worker_has_is_compared_with_what_one_has(
    stopped: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was killed in the middle of a commit and starts again tells of its tasks one by one."""
    monkeypatch.setattr(epochs, "_PATIENCE_S", 0.3)
    application = StateDirectory(stopped, NAME).application
    tasks = sorted(path.name for path in application.glob("*_[0-9]"))
    set_number(stopped, pipeline, 2, 7)
    registration = Registration(application, "worker-0")
    try:
        for told in ([], tasks[:2], tasks):
            registration.update(application / "no-socket", dict.fromkeys(told, "restoring"), uuid4())
            with served_here(stopped, app=whole_app(NAME)) as here:
                answer = here.client.get(f"{STORE}/range")
                assert (answer.status_code, answer.json()["reason"]) == (503, "NOT_READY"), (told, answer.text)
                both = here.client.get(f"{STORE}/range", params={"partition": [0, 1]})
                assert len(values(both.json())) == 21, both.text
    finally:
        registration.remove()


def test_a_snapshot_is_of_one_epoch(stopped: Path, log: Log, pipeline: Pipeline, tmp_path: Path) -> None:
    app = whole_app(NAME)
    with running(app, configured(app, tmp_path / "state"), log), served_here(stopped, app=app) as here:
        ask = partial(here.client.post, "/v1/snapshots", json={"stores": ["newest"]})
        eventually(lambda: ask().status_code == 201, "the worker is there")
    set_number(stopped, pipeline, 0, 7)
    pipeline.ends[TopicPartition(pipeline.out, 1)] += 50  # an end that the worker never comes to
    pipeline.write({0: 1})
    with running(app, configured(app, tmp_path / "state"), log), served_here(stopped, app=app) as here:
        ask = partial(here.client.post, "/v1/snapshots", json={"stores": ["newest"]})
        eventually(lambda: "micro-batch" in ask().text, "the worker is there")
        assert (ask().status_code, ask().json()["reason"]) == (503, "NOT_READY")
