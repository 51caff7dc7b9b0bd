"""`stateline topics --count`: records, where offsets also count markers and what was aborted."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from uuid import uuid4

from stateline.cli.topics.listing import topics
from stateline.config.loading import load_config
from stateline.dsl.app import App
from stateline.log import Log
from support.apps.counting_app import PARTITIONS, counting
from support.processes.running_worker import create, eventually, read_all, running

TRANSACTIONS = 5


def listed(app: App, bootstrap: str, directory: Path) -> dict[str, dict[str, int]]:
    settings = [f"state.dir={directory}", f"bootstrap.servers={bootstrap}"]
    config = load_config(app.application_id, environment={}, overrides=settings)
    text = topics(app, config, create=False, partitions=None, count=True, as_json=True)
    return {row["topic"]: row for row in json.loads(text)}


def write(log: Log, topic: str) -> int:
    """Transactions of one record each, every other one aborted; how many records are committed."""
    with closing(log.producer(f"{topic}-p")) as producer:
        producer.init_transactions()
        for n in range(TRANSACTIONS * 2):
            producer.begin_transaction()
            producer.produce(topic, b"k", b"v", timestamp_ms=n)
            producer.flush()
            if n % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return TRANSACTIONS


def test_records_are_counted_without_markers_of_transactions_and_without_what_was_aborted(
    log: Log, bootstrap: str, tmp_path: Path
) -> None:
    app = counting(f"app-{uuid4().hex[:8]}")
    name = app.application_id
    sent_on, changelog = f"{name}-values-repartition", f"{name}-counts-changelog"
    create(log, {f"{name}-in": PARTITIONS, f"{name}-alone": 1, sent_on: PARTITIONS})
    settings = ["commit.interval.ms=20", "processing.guarantee=exactly_once_v2", f"bootstrap.servers={bootstrap}"]
    config = load_config(name, environment={}, overrides=[f"state.dir={tmp_path}", *settings])
    written = write(log, f"{name}-in")
    with running(app, config, log):
        eventually(lambda: len(read_all(log, sent_on, PARTITIONS)) == written, "all is counted")
    found = listed(app, bootstrap, tmp_path)
    assert found[f"{name}-in"]["records"] == written
    assert found[sent_on]["records"] == written
    assert found[changelog]["records"] == len(read_all(log, changelog, PARTITIONS)) > 0
    assert found[f"{name}-alone"]["records"] == 0
    assert all(row["offsets"] >= row["records"] for row in found.values())
    if not bootstrap.startswith("embedded"):
        assert found[sent_on]["offsets"] > written  # the markers: what this test is about
