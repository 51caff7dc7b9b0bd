"""Which partition has a key, by the partitioner that Kafka's Java clients have and Stateline's producers use."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import murmur2

home_partition: Callable[[bytes, int], int] = murmur2
"""Return the partition of so many that Kafka's partitioner chooses for this key. It masks to 31 bits, as Kafka does."""
