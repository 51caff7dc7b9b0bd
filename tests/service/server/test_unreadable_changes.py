"""The changes of a table whose topic has records that today's schema cannot read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stateline import App, serdes
from stateline.log.embedded import EmbeddedLog
from support.processes.change_scene import reading
from support.processes.running_worker import configured, create, eventually, running
from support.processes.served_here import Here, served_here

FIELDS: list[dict[str, Any]] = [{"name": "city", "type": "string"}]
NEWER = {"city": "Bath", "amount": 7}
MORE = [*FIELDS, {"name": "amount", "type": "long"}]  # without a default: nothing says what it was


def application(url: str, fields: list[dict[str, Any]]) -> App:
    app = App("evolved", config={"schema.registry.url": url})
    schema: Any = {"type": "record", "name": "Sale", "namespace": "shop", "fields": fields}
    app.table("in", key=serdes.string, value=serdes.avro(schema), store="kept")
    return app


OLD_FIRST = [(0, "a", FIELDS), (0, "b", FIELDS), (0, "c", MORE)]


@contextmanager
def served(tmp_path: Path, policy: str, written: Sequence[tuple[int, str, Any]] = OLD_FIRST) -> Iterator[Here]:
    """Its log has what is `written`, each with its partition and fields: what has all fields is of the schema that is
    served, the others of an old one. Partition 0 has three records."""
    url, place = f"mock://{uuid4()}", f"embedded:{tmp_path / 'log.db'}"
    with closing(EmbeddedLog(tmp_path / "log.db")) as log:
        create(log, {"in": 1 + max(partition for partition, _, _ in written)})
        app = application(url, FIELDS)
        config = configured(app, tmp_path, **{"bootstrap.servers": place})
        write, write_more = (application(url, each).topology().topics_read()["in"].value for each in (FIELDS, MORE))
        values = {len(FIELDS): write.serialize({"city": "Bath"}), len(MORE): write_more.serialize(NEWER)}
        with closing(log.producer()) as producer:
            for partition, key, fields in written:
                producer.produce("in", key.encode(), values[len(fields)], timestamp_ms=1_000, partition=partition)
            producer.flush()
        with running(app, config, log), served_here(tmp_path, f"bootstrap.servers={place}", app=app) as here:
            bound = {"position_bound": json.dumps({"in": {"0": 2}}), "wait_ms": "60000"}
            assert here.client.get("/v1/stores/kept/range", params=bound).status_code == 200
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


def test_what_comes_before_one_and_what_other_partitions_have_is_given_before_the_feed_ends(tmp_path: Path) -> None:
    written = [(0, "a", MORE), (0, "b", FIELDS), (0, "c", MORE), (1, "d", MORE), (1, "e", MORE)]
    with served(tmp_path, "fail", written) as here, reading(here.client, "kept", from_="earliest") as reader:
        given = list[str]()
        for event in reader:
            if event.name == "end":
                break
            if event.name == "change":
                given.append(event.data["key"])
    assert sorted(given) == ["a", "d", "e"]
    assert "Reading failed on in-0 offset 1" in event.data["detail"]


def test_they_are_left_out_where_workers_leave_them_out_and_counted_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(tmp_path, "skip") as here, reading(here.client, "kept", from_="earliest") as reader:
        assert [event.data["key"] for event in reader.take(1)] == ["c"]
        eventually(lambda: "left out of the changes of kept: they cannot be read" in caplog.text, "it is said")


def span(here: Here) -> dict[str, str]:
    told = here.client.get("/v1/stores/kept/changes/offsets").json()
    return {"partition": "0", "begin": "0", "end": str(told["end"]["0"]), "topic_id": told["topic_id"]}
