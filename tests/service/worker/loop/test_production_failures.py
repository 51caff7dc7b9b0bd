"""Records that are forwarded and that the log refuses, under each policy and guarantee, on both logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.faults import GUARANTEES
from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log import Log
from stateline.log.embedded import EmbeddedLog
from stateline.worker.loop.worker import Worker
from stateline_store import DoesNotExistError, RecordError, TopicPartition
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running

TOO_LARGE = (("picture", bytes(2_000_000)),)


class Scene:
    """An application that counts, and forwards what it is given; a value of "large" with headers that no log takes."""

    def __init__(self, log: Log, root: Path, guarantee: str, policy: str) -> None:
        run = uuid4().hex[:8]
        self.log, self.root, self.source, self.target = log, root, f"in-{run}", f"out-{run}"
        self.app = App(f"forwards-{run}")
        source = self.app.topic(self.source, key=serdes.string, value=serdes.string)
        target = self.app.topic(self.target, key=serdes.string, value=serdes.string)
        counts = self.app.store(stores.key_value("counts", key=serdes.string, value=serdes.json))

        @self.app.process(source, stores=[counts], forwards=[target])
        def pass_on(record: Any, counts: Any, target: Any) -> None:
            counts.put(record.key, (counts.get(record.key) or 0) + 1)
            target.forward(record.key, record.value, headers=TOO_LARGE if record.value == "large" else ())

        self.settings = {"processing__guarantee": guarantee, "production__exception__handler": policy}
        create(log, {self.source: 1, self.target: 1})

    def config(self) -> Config:
        return configured(self.app, self.root / "state", **self.settings)

    def send(self, *values: bytes) -> None:
        produce(self.log, self.source, [(b"k", value, 1) for value in values])

    def offset(self) -> int:
        found = Stores(self.app, self.config(), self.root / "scratch" / uuid4().hex)
        try:
            return found.offset("counts", self.source, 0)
        finally:
            found.close()


Make = Callable[[str, str], Scene]


@pytest.fixture
def make(log: Log, tmp_path: Path) -> Make:
    return lambda guarantee, policy: Scene(log, tmp_path, guarantee, policy)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_record_that_is_too_large_ends_the_worker_or_is_left_out_and_counted(
    make: Make, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing = make(guarantee, "fail")
    failing.send(b"one", b"large", b"two")
    said = rf"refuses a record for '{failing.target}' of key b'k': .* set production.exception.handler to skip"
    with pytest.raises(RecordError, match=said):
        Worker(failing.app, failing.config(), failing.log, instance="w").run()

    skipping = make(guarantee, "skip")
    skipping.send(b"one", b"large", b"two")
    with caplog.at_level(logging.WARNING), running(skipping.app, skipping.config(), skipping.log) as worker:
        eventually(lambda: skipping.offset() == 2, "all is processed and committed")
    assert worker.failures.skipped == 1
    assert [record.value for record in read_all(skipping.log, skipping.target, 1)] == [b"one", b"two"]
    assert f"refuses a record for '{skipping.target}' of key b'k'" in caplog.text


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_what_goes_to_a_topic_that_is_gone_is_left_out_under_the_policy_skip(make: Make, guarantee: str) -> None:
    scene = make(guarantee, "skip")
    admin = scene.log.admin()
    with running(scene.app, scene.config(), scene.log) as worker:
        eventually(lambda: admin.topics().keys() >= {f"{scene.app.application_id}-counts-changelog"}, "it starts")
        admin.delete_topics([scene.target])
        eventually(lambda: scene.target not in admin.topics(), "the topic is gone")
        scene.send(b"one", b"two")
        eventually(lambda: scene.offset() == 1, "the input is processed and committed")
    admin.close()
    assert worker.failures.skipped == 2


def test_what_waits_for_a_topic_that_is_deleted_is_left_out_and_the_rest_is_written(tmp_path: Path) -> None:
    told: list[tuple[str, bytes | None]] = []
    with closing(EmbeddedLog(tmp_path / "log.db")) as log, closing(log.producer()) as producer:
        create(log, {"stays": 1, "goes": 1})
        producer.leave_out(["goes"], lambda topic, key, _: told.append((topic, key)))
        for topic in ("stays", "goes"):
            for key in (b"a", b"b"):
                producer.produce(topic, key, b"v", timestamp_ms=1)
        with closing(log.admin()) as admin:
            admin.delete_topics(["goes"])
        assert producer.flush() == {TopicPartition("stays", 0): 1}
        assert told == [("goes", b"a"), ("goes", b"b")]
        with closing(log.admin()) as admin:
            admin.delete_topics(["stays"])
        producer.produce("stays", b"c", b"v", timestamp_ms=1)
        with pytest.raises(DoesNotExistError):
            producer.flush()
