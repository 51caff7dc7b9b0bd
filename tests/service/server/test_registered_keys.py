"""Keys with a schema of a registry, asked for over HTTP."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from stateline import App, InputRecord, StoreView, TumblingWindows, serdes, stores
from stateline.log.embedded import EmbeddedLog
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import Here, served_here

HOUR = timedelta(hours=1)
KEY: Any = {"type": "record", "name": "Person", "namespace": "shop", "fields": [{"name": "id", "type": "string"}]}
ANN = {"id": "ann"}


def application() -> App:
    """A table, a count by keys as they come, windows of it, and what a function puts."""
    app = App("people", config={"schema.registry.url": f"mock://{uuid4()}"})
    people = app.topic("in", key=serdes.avro(KEY), value=serdes.string)
    app.table(people, store="table")
    app.stream(people).group_by_key().count("counts")
    app.stream(people).group_by_key().windowed_by(TumblingWindows(HOUR)).count("windows")
    put = app.store(stores.key_value("put", key=serdes.avro(KEY), value=serdes.string))

    @app.process(people, stores=[put])
    def keep(record: InputRecord, put: StoreView) -> None:
        put.put(record.key, record.value)

    return app


def test_who_asks_for_a_key_registers_no_schema_and_is_told_where_there_is_none(tmp_path: Path) -> None:
    app = application()
    config = configured(app, tmp_path, **{"bootstrap.servers": f"embedded:{tmp_path / 'log.db'}"})
    source = app.topology().topics_read()["in"]
    registry = source.key.binding.registry.client()  # type: ignore[attr-defined]
    settings = (f"bootstrap.servers=embedded:{tmp_path / 'log.db'}",)
    with closing(EmbeddedLog(tmp_path / "log.db")) as log:
        create(log, {"in": 1})
        with running(app, config, log), served_here(tmp_path, *settings, app=app) as here:
            for store in ("table", "counts", "put", "windows"):
                status, body = asked(here, store)
                assert status == 422, body
                assert "is not registered for keys of" in body["detail"]
                assert "nothing was written with it yet" in body["detail"]
            assert registry.get_subjects() == []
            produce(log, "in", [(source.key.serialize(ANN), b"Bern", 1_000)])
            bound = {"position_bound": json.dumps({"in": {"0": 0}}), "wait_ms": "60000"}
            assert asked(here, "counts", **bound)[1]["value"] == 1
            before = registry.get_subjects()
            assert sorted(before) == ["in-key", "people-put-changelog-key"]
            for store in ("table", "counts", "put"):
                status, body = asked(here, store, **bound)
                assert (status, body["key"]) == (200, ANN)
                assert posted(here, store, ANN)["found"]
                assert not posted(here, store, {"id": "bob"})["found"]
            snapshot = here.client.post("/v1/snapshots", json={"stores": ["counts"]}).json()["id"]
            rows = here.client.post(f"/v1/snapshots/{snapshot}/stores/counts/partitions/0", json={"keys": [ANN]})
            assert rows.status_code == 200, rows.text
            status, body = asked(here, "windows", **bound)
            assert (status, [each["value"] for each in body["entries"]]) == (200, [1])
            assert registry.get_subjects() == before


@pytest.mark.parametrize("how", ["key", "body", "range"])
def test_while_a_registry_thinks_others_are_answered(how: str, tmp_path: Path) -> None:
    app = application()
    log_settings = {"bootstrap.servers": f"embedded:{tmp_path / 'log.db'}"}
    config = configured(app, tmp_path, **log_settings)
    with socket.create_server(("127.0.0.1", 0)) as registry, closing(EmbeddedLog(tmp_path / "log.db")) as log:
        create(log, {"in": 1})
        with (
            running(app, config, log),
            served_here(tmp_path, *(f"{n}={v}" for n, v in log_settings.items()), app=app) as here,
        ):
            wait_until(lambda: here.client.get("/readyz").status_code == 200)
            url = f"http://127.0.0.1:{registry.getsockname()[1]}"
            app.configure(config.model_copy(update={"schema_registry": {"url": url, "timeout": "3600"}}))
            ask = {
                "key": lambda: asked(here, "counts")[0],
                "body": lambda: posted(here, "counts", ANN)["status"],
                "range": lambda: (
                    here.client.get("/v1/stores/counts/range", params={"lower": json.dumps(ANN)}).status_code
                ),
            }
            with ThreadPoolExecutor() as threads:
                answer = threads.submit(ask[how])
                connection, _ = registry.accept()
                try:
                    assert httpx.get(f"http://127.0.0.1:{here.port}/healthz").status_code == 200
                finally:
                    registry.close()
                    connection.close()
                assert answer.result() == 500  # STORE_EXCEPTION


def asked(here: Here, store: str, **parameters: str) -> tuple[int, Any]:
    of_key = "/windows" if store == "windows" else ""
    answer = here.client.get(f"/v1/stores/{store}/keys/{json.dumps(ANN)}{of_key}", params=parameters)
    return answer.status_code, answer.json()


def posted(here: Here, store: str, key: Any) -> Any:
    return here.client.post(f"/v1/stores/{store}/query", json={"type": "key", "key": key}).json()
