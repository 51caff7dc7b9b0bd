"""Ingest of a table from a real broker, commits every 100 ms, against the bare loop that only takes messages apart.

Target: at least 0.6 of the bare loop. Both read the same topic in turns, in processes of their own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from contextlib import closing

from ingest_app import app

from kafka_broker import KafkaBroker
from running_worker import configured
from stateline.log import NewTopic, open_log
from stateline_store import NotPresentError, StateDirectory, TopicPartition
from stateline_store.commit_notice import NoticeView

RECORDS = 2_000_000
KEYS = 200_000
PARTITIONS = 4
ROUNDS = 3

BARE_LOOP = """
import sys, time, json
from confluent_kafka import Consumer
servers, total = sys.argv[1], int(sys.argv[2])
consumer = Consumer({"bootstrap.servers": servers, "group.id": f"bare-{time.time_ns()}",
                     "auto.offset.reset": "earliest", "enable.auto.commit": False})
consumer.subscribe(["ingest"])
table, seen, started = {}, 0, None
while seen < total:
    messages = consumer.consume(10_000, 0.1)
    if messages and started is None:
        started = time.perf_counter()
    for message in messages:
        table[message.key()] = (message.value(), message.timestamp()[1], message.partition(), message.offset())
    seen += len(messages)
print(json.dumps(total / (time.perf_counter() - started)))
consumer.close()
"""


def load(broker: KafkaBroker) -> None:
    """Records of 12-byte keys and 100-byte values."""
    with closing(open_log(broker.bootstrap_servers, Path("."))) as log:
        with closing(log.admin()) as admin:
            admin.create_topics([NewTopic("ingest", PARTITIONS)])
        with closing(log.producer()) as producer:
            value = os.urandom(50).hex().encode()
            for number in range(RECORDS):
                producer.produce("ingest", b"key-%08d" % (number % KEYS), value, timestamp_ms=1_000 + number)
            producer.flush()


def bare_rate(broker: KafkaBroker) -> float:
    command = [sys.executable, "-c", BARE_LOOP, broker.bootstrap_servers, str(RECORDS)]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def table_rate(broker: KafkaBroker) -> float:
    """Records per second from the first committed one to the last."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            "bootstrap__servers": broker.bootstrap_servers,
            "commit__interval__ms": 100,
            "consumer__fetch__message__max__bytes": 4 << 20,
        }
        config = configured(app, Path(directory), **settings)
        command = [sys.executable, "-m", "stateline", "worker", "ingest_app:app"]
        for name, value in settings.items():
            command += ["--set", f"{name.replace('__', '.')}={value}"]
        command += ["--set", f"state.dir={directory}"]
        worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
        try:
            return measure(StateDirectory(config.state_dir, app.application_id), config.bootstrap_servers)
        finally:
            worker.terminate()
            worker.wait()


def measure(directory: StateDirectory, servers: str) -> float:
    """Watch the commit notices; the group's committed offsets say how much was ingested."""
    notices: list[NoticeView] = []
    while len(notices) < PARTITIONS:
        try:
            notices = [NoticeView(directory.notice(f"0_{p}", "ingest", timestamped=True)) for p in range(PARTITIONS)]
        except NotPresentError:
            time.sleep(0.001)
    while not any(notice.commit_number or notice.staged_records for notice in notices):
        time.sleep(0.0005)
    started = time.perf_counter()
    partitions = [TopicPartition("ingest", p) for p in range(PARTITIONS)]
    with closing(open_log(servers, Path("."))) as log, closing(log.admin()) as admin:
        while True:
            committed = admin.committed(app.application_id, partitions)
            if sum(committed.values()) >= RECORDS:
                return RECORDS / (time.perf_counter() - started)
            time.sleep(0.02)


def main() -> None:
    with KafkaBroker() as broker:
        load(broker)
        bare, table = [], []
        for _ in range(ROUNDS):
            bare.append(bare_rate(broker))
            table.append(table_rate(broker))
            print(f"  bare {bare[-1]:,.0f}/s  table {table[-1]:,.0f}/s")
            forget_group(broker)
        ratio = statistics.median(t / b for t, b in zip(table, bare, strict=True))
        print(f"ingest of a table ÷ bare loop: {ratio:.2f} (target ≥ 0.6); table {statistics.median(table):,.0f}/s")


def forget_group(broker: KafkaBroker) -> None:
    """Delete the group's offsets, so that `committed` starts anew."""
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in client.delete_consumer_groups([app.application_id]).values():
        future.result()


if __name__ == "__main__":
    main()
