"""The embedded log for scripts of one's own: topics in one file, written and read beside a running application or
without one. `docs/topics.md` shows each.

    from stateline.embedded import EmbeddedLog

    with EmbeddedLog(".stateline/log.db") as log, log.producer() as producer:
        producer.produce("orders", b"ada", b'{"amount": 30}', timestamp_ms=1_700_000_000_000)

The file is ``log.db`` in the application's ``state.dir``, or what ``bootstrap.servers=embedded:PATH`` names. Keys and
values are bytes; `stateline.serdes` makes them. What each method does, returns and raises stands in
`stateline.log.interface`; for Kafka there are its own clients.
"""

from __future__ import annotations

from stateline.log.embedded import EmbeddedLog
from stateline.log.interface import NewTopic, Record, TopicInfo
from stateline_store import TopicPartition

__all__ = ["EmbeddedLog", "NewTopic", "Record", "TopicInfo", "TopicPartition"]
