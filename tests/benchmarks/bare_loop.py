"""Read a topic and take its messages apart, nothing else: argv is a JSON of consumer settings, and a count of records.

Prints the records per second from the first message to the last.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Consumer
from topic import TOPIC


def rate(settings: dict[str, object], records: int) -> float:
    """Records per second."""
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    table: dict[object, object] = {}
    seen, started = 0, 0.0
    while seen < records:
        messages = consumer.consume(10_000, 0.1)
        if messages and not seen:
            started = time.perf_counter()
        for message in messages:
            table[message.key()] = (message.value(), message.timestamp()[1], message.partition(), message.offset())
        seen += len(messages)
    seconds = time.perf_counter() - started
    consumer.close()
    return records / seconds


if __name__ == "__main__":
    print(rate(json.loads(sys.argv[1]), int(sys.argv[2])))
