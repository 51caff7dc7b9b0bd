"""Asks brokers for topics by name."""

from __future__ import annotations

import time
from collections.abc import Collection

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata  # confluent_kafka.admin does not export it to type checkers

_FEW = 8  # beyond it ask for all topics: requests name one topic or none
_LONGEST = 249  # characters of a topic's name: Kafka's `Topic.MAX_NAME_LENGTH`
_LEAST_S = 0.05
NEVER_CREATES = {"allow.auto.create.topics": False}
"""A setting of every client. Without it a broker may create a topic that a client asks for."""


def told_of_topics(
    client: AdminClient | Producer | Consumer, names: Collection[str] | None, timeout_s: float
) -> dict[str, TopicMetadata]:
    """Return the metadata of these topics, or of all topics for None. Absent topics, and those that the login may not
    see, are left out. The client keeps asking for an absent topic once a second. Up to `_FEW` names are asked for one
    by one, because the metadata of a large cluster takes megabytes. Raises `KafkaException` if no broker answers within
    `timeout_s`."""
    if names is None or len(names) > _FEW:
        found = client.list_topics(timeout=timeout_s).topics
    else:
        found, until_s = {}, time.monotonic() + timeout_s
        for name in names:
            if len(name) <= _LONGEST and "\0" not in name:  # librdkafka takes no others
                found |= client.list_topics(name, timeout=max(_LEAST_S, until_s - time.monotonic())).topics
    return {name: topic for name, topic in found.items() if topic.error is None and (names is None or name in names)}
