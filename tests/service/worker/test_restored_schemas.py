"""A table that is restored by code, or from a registry, that cannot read what was written before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, InputRecord, StoreView, serdes, stores
from stateline_store import RecordError

FIELDS = [{"name": "city", "type": "string"}]
MORE = [*FIELDS, {"name": "amount", "type": "long"}]  # without a default: nothing says what it was


def application(fields: list[dict[str, str]]) -> App:
    app = App("evolved", config={"schema.registry.url": "mock://restored"})
    schema: Any = {"type": "record", "name": "Sale", "namespace": "shop", "fields": fields}
    topic = app.topic("in", key=serdes.string, value=serdes.avro(schema))
    app.table(topic, store="kept")
    seen = app.store(stores.key_value("seen", key=serdes.string, value=serdes.string))

    @app.process(topic, stores=[seen])
    def see(record: InputRecord, seen: StoreView) -> None:
        seen.put(record.key, "yes")

    return app


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_rows_that_cannot_be_read_any_more_end_the_worker_or_are_said(
    policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(application(FIELDS), tmp_path, partitions=1, settings={"deserialization.exception.handler": policy})
    value = scene.app.topology().topics_read()["in"].value
    scene.send("in", [(f"k{n}", value.serialize({"city": "Bath"}), 1_000 + n) for n in range(5)])
    scene.work_off()
    assert len(scene.rows("kept")) == 5
    shutil.rmtree(scene.config.state_dir)
    scene.app = application(MORE)
    scene.send("in", [("k5", None, 5_000)])
    if policy == "fail":
        with pytest.raises(RecordError, match="Reading failed on in-0 offset 0"):
            scene.work_off()
        scene.app = application(FIELDS)
        scene.work_off()
        assert len(scene.rows("kept")) == 5
    else:
        scene.work_off()
        assert "5 records of in-0 were left out of table kept: they cannot be read" in caplog.text
