"""Backups in a directory: what they write, and a fresh node that begins with one against one that reads changelogs.

One node, exactly once; the store counts records per key. Its input and its changelog are written as a worker would have
left them (`bench_recovery.fill`).

- size: a second backup, after a hundredth of the keys were counted again: ≤ 0.1 of the bytes of the first, and at most
  two written files for each that has changed.
- commits: how long commits take while 10,000 records a second come, with a backup every five seconds and without, in
  turns; the medians of the rounds' 99th percentiles: ≤ 1.05.
- export: `stateline export` of a backup to Parquet and to a Delta table: ≤ 2 s of processor time per million rows, the
  start of the process included. So again, to the table, after a hundredth of the rows has changed.
- start: a worker without stores, until all tasks run, with the backup and without it, in turns: ≥ 5 × as fast.

`bench_backup.py RECORDS` takes another number of records; each has a key of its own. `bench_backup.py RECORDS commits`
measures commits alone.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bench_recovery import PARTITIONS, Feeder, Input, fill
from bench_standbys import APPLICATION, SESSION_MS, Node
from figures import at_least, at_most, latencies, percentile
from processes import free_port, until

from stateline.log.kafka import KafkaLog
from support.kafka.kafka_broker import KafkaBroker

RECORDS, ROUNDS = 5_000_000, 2
INTERVAL_MS, COMMIT_ROUNDS, MEASURED_S = 5_000, 5, 20
_HERE = Path(__file__).parent


def backed_up(node: Node) -> dict[str, Any]:
    """Run `stateline backup now` on this node; what it says."""
    began_s = time.perf_counter()
    line = [sys.executable, *node.command("now")]
    line.insert(line.index("now"), "backup")
    done = subprocess.run([*line, "--json"], cwd=_HERE, capture_output=True, text=True, check=True)
    (told,) = json.loads(done.stdout)
    took_s, written, size = time.perf_counter() - began_s, told["written bytes"], told["bytes"]
    print(f"  backup: {took_s:.1f} s, {written / 1e6:,.1f} of {size / 1e6:,.1f} MB written", flush=True)
    return dict(told)


def commit_times(node: Node, log: KafkaLog, input_: Input, records: int) -> None:
    """Measure the commits of this node's worker while records come, with a server that backs up and one that does
    not."""
    timed, location = Path(os.environ["TIMED_COMMITS"]), node.settings.pop("backup.location")
    found: dict[str, list[float]] = {"with": [], "without": []}
    with Feeder(log, input_, records // PARTITIONS):
        for _ in range(COMMIT_ROUNDS):
            for name, seen in found.items():
                backups = {"backup.location": location, "backup.interval.ms": INTERVAL_MS} if name == "with" else {}
                node.settings |= backups
                with node.serving(free_port()):
                    time.sleep(INTERVAL_MS / 1000 + 3)  # it is up, and has made its first backup
                    begin_s = time.time()
                    time.sleep(MEASURED_S)
                for setting in backups:
                    del node.settings[setting]
                lines = (line.split() for line in timed.read_text().splitlines())
                times = [float(took_s) for at_s, took_s in lines if float(at_s) >= begin_s]
                seen.append(percentile(times, 0.99))
                print(f"  commits {name} backups: {latencies(times)}", flush=True)
    node.settings["backup.location"] = location
    with_s, without_s = (statistics.median(seen) for seen in found.values())
    at_most("p99 of commits with a backup every 5 s ÷ without", with_s / without_s, 1.05)


def exported(location: Path, to: Path, form: str) -> float:
    """Run `stateline export` of the newest backup; its processor time in seconds per million rows of the store."""
    words = ["export", "counts", "--backup", location, "--to", to, "--format", form, "--json"]
    began_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "stateline", *map(str, words)], capture_output=True, text=True, check=True
    )
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    worked_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (told,) = json.loads(done.stdout)
    print(
        f"  export, {form}: {took_s:.1f} s, {worked_s:.1f} s of processors, {told['outcome']}: {told['rows']:,} rows, "
        f"at most {after.ru_maxrss / 1024:,.0f} MB of a process so far",
        flush=True,
    )
    return worked_s


def start_s(servers: str, root: Path, name: str, location: Path | None) -> float:
    """How long a node without stores takes from its worker's start until all tasks run."""
    node = Node(servers, root, name, 0)
    if location is not None:
        node.settings["backup.location"] = location
    began_s = time.perf_counter()
    with node.working():
        until(lambda: node.tasks() == ["running"] * PARTITIONS, "it runs all tasks", 0.02)
        took_s, worked_s = time.perf_counter() - began_s, node.cpu_s()
    said = "begins with the backup" in node.output.read_text()
    if said != (location is not None):
        raise RuntimeError(f"{name} began {'with' if said else 'without'} a backup")
    print(f"  {name}: {took_s:.2f} s, of which the worker works {worked_s:.2f} s", flush=True)
    shutil.rmtree(node.directory)
    time.sleep(SESSION_MS / 1000 + 2)
    return took_s


def main(arguments: Sequence[str]) -> None:
    records, only_commits = int(arguments[0]) if arguments else RECORDS, "commits" in arguments
    input_ = Input(records)
    os.environ["RECOVERY_JOB"] = "store"
    found: dict[str, list[float]] = {"with": [], "without": []}
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        log = stack.enter_context(closing(KafkaLog(broker.bootstrap_servers)))
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fill(log, records, input_)
        location = root / "backups"
        location.mkdir()
        os.environ["TIMED_COMMITS"] = str(root / "commits.txt")
        one = Node(broker.bootstrap_servers, root, "one", 0)
        one.settings |= {"backup.location": location, "backup.max.bytes.per.second": -1}
        one.program = (str(_HERE / "timed_worker.py"),)
        with one.working():
            until(lambda: one.tasks() == ["running"] * PARTITIONS, "the node has restored all", 0.1)
            if only_commits:
                commit_times(one, log, input_, records)
                return
            whole = backed_up(one)
            costs_s = {form: exported(location, root / form, form) for form in ("parquet", "delta")}
            with closing(log.producer()) as producer:
                for partition, keys in enumerate(input_.keys):
                    some = keys[::100]
                    producer.produce_all("events", partition, [(key, b"v", 1_700_000_000_000) for key in some])
                producer.flush()
            time.sleep(5)  # they are counted and committed within a second
            changed = backed_up(one)
            costs_s["delta, after 1 % of the rows changed"] = exported(location, root / "delta", "delta")
            commit_times(one, log, input_, records)
        time.sleep(SESSION_MS / 1000 + 2)
        for number in range(ROUNDS):
            for name, seen in found.items():
                place = location if name == "with" else None
                seen.append(start_s(broker.bootstrap_servers, root, f"{name}-{number}", place))
    with_s, without_s = (statistics.median(seen) for seen in found.values())
    print(f"  {records:,} records of {APPLICATION}: {with_s:.2f} s, from the changelog {without_s:.2f} s", flush=True)
    at_most(
        "bytes of a backup after 1 % of the rows changed ÷ the first", changed["written bytes"] / whole["bytes"], 0.1
    )
    for name, cost_s in costs_s.items():
        at_most(f"processor time of an export per million rows, {name}", cost_s / records * 1e6, 2, " s")
    at_least("a start with a backup ÷ from the changelog alone, speed", without_s / with_s, 5, " ×")


if __name__ == "__main__":
    main(sys.argv[1:])
