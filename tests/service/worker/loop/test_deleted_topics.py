"""A source topic is deleted while a worker reads it: the worker ends and says which, and nothing committed is lost."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.faults import Watched
from stateline import serdes, stores
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.log import Log, embedded_consumer
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline.worker.loop.worker import Worker
from stateline_store import DoesNotExistError, TopologyError
from support.processes.running_worker import Stores, configured, create, produce


def counting(name: str) -> App:
    app = App(name)
    source = app.topic(f"{name}-in", key=serdes.string, value=serdes.string)
    counts = app.store(stores.key_value("counts", key=serdes.string, value=serdes.json))

    @app.process(source, stores=[counts])
    def count(record: InputRecord, counts: StoreView) -> None:
        counts.put(record.key, (counts.get(record.key) or 0) + 1)

    return app


# A broker's answer may be of a moment ago: librdkafka believes it after this long, after 30 s by default.
SOON = {"consumer__topic__metadata__propagation__max__ms": 500, "consumer__topic__metadata__refresh__interval__ms": 500}


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_the_worker_ends_names_the_topic_and_keeps_its_stores(
    log: Log, bootstrap: str, tmp_path: Path, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_consumer, "_DELETED_PATIENCE_S", 0.5)
    name = f"app-{uuid4().hex[:8]}"
    topic, app = f"{name}-in", counting(name)
    create(log, {topic: 1})
    produce(log, topic, [(b"a", b"1", 1), (b"b", b"2", 2)])
    where: dict[str, Any] = {"bootstrap__servers": bootstrap, "processing__guarantee": guarantee, **SOON}
    config = configured(app, tmp_path / "state", **where)
    with (
        closing(Stores(app, config, tmp_path / "scratch")) as found,
        closing(configured_log(config)) as impatient,
        closing(log.admin()) as admin,
    ):
        left = [topic]

        def deleted() -> bool:
            if left and found.offset("counts", topic, 0) == 1:
                admin.delete_topics([left.pop()])
            return False

        with pytest.raises(DoesNotExistError, match=topic):
            Watched(app, config, impatient, instance="worker-0").reach(deleted)
        assert found.rows("counts", 1) == {b"a": b"1", b"b": b"1"}
        with pytest.raises(TopologyError, match=f"Missing source topic: {topic}"):
            Worker(app, config, impatient, instance="worker-0").run()
        assert found.rows("counts", 1) == {b"a": b"1", b"b": b"1"}
