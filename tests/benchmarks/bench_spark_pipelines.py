"""Pipelines: how soon a micro-batch can be queried, how many rows per second, how soon a driver is up.

Latency: 1,000 rows are written to the embedded log; from then until all of their effect is answered at READ_COMMITTED,
with driver, worker (commits every 100 ms) and server as processes of their own. At most 500 ms in the median; where the
time goes is printed as the pipeline says it.

Throughput: a million rows through a pipeline into its result topic, in turns with the same query that writes Parquet
(the sums through foreachBatch, since Parquet takes no updates). At least half as fast.

Start: from the start of `stateline pipeline` until it says that it waits for input, with the class archive that its
first start has recorded. At most 4 s.

A large micro-batch: ten million rows in one, of a driver with a heap of 1 GB.

A static table of 100,000 keys, the newest of a million records: what a micro-batch of 1,000 rows that are joined with
it takes while 100 of its records are new each time, and while it stays as it is; on the embedded log and on Kafka.

State (`spark_state.py`): what a row costs beside many open sessions and waiting rows, at most half more than beside
few.

`bench_spark_pipelines.py NAME …` takes some of: latency, throughput, large, static, start, open.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pyspark
import spark_state
from cores import family, family_cpu_s, memory_mb
from figures import at_least, at_most
from processes import free_port, process, until
from pyspark.sql import DataFrame, SparkSession
from spark_app import add, app, double

from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.log import Log, NewTopic
from stateline.log.embedded import EmbeddedLog
from stateline.log.kafka import KafkaLog
from stateline.spark.drivers.several_pipelines import run_pipelines
from stateline.spark.session import close_session, record_class_archive, spark_session
from stateline.spark.sources.frames import topic_frames
from support import REPOSITORY
from support.kafka.kafka_broker import KafkaBroker
from support.kafka.maven import jars

WARMING, ROUNDS, BATCH, KEYS = 25, 50, 1_000, 1_000
ROWS, THROUGHPUT_ROUNDS = 1_000_000, 3
LARGE_ROWS = 10_000_000
STATIC_KEYS, STATIC_RECORDS, STATIC_CHANGES = 100_000, 1_000_000, 100
STATIC_WARMING, STATIC_ROUNDS = 5, 11  # what was there before took half a minute for each
STARTS = 5
_RECORD = "record"


def settings(state_dir: Path, **others: object) -> dict[str, object]:
    """What all processes are given."""
    given = {"bootstrap.servers": f"embedded:{state_dir / 'log.db'}", "state.dir": state_dir}
    return given | {name.replace("__", "."): value for name, value in others.items()}


def command(name: str, *arguments: str, **given: object) -> list[str]:
    """A command of Stateline's with these settings."""
    pairs = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    return ["-m", "stateline", name, "spark_app:app", *arguments, *pairs]


def new_log(state_dir: Path) -> EmbeddedLog:
    """A log with the topic of the rows."""
    log = EmbeddedLog(state_dir / "log.db")
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic("made", 4)])
    return log


def write(log: Log, rows: int) -> None:
    """So many rows, each key in turn."""
    with closing(log.producer()) as producer:
        for number in range(rows):
            key = f"key-{number % KEYS:06d}"
            producer.produce("made", key.encode(), json.dumps({"k": key, "n": number}).encode(), timestamp_ms=number)
        producer.flush()


# ---- latency


# The JVM ends by itself when the process has gone.
_SESSION = """
import os, sys
from stateline.config.loading import load_config
from stateline.spark.session import spark_session
spark_session(load_config("bench", environment={}, overrides=[f"state.dir={sys.argv[1]}"]))
os._exit(0)
"""


def latency(state_dir: Path, archive: Path) -> None:
    """Measure and print how soon a micro-batch of sums is answered."""
    given = settings(state_dir, server__port=free_port(), commit__interval__ms=100)
    (state_dir / ".cache").mkdir()
    shutil.copy(archive, state_dir / ".cache")
    pipeline = given | {"spark.trigger.interval.ms": 0}
    with ExitStack() as stack:
        log = stack.enter_context(closing(new_log(state_dir)))
        stack.enter_context(process(command("pipeline", "add", **pipeline), state_dir / "pipeline.txt"))
        stack.enter_context(process(command("worker", **given), state_dir / "worker.txt"))
        stack.enter_context(process(command("serve", **given), state_dir / "server.txt"))
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{given['server.port']}", timeout=30))
        found, steps = [], list[dict[str, int]]()
        for number in range(WARMING + ROUNDS):
            write(log, BATCH)
            written = time.monotonic()
            until(lambda number=number: is_answered(client, number + 1), "the rows are answered", 0.002)  # type: ignore[misc]  # a lambda's defaults have no types
            if number >= WARMING:  # what comes first is not compiled yet
                found.append((time.monotonic() - written) * 1000)
                steps.append(json.loads(status_file(state_dir).read_text())["steps_ms"])
        shares = {step: statistics.median(each.get(step, 0) for each in steps) for step in steps[-1]}
        print("  " + ", ".join(f"{step} {share:.0f} ms" for step, share in shares.items()))
        at_most("1,000 rows, from written to answered, median", statistics.median(found), 500, " ms")


def is_answered(client: httpx.Client, rounds: int) -> bool:
    """Whether the last key's sum has so many rounds."""
    try:
        answer = client.get(f"/v1/stores/sums/keys/key-{KEYS - 1:06d}?isolation_level=read_committed")
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and bool(answer.json()["value"]["records"] == rounds)


def status_file(state_dir: Path, name: str = "add") -> Path:
    """Where the pipeline says how far it is."""
    return state_dir / app.application_id / "pipelines" / name / "status.json"


# ---- throughput


def throughput(state_dir: Path, archive: Path) -> None:
    """Measure and print rows per second of both pipelines, against Parquet."""
    with closing(new_log(state_dir)) as log, session(state_dir, archive) as spark:
        write(log, ROWS)
        for name, function, mode in (("double", double, "append"), ("add", add, "update")):
            ratios = []
            for number in range(THROUGHPUT_ROUNDS + 1):
                place = state_dir / f"{name}-{number}"
                ours = timed(lambda: into_topic(spark, log, name, place))  # noqa: B023  # it is called at once
                theirs = timed(lambda: into_parquet(spark, log, function, mode, place))  # noqa: B023
                if number:
                    ratios.append(theirs / ours)
                    print(f"  {name}: {ROWS / ours:,.0f} rows/s; as Parquet {ROWS / theirs:,.0f} rows/s", flush=True)
            at_least(f"rows per second of `{name}` ÷ the same query writing Parquet", statistics.median(ratios), 0.5)


def into_topic(spark: SparkSession, log: EmbeddedLog, name: str, place: Path) -> None:
    """Run the pipeline over all rows, from nothing."""
    with closing(log.admin()) as admin:
        written = "doubles" if name == "double" else "sums"
        admin.delete_topics([written, f"{app.application_id}-{name}-epochs"])
    run_pipelines(app, [name], configured(place), log, available_now=True, session=spark, progress=lambda _: None)


def into_parquet(
    spark: SparkSession, log: EmbeddedLog, function: Callable[[DataFrame], DataFrame], mode: str, place: Path
) -> None:
    """The same function over the same frames, in micro-batches of the same size, into files."""
    frames = topic_frames(spark, configured(place), log)
    result = function(frames.stream(app.topology().pipelines["add"].reads[0]))
    writer = result.writeStream.outputMode(mode).option("checkpointLocation", str(place / "parquet-checkpoint"))
    if mode == "append":
        writer = writer.format("parquet").option("path", str(place / "parquet"))
    else:
        writer = writer.foreachBatch(lambda frame, number: frame.write.parquet(str(place / f"parquet-{number}")))
    writer.trigger(availableNow=True).start().awaitTermination()


def configured(place: Path) -> Config:
    """A configuration with files of its own."""
    return load_config(app.application_id, environment={}, overrides=[f"state.dir={place}"])


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


@contextmanager
def session(state_dir: Path, archive: Path) -> Iterator[SparkSession]:
    """Spark, until the block ends."""
    made = spark_session(configured(state_dir), class_archive=archive)
    try:
        yield made
    finally:
        close_session(made)


# ---- one micro-batch that is larger than the driver's memory


def large(state_dir: Path, archive: Path) -> None:
    """Measure and print what ten million rows in one micro-batch take, of a driver with a heap of 1 GB."""
    (state_dir / ".cache").mkdir()
    shutil.copy(archive, state_dir / ".cache")
    given = settings(state_dir, pipeline__max__offsets__per__trigger=LARGE_ROWS)
    given |= {"spark.driver.memory": "1g", "spark.driver.maxResultSize": "64m"}
    with closing(new_log(state_dir)) as log:
        write(log, LARGE_ROWS)
        begin = time.monotonic()
        with process(command("pipeline", "double", **given), state_dir / "pipeline.txt") as driver:
            peaks = dict[int, float]()
            while not (status := said(state_dir, "double")).get("rows_out"):
                if driver.poll() is not None:
                    raise RuntimeError((state_dir / "pipeline.txt").read_text()[-2000:])
                for pid in family(driver.pid):
                    with suppress(OSError):  # gone
                        peaks[pid] = memory_mb(pid)
                time.sleep(0.5)
            took_s = time.monotonic() - begin
        assert (status["rows_out"], status["batch_id"]) == (LARGE_ROWS, 0)
        shown = ", ".join(f"{peak:.0f}" for peak in peaks.values())
        print(f"  steps: {status['steps_ms']}; MB at the peak of driver, JVM and Python workers: {shown}")
        print(f"{LARGE_ROWS:,} rows in one micro-batch: {took_s:.0f} s, {LARGE_ROWS / took_s:,.0f} rows/s", flush=True)
        at_most("the Python driver's memory at its peak", peaks[driver.pid], 600, " MB")


def said(state_dir: Path, name: str) -> dict[str, Any]:
    """What the pipeline says of itself; nothing before it has begun."""
    try:
        return dict(json.loads(status_file(state_dir, name).read_text()))
    except FileNotFoundError:
        return {}


# ---- a static table


def static(state_dir: Path, archive: Path) -> None:
    """Measure and print how long micro-batches take that look up rows in a table of 100,000 keys."""
    with closing(new_log(state_dir)) as log:
        looked_up("embedded log", state_dir, archive, log, settings(state_dir))


def static_on_kafka(state_dir: Path, archive: Path) -> None:
    """The same, of a table on Kafka."""
    connector = jars(REPOSITORY / "service" / "stateline" / "spark" / "pom.xml", "spark-kafka-4.2.0")
    with KafkaBroker() as broker, closing(KafkaLog(broker.bootstrap_servers)) as log:
        with closing(log.admin()) as admin:
            admin.create_topics([NewTopic("made", 4)])
        given = {"bootstrap.servers": broker.bootstrap_servers, "state.dir": state_dir, "spark.jars": connector}
        looked_up("Kafka", state_dir, archive, log, given)


def looked_up(where: str, state_dir: Path, archive: Path, log: Log, given: dict[str, object]) -> None:
    """The table changes before each of some micro-batches, and before none of others."""
    (state_dir / ".cache").mkdir()
    shutil.copy(archive, state_dir / ".cache")
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic("known", 4), NewTopic("found", 4)])
    name_keys(log, STATIC_RECORDS)
    driver = command("pipeline", "look_up", **given | {"spark.trigger.interval.ms": 0})
    with process(driver, state_dir / "pipeline.txt") as running:
        (first,), _ = batches(log, state_dir, running.pid, 1, 0)
        batches(log, state_dir, running.pid, STATIC_WARMING, 1)
        same, of_same_s = batches(log, state_dir, running.pid, STATIC_ROUNDS, 0)
        changing, of_changing_s = batches(log, state_dir, running.pid, STATIC_ROUNDS, STATIC_CHANGES)
    took = f"processor time {of_same_s:.2f} s, with changes {of_changing_s:.2f} s"
    print(f"  {where}: the first micro-batch {first} ms; of the others {took}")
    what = f"1,000 rows joined with 100,000 keys, {where}, median"
    at_most(what, statistics.median(same), 500, " ms")
    at_most(f"{what}, of which {STATIC_CHANGES} have changed", statistics.median(changing), 500, " ms")


def batches(log: Log, state_dir: Path, pid: int, rounds: int, changes: int) -> tuple[list[int], float]:
    """So many times, after so many records of the table: how long the micro-batch took in ms that read the last of
    1,000 rows (on Kafka there may be two for them), and the driver's processor seconds for all of them."""
    found, begun_s = [], family_cpu_s(pid)
    for _ in range(rounds):
        name_keys(log, changes)
        before = said(state_dir, "look_up").get("totals", {}).get("rows_in", 0)
        write(log, BATCH)
        until(lambda: said(state_dir, "look_up").get("totals", {}).get("rows_in", 0) >= before + BATCH, "rows", 0.002)  # noqa: B023  # it is called at once
        found.append(said(state_dir, "look_up")["duration_ms"])
    return found, (family_cpu_s(pid) - begun_s) / rounds


def name_keys(log: Log, records: int) -> None:
    """So many records of the table, each key in turn."""
    with closing(log.producer()) as producer:
        for number in range(records):
            key, value = f"key-{number % STATIC_KEYS:06d}", json.dumps({"name": f"name {number}"})
            producer.produce("known", key.encode(), value.encode(), timestamp_ms=number)
        producer.flush()


# ---- start


def start(state_dir: Path, archive: Path) -> None:
    """Measure and print how soon a process has the session of a driver, without a class archive and with one."""
    without = [seconds_to_start(state_dir / f"cold-{number}", None) for number in range(STARTS)]
    found = [seconds_to_start(state_dir / f"warm-{number}", archive) for number in range(STARTS)]
    print(f"  without a class archive {statistics.median(without):.1f} s")
    at_most("start of a driver's session, the process's start included", statistics.median(found), 4, " s")


def seconds_to_start(place: Path, archive: Path | None) -> float:
    """From the start of a process to its end, which comes as soon as its session is there."""
    (place / ".cache").mkdir(parents=True)
    if archive is not None:
        shutil.copy(archive, place / ".cache")
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", _SESSION, str(place)], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


# ---- state


def of_state(measure: Callable[[SparkSession, Path], None]) -> Callable[[Path, Path], None]:
    """A part that needs a session alone."""

    def part(state_dir: Path, archive: Path) -> None:
        with session(state_dir, archive) as spark:
            measure(spark, state_dir)

    return part


def main() -> None:
    if sys.argv[1:2] == [_RECORD]:
        record_class_archive(load_config("bench"), Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        archive = place / f"{spark_archive_name()}"
        subprocess.run([sys.executable, __file__, _RECORD, str(archive)], check=True)
        for name in sys.argv[1:] or list(PARTS):
            (place / name).mkdir()
            PARTS[name](place / name, archive)


def spark_archive_name() -> str:
    """As a driver looks for it in its state directory."""
    return f"spark-{pyspark.__version__}.jsa"


PARTS: dict[str, Callable[[Path, Path], None]] = {
    "latency": latency,
    "throughput": throughput,
    "large": large,
    "static": static,
    "static_on_kafka": static_on_kafka,
    "start": start,
}
PARTS |= {name: of_state(measure) for name, measure in spark_state.PARTS.items()}

if __name__ == "__main__":
    main()
