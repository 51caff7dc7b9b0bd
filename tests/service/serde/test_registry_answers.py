"""What the answers of a Schema Registry mean: a server that gives each request the status of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from service.serde.shop import ORDER, of_topic
from stateline import App, serdes
from stateline.serde.schema_registry import SchemaRegistry
from stateline.testing import TestDriver
from stateline_store import ConfigurationError, InvalidArgumentError, SchemaRegistryUnavailableError, StatelineError

RECORD = b"\x00\x00\x00\x00\x01abc"


class Answering(ThreadingHTTPServer):
    """A registry whose every answer is this status."""

    status = 503

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def settings(self) -> dict[str, object]:
        return {"url": f"http://127.0.0.1:{self.server_port}", "max.retries": 0}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Answering)
        body = b'{"error_code": 1, "message": "so it is"}'
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Answering]:
    with Answering() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("statuses", "meaning", "message"),
    [
        ((408, 425, 429, 500, 502, 503), SchemaRegistryUnavailableError, "the Schema Registry answers"),
        ((401, 403), ConfigurationError, r"set schema\.registry\.basic\.auth\.user\.info"),
        ((404, 409, 422), InvalidArgumentError, "so it is"),
    ],
    ids=["again", "credentials", "refused"],
)
def test_a_status_says_whether_to_try_again_to_set_credentials_or_that_the_record_is_wrong(
    answering: Answering, statuses: tuple[int, ...], meaning: type[StatelineError], message: str
) -> None:
    serde = of_topic(serdes.avro(ORDER), SchemaRegistry(answering.settings))
    for answering.status in statuses:
        with pytest.raises(meaning, match=message):
            serde.deserialize(RECORD)


def test_no_policy_leaves_out_a_record_whose_schema_a_failing_registry_does_not_give(answering: Answering) -> None:
    app = App("app")
    app.table(app.topic("orders", key=serdes.string, value=serdes.avro(ORDER)), store="newest")
    settings = {f"schema.registry.{name}": str(value) for name, value in answering.settings.items()}
    policy = {"deserialization.exception.handler": "skip"}
    with TestDriver(app, config=settings | policy) as driver, pytest.raises(SchemaRegistryUnavailableError):
        driver.pipe_bytes("orders", b"a", RECORD)


def test_a_serde_asks_the_registry_that_was_configured_last(answering: Answering) -> None:
    at = SchemaRegistry(answering.settings)
    serde = of_topic(serdes.avro('"string"'), at)
    with pytest.raises(SchemaRegistryUnavailableError):
        serde.deserialize(RECORD)
    at.configure({"url": "mock://first"})
    data = serde.serialize("a")
    assert serde.deserialize(data) == "a"
    at.configure({"url": "mock://second"})
    assert serde.serialize("a") == data
    assert at.client().get_subjects() == ["orders-value"]


def test_a_registry_that_hangs_is_waited_for_five_seconds_unless_another_time_is_set() -> None:
    url = {"url": "http://127.0.0.1:9"}
    assert [
        SchemaRegistry(settings).client()._rest_client.session.timeout.read for settings in (url, {**url, "timeout": 2})
    ] == [5, 2]
