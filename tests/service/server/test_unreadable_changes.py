"""The changes of a table whose topic has records that today's schema cannot read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stateline import App, serdes
from stateline.log.embedded import EmbeddedLog
from support.processes.change_scene import reading
from support.processes.running_worker import configured, create, eventually, produce, running
from support.processes.served_here import Here, served_here

FIELDS: list[dict[str, Any]] = [{"name": "city", "type": "string"}]
MORE = [*FIELDS, {"name": "amount", "type": "long"}]  # without a default: nothing says what it was


def application(url: str, fields: list[dict[str, Any]]) -> App:
    app = App("evolved", config={"schema.registry.url": url})
    schema: Any = {"type": "record", "name": "Sale", "namespace": "shop", "fields": fields}
    app.table("in", key=serdes.string, value=serdes.avro(schema), store="kept")
    return app


@contextmanager
def served(tmp_path: Path, policy: str) -> Iterator[Here]:
    """Its log has two records of the old schema, and then one of the schema that is served."""
    url, place = f"mock://{uuid4()}", f"embedded:{tmp_path / 'log.db'}"
    with closing(EmbeddedLog(tmp_path / "log.db")) as log:
        create(log, {"in": 1})
        app = application(url, FIELDS)
        config = configured(app, tmp_path, **{"bootstrap.servers": place})
        write, write_more = (application(url, each).topology().topics_read()["in"].value for each in (FIELDS, MORE))
        produce(log, "in", [(key, write.serialize({"city": "Bath"}), 1_000) for key in (b"a", b"b")])
        produce(log, "in", [(b"c", write_more.serialize({"city": "Bath", "amount": 7}), 2_000)])
        with running(app, config, log), served_here(tmp_path, f"bootstrap.servers={place}", app=app) as here:
            bound = {"position_bound": json.dumps({"in": {"0": 2}}), "wait_ms": "60000"}
            assert here.client.get("/v1/stores/kept/keys/c", params=bound).status_code == 200
        settings = (f"bootstrap.servers={place}", f"deserialization.exception.handler={policy}")
        with served_here(tmp_path, *settings, app=application(url, MORE)) as here:
            yield here


def test_they_end_the_feed_where_they_would_end_a_worker(tmp_path: Path) -> None:
    with served(tmp_path, "fail") as here:
        with reading(here.client, "kept", from_="earliest") as reader:
            first = next(event for event in reader if event.name)
        assert (first.name, first.data["reason"]) == ("end", "STORE_EXCEPTION")
        assert "Reading failed on in-0 offset 0" in first.data["detail"]
        assert "amount" in first.data["detail"]
        answer = here.client.get("/v1/stores/kept/changes/rows", params=span(here))
        assert (answer.status_code, answer.json()["reason"]) == (500, "STORE_EXCEPTION")
        assert "Reading failed on in-0 offset 0" in answer.json()["detail"]


def test_they_are_left_out_where_workers_leave_them_out_and_counted_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(tmp_path, "skip") as here, reading(here.client, "kept", from_="earliest") as reader:
        assert [event.data["key"] for event in reader.take(1)] == ["c"]
        eventually(lambda: "left out of the changes of kept: they cannot be read" in caplog.text, "it is said")


def span(here: Here) -> dict[str, str]:
    told = here.client.get("/v1/stores/kept/changes/offsets").json()
    return {"partition": "0", "begin": "0", "end": str(told["end"]["0"]), "topic_id": told["topic_id"]}
