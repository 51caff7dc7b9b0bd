"""What brokers say of topics by name: few of them each for itself, since all of a large cluster's are megabytes."""

from __future__ import annotations

import time
from collections.abc import Collection

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata  # confluent_kafka.admin does not export it to type checkers

_FEW = 8  # more are asked for together: there is a request for one topic, and one for all
_LONGEST = 249  # of a topic's name: Kafka's `Topic.MAX_NAME_LENGTH`

_LEAST_S = 0.05

NEVER_CREATES = {"allow.auto.create.topics": False}
"""Every client is made with it: or else a broker may create the topic that it is asked for."""


def told_of_topics(
    client: AdminClient | Producer | Consumer, names: Collection[str] | None, timeout_s: float
) -> dict[str, TopicMetadata]:
    """Topic → what any broker says of it, of all for None; those that are not there, or that the login may not see, are
    left out. The client goes on asking for one that is not there, once a second, as long as it lives.

    Raises `KafkaException` when no broker says anything within `timeout_s`.
    """
    if names is None or len(names) > _FEW:
        found = client.list_topics(timeout=timeout_s).topics
    else:
        found, until_s = {}, time.monotonic() + timeout_s
        for name in names:
            if len(name) <= _LONGEST and "\0" not in name:  # librdkafka takes no other one
                found |= client.list_topics(name, timeout=max(_LEAST_S, until_s - time.monotonic())).topics
    return {name: topic for name, topic in found.items() if topic.error is None and (names is None or name in names)}
