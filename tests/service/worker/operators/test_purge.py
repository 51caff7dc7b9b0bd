"""What has been processed leaves the repartition topics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, serdes
from stateline.log import Log, open_log
from stateline.log.embedded import EmbeddedAdmin
from stateline.worker.commit.purge import purged_topics
from stateline_store import LogUnavailableError, TopicPartition
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running

GUARANTEES = ["at_least_once", "exactly_once_v2"]


def regrouped(name: str = "app") -> App:
    app = App(name)
    events = app.stream(f"{name}-in", key=serdes.string, value=serdes.string)
    events.group_by(lambda key, value: value, name="by-value").count("counts")
    return app


def kept(log: Log, topic: str) -> Callable[[], int]:
    return lambda: len(read_all(log, topic, 1))


def end(log: Log, topic: str) -> int:
    with closing(log.admin()) as admin:
        return admin.log_end(TopicPartition(topic, 0))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_repartition_topic_loses_what_is_committed_and_counts_go_on(
    bootstrap: str, tmp_path: Path, guarantee: str
) -> None:
    name = f"purged-{uuid4().hex[:8]}"
    app = regrouped(name)
    config = configured(app, tmp_path / "state", processing__guarantee=guarantee, repartition__purge__interval__ms=1)
    topic = f"{name}-by-value-repartition"
    seen = Stores(app, config, tmp_path / "looked-at")
    with closing(open_log(bootstrap, tmp_path)) as log:
        create(log, {f"{name}-in": 1})
        for n in (1, 2):
            with running(app, config, log):
                produce(log, f"{name}-in", [(b"k", b"v", 1), (b"k", b"w", 2)] * 50)
                wanted = {value: serdes.int64.serialize(50 * n) for value in (b"v", b"w")}
                eventually(lambda wanted=wanted: seen.rows("counts", 1) == wanted, "all is counted")  # type: ignore[misc]
                assert end(log, topic) >= 100 * n
                # A purge follows a commit, and of the last records' commit it is not due if it came within the 1 ms.
                produce(log, f"{name}-in", [(b"k", None, 3)])
                eventually(lambda: kept(log, topic)() <= 1, "what was counted is deleted")
            assert len(read_all(log, f"{name}-in", 1)) == 101 * n
        seen.close()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_start_after_a_purge_misses_nothing(tmp_path: Path, guarantee: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(regrouped(), tmp_path, partitions=1, settings={"processing.guarantee": guarantee})
    purged = TopicPartition("app-by-value-repartition", 0)
    for n in (b"1", b"2"):
        scene.send("app-in", [("k", n, 1)])
        with running(scene.app, scene.config, scene.log):
            eventually(partial(lambda value: value in scene.rows("counts"), n), "it is counted")
        with closing(scene.log.admin()) as admin:
            admin.delete_records(admin.committed("app", [purged]))
    assert "Input is lost" not in caplog.text


def test_only_topics_that_nothing_else_reads_are_purged() -> None:
    app = regrouped()
    app.table(app.repartition("table", key=serdes.string, value=serdes.string))
    piped = app.repartition("piped", key=serdes.string, value=serdes.json)
    app.stream(piped).to("out")
    app.pipeline(reads=piped, writes="result", key="k", name="pipe")(lambda frame: frame)
    assert purged_topics(app.topology()) == {"app-by-value-repartition"}


def test_a_worker_goes_on_while_records_cannot_be_deleted_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def away(self: EmbeddedAdmin, before: dict[TopicPartition, int]) -> None:
        tried.extend(before.values())
        raise LogUnavailableError("The broker is away.")

    monkeypatch.setattr(EmbeddedAdmin, "delete_records", away)
    scene = Scene(regrouped(), tmp_path, partitions=1, settings={"repartition.purge.interval.ms": 1})
    with caplog.at_level(logging.WARNING), running(scene.app, scene.config, scene.log):
        while len(tried) < 3:
            sent = len(tried)
            scene.send("app-in", [("k", "v", 1)])
            eventually(lambda sent=sent: len(tried) > sent, "it is tried again with each commit")  # type: ignore[misc]
    assert sum("Repartition topics keep" in message for message in caplog.messages) == 1
    assert tried == sorted(tried)


def test_the_interval_is_kept(tmp_path: Path) -> None:
    scene = Scene(regrouped(), tmp_path, partitions=1, settings={"repartition.purge.interval.ms": 3_600_000})
    scene.send("app-in", [("k", "v", 1)] * 10)
    scene.work_off()
    assert len(scene.written("app-by-value-repartition")) == 10
