"""A backup read into Spark without a server ÷ a snapshot of the same rows over HTTP, in turns: at least twice the rows
per second. Two tasks at a time read at least 1.3 × as fast as one.

A server and the owner of its stores (`scan_scene`) run beside Spark, first with one task at a time (`local[1]`), then
with two. Rows go to Spark's `noop` sink: JSON as text, the same JSON as a struct, and int64 in windows. The first round
is not counted: Java compiles, and the backup's files are fetched and opened.

Each rate has processor seconds for a million rows beside it: of the server, of the JVM, and of Spark's Python
processes. On a busy machine they are the better figure.

ROWS and ROUNDS change the rows of each store and the rounds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from bench_sql import orders
from cores import cpu_s, family_cpu_s
from figures import at_least
from pyspark.sql import DataFrame, SparkSession
from scan_scene import scene

from stateline.config.loading import load_config
from stateline.spark.session import close_session, spark_session

ROWS = int(os.environ.get("ROWS", "1_000_000"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
STRUCT = (
    "key string, value struct<city: string, amount: int, customer: string, note: string, paid: boolean>, "
    "timestamp timestamp"
)
READS: Mapping[str, tuple[str, str | None]] = {
    "JSON": ("orders", None),
    "struct": ("orders", STRUCT),
    "int64": ("counts", None),
}


class Read(NamedTuple):
    """A read of all rows: rows per second, and processor seconds per million rows."""

    rate: float
    server_s: float
    jvm_s: float
    python_s: float

    @property
    def worked_s(self) -> float:
        return self.server_s + self.jvm_s + self.python_s


def frames(spark: SparkSession, where: Mapping[str, str]) -> dict[str, DataFrame]:
    """A DataFrame of each type."""
    found = {}
    for name, (store, schema) in READS.items():
        reader = spark.read.format("stateline").options(store=store, **where)
        found[name] = (reader if schema is None else reader.schema(schema)).load()
    return found


def compare(spark: SparkSession, server_pid: int, ways: Mapping[str, Mapping[str, DataFrame]]) -> dict[str, Any]:
    """The reads of each type, by each way, without the first round, in which Java compiles."""
    jvm: Any = spark._jvm
    jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def worked() -> tuple[float, float, float]:
        java_s = cpu_s(jvm_pid)
        return family_cpu_s(server_pid), java_s, family_cpu_s(jvm_pid) - java_s

    def read(frame: DataFrame) -> Read:
        before, begin = worked(), time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        took_s, after = time.monotonic() - begin, worked()
        return Read(ROWS / took_s, *((b - a) / ROWS * 1e6 for a, b in zip(before, after, strict=True)))

    found: dict[str, dict[str, list[Read]]] = {name: {way: [] for way in ways} for name in READS}
    for name in READS:
        assert {each[name].count() for each in ways.values()} == {ROWS}
        for number in range(ROUNDS + 1):
            for way, each in ways.items():
                one = read(each[name])
                if number:
                    found[name][way].append(one)
    return found


def median(reads: Iterable[Read], figure: str) -> float:
    return float(statistics.median(map(attrgetter(figure), reads)))


def report(tasks: int, found: Mapping[str, Mapping[str, list[Read]]]) -> None:
    """Print."""
    for name, by_way in found.items():
        for way, reads in by_way.items():
            rate, server_s, jvm_s, python_s = (median(reads, figure) for figure in Read._fields)
            print(
                f"  {name}, {way}, {tasks} at a time: {rate:,.0f}/s; processor seconds per million rows: server "
                f"{server_s:.2f}, JVM {jvm_s:.2f}, Python {python_s:.2f}",
                flush=True,
            )
        pairs = list(zip(by_way["backup"], by_way["snapshot"], strict=True))
        rate = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)
        at_least(f"{name}, {tasks} at a time: rows per second of a backup ÷ of a snapshot over HTTP", rate, 2)
        worked = statistics.median(theirs.worked_s / ours.worked_s for ours, theirs in pairs)
        at_least(f"{name}, {tasks} at a time: processor time of a snapshot ÷ of a backup", worked, 2)


def main() -> None:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        location = root / "backups"
        stores = {store: ROWS for store, _ in READS.values()}
        port, pid = stack.enter_context(
            scene(root, stores, "spark_backup_app", orders(), {"server.processes": 2}, location)
        )
        rates: dict[str, list[float]] = {name: [] for name in READS}
        for tasks in (1, 2):
            given = [f"state.dir={root}", f"spark.master=local[{tasks}]"]
            spark = spark_session(load_config("bench", environment={}, overrides=given))
            try:
                spark.sparkContext.setLogLevel("ERROR")
                over_http = frames(spark, {"url": f"http://127.0.0.1:{port}", "max_age_s": "3600"})
                found = compare(spark, pid, {"snapshot": over_http, "backup": frames(spark, {"backup": str(location)})})
            finally:
                close_session(spark)
            report(tasks, found)
            for name, seen in rates.items():
                seen.append(median(found[name]["backup"], "rate"))
        for name, (one, two) in rates.items():
            at_least(f"{name}: a backup's rows per second, two tasks at a time ÷ one", two / one, 1.3)


if __name__ == "__main__":
    main()
