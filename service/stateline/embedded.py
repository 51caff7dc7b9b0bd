"""The embedded log for your own scripts: topics in one file, with or without a running application. `docs/topics.md`
has examples.

    from stateline.embedded import EmbeddedLog

    with EmbeddedLog(".stateline/log.db") as log, log.producer() as producer:
        producer.produce("orders", b"ada", b'{"amount": 30}', timestamp_ms=1_700_000_000_000)

The file is ``log.db`` in the application's ``state.dir``, or PATH of ``bootstrap.servers=embedded:PATH``. Keys and
values are bytes; `stateline.serdes` makes them. `stateline.log.interface` describes each method. For Kafka, use its own
clients.
"""

from __future__ import annotations

from stateline.log.embedded import EmbeddedLog
from stateline.log.interface import NewTopic, Record, TopicInfo
from stateline_store import TopicPartition

__all__ = ["EmbeddedLog", "NewTopic", "Record", "TopicInfo", "TopicPartition"]
