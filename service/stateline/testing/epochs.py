"""Rows of a pipeline that shows whole micro-batches: each write is one, with its marker, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TypeAlias

from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log.interface import Log, Producer
from stateline.model.topology import Topology
from stateline.processing.records import OutputRecord
from stateline_store.clock import now_ms

_WRITER = "test-driver"

Row: TypeAlias = tuple[OutputRecord, int | None]
"""A record as bytes, and the partition that it names, if it does."""


def produce_rows(producer: Producer, rows: Iterable[Row], *, is_copy: bool = False) -> None:
    """Each into its partition, or that of its key. `is_copy`: as `Producer.produce`."""
    for (name, key, value, timestamp_ms, headers, where), number in rows:
        producer.produce(
            name,
            key,
            value,
            timestamp_ms=timestamp_ms,
            headers=headers,
            partition=number,
            partition_key=where,
            is_copy=is_copy,
        )


class EpochWriter:
    """Writes them as a pipeline's sink does. One thread uses it."""

    def __init__(self, topology: Topology) -> None:
        self._epochs_of = {topic: epochs for epochs, results in topology.whole_epochs().items() for topic in results}
        self._ends: dict[str, dict[str, dict[str, int]]] = {}  # topic of markers → result → partition → last offset
        self._batches = 0

    def writes(self, topic: str) -> bool:
        """Whether rows of this topic are seen a micro-batch at a time."""
        return topic in self._epochs_of

    def write(self, log: Log, topic: str, rows: Sequence[Row]) -> None:
        """Write these records, each into its partition or that of its key, and where the micro-batch ends."""
        epochs = self._epochs_of[topic]
        ends = self._ends.setdefault(epochs, {}).setdefault(topic, {})
        with closing(log.producer(_WRITER)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            produce_rows(producer, rows)
            ends |= {str(place.partition): offset for place, offset in producer.flush().items()}
            marker = EpochMarker(_WRITER, self._batches, (), len(rows), {}, self._ends[epochs])
            producer.produce(epochs, _WRITER.encode(), marker.encode(), timestamp_ms=now_ms())
            producer.commit_transaction()
        self._batches += 1
