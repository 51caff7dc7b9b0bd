"""Which partition has a key, by the partitioner that Kafka's Java clients have and Stateline's producers use."""

from __future__ import annotations

from confluent_kafka import murmur2


def home_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's partitioner chooses for this key."""
    return int(murmur2(key, partitions))  # masks to 31 bits itself, as Kafka does
