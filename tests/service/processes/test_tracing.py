"""Spans of a server and a worker, as an OTLP collector gets them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stateline.config import extras
from stateline.config.loading import load_config
from stateline.embedded import EmbeddedLog
from stateline.processes.tracing import carrier, links_of, span, traced
from stateline_store import ConfigurationError
from support.processes.ports import free_port
from support.processes.running_worker import eventually
from support.run.patience import HANGING_S

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
APP = """
from stateline import App, serdes
app = App("traced")
app.table(app.topic("orders", key=serdes.string, value=serdes.string), store="orders")
"""


class Collector:
    """An OTLP collector at a free port."""

    def __init__(self) -> None:
        self.spans: dict[str, list[Span]] = {}  # by service.instance.id
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers.get("content-encoding", "identity") == "identity"
                collector.take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert named["service.name"] == "traced"
            found = self.spans.setdefault(named["service.instance.id"], [])
            found += [each for scope in resource.scope_spans for each in scope.spans]

    def named(self, name: str) -> list[Span]:
        return [each for spans in list(self.spans.values()) for each in spans if each.name == name]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    threading.Thread(target=found.server.serve_forever, daemon=True).start()
    yield found
    found.server.shutdown()
    found.server.server_close()


@contextmanager
def running(directory: Path, collector: Collector) -> Iterator[str]:
    """`stateline run`; its URL."""
    port = free_port()
    settings = [f"server.port={port}", "tracing.exporter=otlp", "node.name=one", "commit.interval.ms=50"]
    command = [sys.executable, "-m", "stateline", "run", "traced:app", *(x for s in settings for x in ("--set", s))]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=directory, env={**os.environ, **collector.environment}, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: is_ready(url), "the application is ready")
        yield url
    finally:
        process.terminate()
        assert process.wait(HANGING_S) == 0, (directory / "log").read_text()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_request_and_its_read_and_a_records_slice_and_commit_are_traces(tmp_path: Path, collector: Collector) -> None:
    (tmp_path / "traced.py").write_text(APP)
    create = [sys.executable, "-m", "stateline", "topics", "traced:app", "--create", "--partitions", "1"]
    subprocess.run(create, cwd=tmp_path, check=True, capture_output=True)
    with EmbeddedLog(tmp_path / ".stateline/log.db") as log, log.producer() as producer:
        producer.produce("orders", b"a", b"1", timestamp_ms=1, headers=[("traceparent", TRACEPARENT.encode())])
    with running(tmp_path, collector) as url:
        sent = {"traceparent": TRACEPARENT}
        key = f"{url}/v1/stores/orders/keys/a?isolation_level=read_committed"
        eventually(lambda: httpx.get(key).status_code == 200, "the record is committed")
        # What answers before a server does may still take a connection, for a moment.
        eventually(lambda: httpx.get(key, headers=sent).headers.get("x-request-id") == TRACE, "the server answers")
    requests = [s for s in collector.named("GET /v1/stores/{store}/keys/{key}") if s.trace_id.hex() == TRACE]
    (request,) = requests
    assert request.parent_span_id.hex() == PARENT
    told = {each.key: each.value for each in request.attributes}
    assert told["http.response.status_code"].int_value == 200
    assert told["stateline.request_id"].string_value == TRACE
    (read,) = [each for each in collector.named("read orders") if each.trace_id == request.trace_id]
    assert read.parent_span_id == request.span_id
    (slice_,) = collector.named("process 0_0")
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in slice_.links] == [(TRACE, PARENT)]
    (work,) = [each for each in collector.named("work") if each.trace_id == slice_.trace_id]
    (commit,) = [each for each in collector.named("commit") if each.trace_id == slice_.trace_id]
    assert slice_.parent_span_id == commit.parent_span_id == work.span_id
    assert work.start_time_unix_nano <= slice_.start_time_unix_nano < commit.start_time_unix_nano
    assert commit.end_time_unix_nano <= work.end_time_unix_nano
    assert set(collector.spans) == {"one/server", "one/worker-0"}


def test_a_span_of_another_process_goes_on_from_what_was_carried(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in collector.environment.items():
        monkeypatch.setenv(name, value)
    with traced(load_config("traced", overrides=["tracing.exporter=otlp", "node.name=one"]), "server"):
        with span("ask two", {}, "CLIENT"):
            carried = carrier()
        with span("answer one", {"store": "orders"}, "SERVER", carried):
            pass
        assert len(links_of([TRACEPARENT, TRACEPARENT, "garbage"])) == 1
    (asked,), (answered,) = collector.named("ask two"), collector.named("answer one")
    assert (answered.trace_id, answered.parent_span_id) == (asked.trace_id, asked.span_id)
    assert carrier() == {}, "nothing is carried once tracing has ended"


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_is_installed", lambda package: False)
    config = load_config("traced", overrides=["tracing.exporter=otlp"])
    with pytest.raises(ConfigurationError, match=r"pip install 'stateline\[otel\]'"), traced(config, "server"):
        pass
