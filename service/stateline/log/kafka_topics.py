"""What brokers say of topics by name: few of them each for itself, since all of a large cluster's are megabytes."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata  # confluent_kafka.admin does not export it to type checkers

_FEW = 8  # more are asked for together: there is a request for one topic, and one for all

NEVER_CREATES = {"allow.auto.create.topics": False}
"""What a client is to be made with: or else a broker may create the topic that it is asked for."""


def told_of_topics(
    client: AdminClient | Producer | Consumer, names: Collection[str] | None, timeout_s: float
) -> dict[str, TopicMetadata]:
    """Topic → what any broker says of it, of all for None; those that are not there, or that the login may not see, are
    left out.

    Raises `KafkaException` when no broker says anything within `timeout_s`, which counts for each request.
    """
    if names is None or len(names) > _FEW:
        found = client.list_topics(timeout=timeout_s).topics
    else:
        found = {}
        for name in names:
            found |= client.list_topics(name, timeout=timeout_s).topics
    return {name: topic for name, topic in found.items() if topic.error is None and (names is None or name in names)}
