"""Pipelines whose epochs are seen whole, played by a producer that writes rows and marker in one transaction, as the
sink does."""

from __future__ import annotations

import json
from collections.abc import Mapping

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.log import Log
from stateline.model.pipeline import epochs_topic
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline_store import TopicPartition
from support.processes.running_worker import create

PARTITIONS = 3


def whole_app(name: str = "app", *, counts: bool = False) -> App:
    """A table of what the pipeline `sums` writes; `counts`: and a processor that counts its records."""
    app = App(name)
    out = app.topic(f"{name}-out", key=serdes.string, value=serdes.json)
    source = app.topic(f"{name}-in", key=serdes.string, value=serdes.json, schema="n long")
    app.pipeline(reads=source, writes=out, key="k", whole_epochs=True, name="sums")(lambda rows: rows)
    app.table(out, store="newest")
    if counts:
        store = app.store(stores.key_value("counts", key=serdes.string, value=serdes.int64))

        @app.process(out, stores=[store])
        def count(record: InputRecord, counts: StoreView) -> None:
            counts.put(record.key, (counts.get(record.key) or 0) + 1)

    return app


class Pipeline:
    """Writes micro-batches as the sink does: rows by partition, and the marker with all ends so far."""

    def __init__(self, log: Log, name: str) -> None:
        self.out, self.epochs = f"{name}-out", epochs_topic(name, "sums")
        create(log, {f"{name}-in": PARTITIONS, self.out: PARTITIONS, self.epochs: 1})
        self.producer = log.producer(f"{name}-sums")
        self.producer.init_transactions()
        self.says_ends = True  # as it does since whole epochs were asked for
        self.ends: dict[TopicPartition, int] = {}
        self.batches = 0

    def write(self, rows: Mapping[int, int], *, marker: bool = True) -> None:
        """So many rows per partition, each with the number of the batch."""
        self.producer.begin_transaction()
        for partition, count in rows.items():
            for number in range(count):
                key = b"p%d-%d" % (partition, number)
                self.producer.produce(self.out, key, b"%d" % self.batches, timestamp_ms=1, partition=partition)
        self.ends |= self.producer.flush()
        if marker:
            self.producer.produce(self.epochs, b"sums", self.marker(), timestamp_ms=1, partition=0)
            self.producer.flush()
            self.batches += 1
        self.producer.commit_transaction()

    def marker(self) -> bytes:
        marker = {"queryId": "q", "batchId": self.batches, "endOffsets": [], "rows": 0, "resultTopicIds": {}}
        if not self.says_ends:
            return json.dumps(marker).encode()
        ends: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in self.ends.items():
            ends.setdefault(topic, {})[str(partition)] = offset
        return json.dumps(marker | {"resultEnds": ends}).encode()
