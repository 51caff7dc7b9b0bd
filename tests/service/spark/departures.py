"""The application that the pipeline tests run, its input, and what must come out of it (the oracle)."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from stateline import serdes
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.dsl.app import App
from stateline.log import Log, NewTopic, Record
from stateline.model.pipeline import epochs_topic
from stateline_store import TopicPartition
from support.run.length import long_or_short

PARTITIONS = 2
AIRPORTS = {"JFK": "John F Kennedy Intl", "LGA": "La Guardia", "EWR": "Newark Liberty Intl"}
FIRST_DEPARTURE_MS = 1_356_998_400_000  # 2013-01-01T00:00:00Z

app = App("flights")
departures = app.topic(
    "departures", key=serdes.string, value=serdes.json, schema="origin string, at timestamp, delay double"
)
airports = app.topic("airports", key=serdes.string, value=serdes.json, schema="name string")


@app.pipeline(reads=departures, static=[airports], writes="hourly", key=("airport", "hour"), timestamp="hour")
def hourly(departures: DataFrame, airports: DataFrame) -> DataFrame:
    """Departures and total delay per airport's name and hour."""
    named = departures.join(airports.select(F.col("_key").alias("origin"), "name"), "origin")
    counted = named.groupBy(F.window("at", "1 hour"), "name").agg(
        F.count("*").alias("flights"), F.sum("delay").alias("delay")
    )
    return counted.select(F.col("name").alias("airport"), F.col("window.start").alias("hour"), "flights", "delay")


def settings(state_dir: str, bootstrap_servers: str = "embedded", spark_jars: str | None = None) -> list[str]:
    """Settings of a small Spark: micro-batches follow each other at once, the JVM compiles little, Spark nothing."""
    given = [
        f"state.dir={state_dir}",
        f"bootstrap.servers={bootstrap_servers}",
        "spark.trigger.interval.ms=0",
        "spark.driver.memory=512m",
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
        *long_or_short([], ["spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN"]),
    ]
    return given if spark_jars is None else [*given, f"spark.jars={spark_jars}"]


Departure = tuple[str, int, float]  # origin, at in milliseconds, delay


def random_departures(count: int, seed: int) -> list[Departure]:
    """Departures a few minutes apart, in order of time."""
    chance = random.Random(seed)
    at, made = FIRST_DEPARTURE_MS, []
    for _ in range(count):
        at += chance.randrange(0, 240) * 1000
        made.append((chance.choice(sorted(AIRPORTS)), at, float(chance.randrange(-10, 120))))
    return made


def create_topics(log: Log) -> None:
    """Every topic of the application, and the airports."""
    with closing(log.admin()) as admin:
        admin.create_topics(
            [NewTopic("departures", PARTITIONS), NewTopic("airports", 1), NewTopic("hourly", PARTITIONS)]
        )
    with closing(log.producer()) as producer:
        producer.produce("airports", b"JFK", b'{"name": "an older name"}', timestamp_ms=1)
        producer.produce("airports", b"ORD", b'{"name": "closed"}', timestamp_ms=1)
        for code, name in AIRPORTS.items():
            producer.produce("airports", code.encode(), json.dumps({"name": name}).encode(), timestamp_ms=2)
        producer.produce("airports", b"ORD", None, timestamp_ms=3)
        producer.flush()


def load(log: Log, made: Iterable[Departure]) -> None:
    """Write these departures, in an arrangement over partitions that follows from their keys."""
    with closing(log.producer()) as producer:
        for number, (origin, at, delay) in enumerate(made):
            value = {"origin": origin, "at": iso(at), "delay": delay}
            key = f"{origin}{number}".encode()
            producer.produce("departures", key, json.dumps(value).encode(), timestamp_ms=at)
        producer.flush()


def iso(at_ms: int) -> str:
    """ISO 8601 in UTC, whole seconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def hour_of(at_ms: int) -> int:
    """The beginning of the hour, in milliseconds."""
    return at_ms - at_ms % 3_600_000


Totals = dict[tuple[str, int], tuple[int, float]]  # (airport's name, hour) → (flights, delay)


def totals(made: Iterable[Departure]) -> Totals:
    """The final results, in plain Python."""
    found: Totals = {}
    for origin, at, delay in made:
        key = (AIRPORTS[origin], hour_of(at))
        flights, total = found.get(key, (0, 0.0))
        found[key] = (flights + 1, total + delay)
    return found


Update = tuple[int, str, str]  # timestamp_ms, key, value as canonical JSON


def update(key: tuple[str, int], result: tuple[int, float]) -> Update:
    """The record that this result must become."""
    name, hour = key
    value = {"airport": name, "hour": iso(hour), "flights": result[0], "delay": result[1]}
    return hour, f"{name}|{iso(hour)}", json.dumps(value, sort_keys=True)


def expected_updates(log: Log) -> Counter[Update]:
    """Every update that the micro-batches named by the markers must have made, and how often (once)."""
    records = {(r.partition, r.offset): r for r in read_all(log, "departures")}
    found: Counter[Update] = Counter()
    state: Totals = {}
    begin: dict[str, int] = {}
    for marker in markers(log):
        offsets: dict[str, int] = json.loads(marker.end_offsets[0] or "{}").get("departures", {})
        end = {partition: offset for partition, offset in offsets.items() if partition != "id"}
        changed = set()
        for partition, until in end.items():
            for offset in range(begin.get(partition, 0), until):
                if (record := records.get((int(partition), offset))) is not None:
                    changed.add(_apply(state, record))
        begin = end
        found.update(update(key, state[key]) for key in changed)
    return found


def _apply(state: Totals, record: Record) -> tuple[str, int]:
    assert record.value is not None
    value = json.loads(record.value)
    at = int(datetime.fromisoformat(value["at"]).timestamp() * 1000)
    key = (AIRPORTS[value["origin"]], hour_of(at))
    flights, delay = state.get(key, (0, 0.0))
    state[key] = (flights + 1, delay + value["delay"])
    return key


def written_updates(log: Log) -> Counter[Update]:
    """Every record of the result topic that a read_committed consumer sees, and how often."""
    return Counter(
        (r.timestamp_ms, (r.key or b"").decode(), json.dumps(json.loads(r.value or b""), sort_keys=True))
        for r in read_all(log, "hourly")
    )


def counted(log: Log) -> int:
    """How many departures the newest results count."""
    return sum(int(json.loads(value)["flights"]) for _, _, value in newest_updates(log))


def newest_updates(log: Log) -> set[Update]:
    """The newest record of each key of the result topic."""
    newest = {r.key: r for r in read_all(log, "hourly")}
    return {
        (r.timestamp_ms, (r.key or b"").decode(), json.dumps(json.loads(r.value or b""), sort_keys=True))
        for r in newest.values()
    }


def markers(log: Log) -> list[EpochMarker]:
    """Every committed marker of the pipeline, in order."""
    topic = epochs_topic(app.application_id, "hourly")
    return [EpochMarker.decode(r.value) for r in read_all(log, topic) if r.value is not None]


def read_all(log: Log, topic: str) -> Iterator[Record]:
    """Every committed record of a topic, partition by partition."""
    with closing(log.admin()) as admin:
        partitions = [TopicPartition(topic, n) for n in range(admin.topics()[topic].partitions)]
        ends = {partition: admin.watermarks(partition)[1] for partition in partitions}
    for partition in partitions:
        with closing(log.consumer()) as consumer:
            consumer.assign({partition: 0})
            while (consumer.next_offset(partition) or 0) < ends[partition]:
                yield from consumer.poll(10_000, 0.1)
