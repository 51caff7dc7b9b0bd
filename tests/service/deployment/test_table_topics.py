"""Topics of tables: how they are made, and what is said of those that lose rows."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from stateline import serdes
from stateline.cli.topics.listing import topics
from stateline.config.loading import load_config
from stateline.deployment.topics import ensure_topics, report_other_settings
from stateline.dsl.app import App
from stateline.log import Log, NewTopic, open_log
from stateline.spark.drivers.topics import warn_of_tables
from stateline.spark.sink.checkpoint_folder import LocalFolder
from stateline_store import TopicPartition
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, eventually, produce, running

HOUR, DAY_MS = timedelta(hours=1), 86_400_000
COMPACTED = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0"}
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
VERSIONS = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(3_600_000 + DAY_MS)}


def app_with_every_table(run: str) -> App:
    """An application whose topics are named by what they are read as."""
    app = App(f"app-{run}")
    for name in ("table", "table-of-stream", "table-of-operators", "versioned", "ktable", "global", "events"):
        app.topic(f"{name}-{run}", key=serdes.string, value=serdes.json)
    out = app.topic(f"out-{run}", key=serdes.string, value=serdes.json)
    for name in ("table", "table-of-stream", "table-of-operators", "result"):
        app.table(f"{name}-{run}", key=serdes.string, value=serdes.json)
    app.ktable(app.table(f"ktable-{run}")).to_stream().to(out)
    app.table(f"versioned-{run}", versioned=HOUR)
    app.table(f"old-result-{run}", key=serdes.string, value=serdes.json, versioned=HOUR)
    app.global_table(f"global-{run}")
    app.stream(f"table-of-operators-{run}").to(out)
    app.process(f"table-of-stream-{run}", name="see")(lambda record: None)
    app.pipeline(
        reads=f"events-{run}",
        tables=[f"changes-{run}"],
        static=[f"static-{run}"],
        writes=f"result-{run}",
        branches=[f"old-result-{run}"],
        key="k",
        name="pipe",
    )(lambda *frames: frames[0])
    app.table(f"rows-{run}", key=serdes.string, value=serdes.json)
    app.pipeline(reads=f"events-{run}", writes=f"rows-{run}", key="k", name="stream", result="stream")(lambda f: f)
    return app


WANTED = {
    **dict.fromkeys(("table", "ktable", "global", "changes", "static", "result"), COMPACTED),
    **dict.fromkeys(("versioned", "old-result"), VERSIONS),
    **dict.fromkeys(("table-of-stream", "table-of-operators", "rows"), KEPT),
}


def test_tables_topics_are_made_compacted_and_kept_for_ever_where_they_are_streams_as_well(
    log: Log, bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = uuid4().hex[:8]
    app = app_with_every_table(run)
    config = load_config(app.application_id, environment={}, overrides=[f"bootstrap.servers={bootstrap}"])
    with caplog.at_level(logging.INFO), closing(log.admin()) as admin:
        topics(app, config, create=True, partitions=1, as_json=False)
        ensure_topics(app.topology(), admin)
        found = admin.topic_settings([f"{name}-{run}" for name in WANTED])
        untold = admin.topic_settings([f"events-{run}"])[f"events-{run}"]
        report_other_settings(app.topology(), admin)
    for name, wanted in WANTED.items():
        settings = found[f"{name}-{run}"]
        assert (name, {each: settings[each] for each in wanted}) == (name, wanted)
    assert untold["cleanup.policy"] == "delete"  # and how long is the broker's
    said = [r.getMessage() for r in caplog.records if "keeps all records for ever" in r.getMessage()]
    assert [text.split()[1] for text in said] == [f"{n}-{run}" for n in ("table-of-stream", "table-of-operators")]
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert [text for text in told if run in text] == []  # of these topics: a slow broker is waited for aloud


def warnings(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and topic in r.getMessage()]


def test_a_worker_and_a_driver_say_once_which_tables_lose_rows_and_how_that_is_mended(
    kafka_broker: SharedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = uuid4().hex[:8]
    table, both, windows, static = (f"{name}-{run}" for name in ("prices", "seen", "hours", "airports"))
    app = App(f"app-{run}")
    app.table(table, key=serdes.string, value=serdes.string)
    app.table(both, key=serdes.string, value=serdes.string)
    app.process(both, name="see")(lambda record: None)
    app.table(windows, key=serdes.string, value=serdes.string, windowed=HOUR, retention=HOUR)
    app.pipeline(reads=both, static=[static], writes=f"out-{run}", key="k", name="pipe")(lambda *frames: frames[0])
    with (
        closing(open_log(kafka_broker.bootstrap_servers, tmp_path)) as log,
        closing(log.admin()) as admin,
    ):
        week = {"retention.ms": "604800000"}  # a broker's default
        admin.create_topics(NewTopic(name, 2 if name == table else 1, week) for name in (table, both, windows, static))
        now_ms = time.time_ns() // 1_000_000  # the broker deletes what is older than a week
        produce(log, table, [(b"%d" % n, b"1", now_ms + n) for n in range(20)])
        produce(log, static, [(b"a", b"1", now_ms)])
        cut = {TopicPartition(table, 0): 3, TopicPartition(static, 0): 1}
        admin.delete_records(cut)
        with running(app, configured(app, tmp_path / "state"), log) as worker:
            eventually(lambda: bool(worker.tasks.running), "it runs")
        lost, deletes = sorted(warnings(caplog, table), key=lambda text: "deletes old" in text)
        assert f"{table}-0 begins at offset 3" in lost
        assert f"{table}-1" not in lost
        assert "cleanup.policy=delete, retention.ms=604800000" in deletes
        assert f"--entity-name {table} --add-config cleanup.policy=compact" in deletes
        (deletes,) = warnings(caplog, both)
        assert "--add-config cleanup.policy=delete,retention.ms=-1,retention.bytes=-1" in deletes
        assert warnings(caplog, windows) == []  # they forget sooner than their topic does
        caplog.clear()
        warn_of_tables(app.topology(), admin, [(app.topology().pipelines["pipe"], LocalFolder(tmp_path))])
        deletes, lost = warnings(caplog, static)
        assert f"--entity-name {static} --add-config cleanup.policy=compact" in deletes
        assert f"{static}-0 begins at offset 1" in lost
        assert warnings(caplog, table) == []


def test_the_embedded_log_deletes_nothing_and_nothing_is_said_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("app")
    app.table("prices", key=serdes.string, value=serdes.string)
    with closing(open_log("embedded", tmp_path)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("prices", 1)])
        report_other_settings(app.topology(), admin)
    assert caplog.text == ""
