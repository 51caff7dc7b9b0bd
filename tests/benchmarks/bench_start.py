"""A worker of many tasks starts and stops: 500 partitions with 4 stores each, exactly once, on a broker of its own.

The first start creates the stores and their 2,000 changelog partitions, the second one opens them: ≤ 30 s each. The
stop closes all stores: ≤ 15 s. `bench_start.py PARTITIONS` takes another number.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from figures import at_most
from processes import until  # finds the tests' modules, too

from stateline import App, InputRecord, StoreView, serdes, stores
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.processes.machine import allow_many
from stateline.worker.loop.worker import Worker
from support.kafka.kafka_broker import KafkaBroker
from support.processes.running_worker import configured, create

PARTITIONS, STORES = 500, 4


def build() -> App:
    app = App("many")
    kept = [app.store(stores.key_value(f"s{n}", key=serdes.string, value=serdes.int64)) for n in range(STORES)]

    @app.process(app.topic("in", key=serdes.string, value=serdes.int64), stores=kept)
    def put(record: InputRecord, s0: StoreView, s1: StoreView, s2: StoreView, s3: StoreView) -> None:
        for view in (s0, s1, s2, s3):
            view.put(record.key, record.value)

    return app


def start_and_stop(config: Config, partitions: int) -> tuple[float, float]:
    """The seconds until all tasks run, and those of the stop."""
    with closing(configured_log(config)) as log:
        began_s = time.monotonic()
        worker = Worker(build(), config, log, instance="worker-0")
        thread = threading.Thread(target=worker.run)
        thread.start()
        until(lambda: len(worker.tasks.running) == partitions, "all tasks run", 0.02)
        started_s = time.monotonic()
        worker.stop()
        thread.join()
        return started_s - began_s, time.monotonic() - started_s


def main(partitions: int) -> None:
    allow_many()
    with KafkaBroker() as broker, TemporaryDirectory() as directory:
        config = configured(
            build(),
            Path(directory),
            bootstrap__servers=broker.bootstrap_servers,
            processing__guarantee="exactly_once_v2",
            commit__interval__ms=100,
        )
        with closing(configured_log(config)) as log:
            create(log, {"in": partitions})
        for which in ("first", "second"):
            start_s, stop_s = start_and_stop(config, partitions)
            at_most(f"{which} start of {partitions} partitions with {STORES} stores each", start_s, 30, " s")
            at_most(f"{which} stop", stop_s, 15, " s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PARTITIONS)
