"""`stateline run` whose worker may not run: partitions were added to its topic. The server answers the last state."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import httpx
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from stateline import serdes
from stateline.log.kafka import KafkaLog
from support.kafka.shared_broker import SharedBroker
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.processes.running_worker import create, produce
from support.run.length import long_or_short
from support.run.patience import HANGING_S

CODE = """
from stateline import App, serdes, stores

app = App("{topic}-app", config={{"commit.interval.ms": 100}})
numbers = app.topic("{topic}", key=serdes.string, value=serdes.int64)
kept = app.store(stores.key_value("kept", key=serdes.string, value=serdes.int64))


@app.process(numbers, stores=[kept])
def keep(number, kept):
    kept.put(number.key, number.value)
"""


def test_a_run_answers_the_last_state_when_its_topic_has_grown_and_after_a_restart(
    kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    topic, port = f"in-{uuid4().hex[:8]}", free_port()
    (tmp_path / "grown.py").write_text(CODE.format(topic=topic))
    servers = kafka_broker.bootstrap_servers
    command = ["run", "grown:app", "--set", f"server.port={port}", "--set", f"bootstrap.servers={servers}"]
    command += ["--set", f"state.dir={tmp_path / 'state'}", "--set", "default.state.isolation.level=read_committed"]
    command += ["--set", "consumer.topic.metadata.refresh.interval.ms=300"]

    def answered(path: str) -> httpx.Response:
        with suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=HANGING_S)
        return httpx.Response(503, json={})

    def run(until: Callable[[], bool], then: Callable[[], None], said: str) -> None:
        with (tmp_path / said).open("wb") as output:
            process = Forked(command, cwd=tmp_path, env=dict(os.environ), output=output.fileno())
        try:
            wait_until(lambda: process.poll() is not None or until())
            then()
            wait_until(lambda: process.poll() is not None or "stopped" in answered("/readyz").json())
            wait_until(lambda: process.poll() is not None or "cannot run" in (tmp_path / said).read_text())
            answer = answered("/v1/stores/kept/keys/a")
            assert (answer.status_code, answer.json()["value"]) == (200, 1)
            assert f"Topic {topic} has 2 partitions, and had 1 when kept began" in answer.json()["stopped"]
        finally:
            process.terminate()
            code = process.wait(HANGING_S)
        text = (tmp_path / said).read_text()
        assert code == 0, text
        assert text.count("worker-0 cannot run") == 1, text
        assert "starts again" not in text
        assert "run `stateline reset grown:app` or set a new application.id" in text

    def grow() -> None:
        client = AdminClient({"bootstrap.servers": servers})
        client.create_partitions([NewPartitions(topic, 2)])[topic].result()

    with closing(KafkaLog(servers)) as log:
        create(log, {topic: 1})
        produce(log, topic, [(b"a", serdes.int64.serialize(1), 1)])
        run(lambda: answered("/v1/stores/kept/keys/a").status_code == 200, grow, "first")
        if long_or_short(True, False):  # test_partitions_added.py has what a worker finds at its start
            run(lambda: True, lambda: None, "second")
