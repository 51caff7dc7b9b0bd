"""Records that cannot be read, sent to the dead-letter topic with the rows of their micro-batch."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from service.spark import departures as d
from stateline import serdes
from stateline.config.loading import load_config
from stateline.deployment.pipelines.status import PipelineStatus
from stateline.dsl.app import App
from stateline.log import Log
from stateline.log.embedded import EmbeddedLog
from stateline.log.kafka import KafkaLog
from stateline.spark.drivers.several_pipelines import run_pipelines
from stateline.spark.operators.ktable import KTable
from stateline_store import TopologyError
from support.kafka.shared_broker import SharedBroker
from support.log.log_bench import Bench
from support.run.length import long_only

GOOD, BAD = b'{"origin": "JFK", "delay": 1.5}', b"no JSON"
HEADERS = [("trace", b"7"), ("empty", None)]
BEFORE_1970 = [-1, -62_135_596_800_000]


def application(id: str) -> App:
    """A pipeline of a stream with a schema, one of a table."""
    app = App(f"notes-{id}")
    lines = app.topic(f"lines-{id}", key=serdes.string, value=serdes.json, schema="origin string, delay double")
    numbers = app.topic(f"numbers-{id}", key=serdes.int64, value=serdes.int32)

    @app.pipeline(reads=lines, writes=f"noted-{id}", key="origin", output_mode="append", result="stream")
    def noted(rows: DataFrame) -> DataFrame:
        return rows

    @app.pipeline(reads=[], tables=[numbers], writes=f"counted-{id}", key="_key")
    def counted(numbers: KTable) -> DataFrame:
        return numbers.to_stream()

    return app


def write(log: Log, topic: str, *records: tuple[bytes | None, bytes | None], at: int = 1234) -> None:
    with closing(log.producer()) as producer:
        for key, value in records:
            producer.produce(topic, key, value, timestamp_ms=at, partition=0, headers=HEADERS, is_copy=True)
        producer.flush()


def run(log: Log, bench: Bench, session: SparkSession, state: Path, pipeline: str) -> list[PipelineStatus]:
    settings = [
        *d.settings(str(state), getattr(log, "bootstrap_servers", "embedded")),
        "deserialization.exception.handler=dead-letter",
        f"errors.dead.letter.queue.topic.name=dead-{bench.id}",
    ]
    app = application(bench.id)
    config = load_config(app.application_id, environment={}, overrides=settings)
    seen: list[PipelineStatus] = []
    run_pipelines(app, [pipeline], config, log, available_now=True, session=session, progress=seen.append)
    return seen


def letters(bench: Bench) -> list[dict[str, Any]]:
    """Every dead letter; the headers of the record as they are, those added as text."""
    found = []
    for record in d.read_all(bench.log, f"dead-{bench.id}"):
        own = [header for header in record.headers if not header[0].startswith("__")]
        added = {name.rpartition(".")[2]: (value or b"").decode() for name, value in record.headers if name[:2] == "__"}
        found.append(added | {"record": (record.key, record.value, record.timestamp_ms), "own": own})
    return found


def check_dead_letters(bench: Bench, session: SparkSession, state: Path) -> None:
    log = bench.log
    lines = bench.topic(name="lines")
    bench.topic(name="numbers")
    with pytest.raises(TopologyError, match=r"writes to the topic 'dead-.*create it"):
        run(log, bench, session, state, "noted")
    bench.topic(name="dead")
    write(log, lines, (b"a", GOOD), (b"b", BAD), (b"\xff", GOOD), (None, None))
    reports = run(log, bench, session, state, "noted")
    assert sum(report.dead_lettered for report in reports) == 2
    commits = state / f"notes-{bench.id}" / "pipelines" / "noted" / "checkpoint" / "commits"
    newest = max(commits.iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    write(log, lines, (b"c", GOOD), (b"d", b""))
    for at in BEFORE_1970:
        write(log, lines, (b"e", GOOD), at=at)
    run(log, bench, session, state, "noted")  # the first micro-batch once more, then the rest
    found, early = (letters(bench)[:3], letters(bench)[3:])
    assert [letter["record"] for letter in found] == [
        (b"b", BAD, 1234),
        (b"\xff", GOOD, 1234),
        (b"d", b"", 1234),
    ]
    assert [letter["record"][:2] for letter in early] == [(b"e", GOOD)] * 2
    assert [int(letter["timestamp"]) for letter in early] == BEFORE_1970
    assert all(abs(letter["record"][2] - time.time_ns() // 1_000_000) < 3_600_000 for letter in early)
    assert f"timestamp of record {lines}-0 offset 6 is before 1970: -1" in early[0]["message"]
    assert [letter["own"] for letter in found] == [HEADERS] * 3
    places = [(letter["topic"], letter["partition"], letter["offset"]) for letter in found]
    assert places[:2] == [(lines, "0", "1"), (lines, "0", "2")]
    assert f"value of record {lines}-0 offset 1 is not JSON of the topic's schema: no JSON" in found[0]["message"]
    assert "key of record" in found[1]["message"]
    assert found[0]["exception"] == "InvalidArgumentError"
    written = [json.loads(record.value or b"") for record in d.read_all(log, f"noted-{bench.id}")]
    assert written == [{"origin": "JFK", "delay": 1.5}] * 2


def test_each_record_that_cannot_be_read_is_sent_once_with_its_headers(session: SparkSession, tmp_path: Path) -> None:
    with closing(Bench(EmbeddedLog(tmp_path / "log.db"))) as bench:
        check_dead_letters(bench, session, tmp_path)


@long_only("the embedded log gives the same letters, and test_pipeline.py reads from a broker")
def test_so_it_is_on_a_broker(
    session: SparkSession, tmp_path: Path, kafka_broker: SharedBroker, connector_jars: Path | None
) -> None:
    if connector_jars is None:
        pytest.skip("Spark's Kafka connector cannot be fetched here")
    with closing(Bench(KafkaLog(kafka_broker.bootstrap_servers))) as bench:
        check_dead_letters(bench, session, tmp_path)


def test_a_table_sends_what_has_no_key_or_another_length(session: SparkSession, tmp_path: Path) -> None:
    with closing(Bench(EmbeddedLog(tmp_path / "log.db"))) as bench:
        for name in ("lines", "numbers", "dead"):
            bench.topic(name=name)
        one, two = (serdes.int64.serialize(number) for number in (1, 2))
        good = serdes.int32.serialize(5)
        write(bench.log, f"numbers-{bench.id}", (one, good), (None, good), (two, b"12345"), (b"x", None), (two, None))
        run(bench.log, bench, session, tmp_path, "counted")
        messages = [letter["message"] for letter in letters(bench)]
        said = ["has no key", "it has 5 bytes", "it has 1 bytes"]
        assert [text in message for text, message in zip(said, messages, strict=True)] == [True] * 3
        counted = {
            r.key: r.value and json.loads(r.value)["value"] for r in d.read_all(bench.log, f"counted-{bench.id}")
        }
        assert counted == {b"1": 5, b"2": None}
