"""A word count of Kafka Streams goes to Stateline with `stateline adopt`, as docs/adopt.md shows, and back."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stateline.cli.adopt.adoption import adopt
from stateline.dsl.app import App
from stateline.log.kafka import KafkaLog
from stateline_store import LockedError
from support import REPOSITORY
from support.kafka.java_streams import JavaStreams, class_path
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, eventually, produce, read_all, running

PARTITIONS = 2
WORDS = ("to", "be", "or", "not", "that", "is", "the", "question", "whether", "it", "nobler", "in", "mind")
SETTINGS = {
    "commit.interval.ms": 100,
    "processing.guarantee": "exactly_once_v2",
    "session.timeout.ms": 6_000,  # the least that a broker accepts: a stopped instance is a member until then
}


def shown_app() -> App:
    """The application on the page."""
    page = (REPOSITORY / "docs/adopt.md").read_text(encoding="utf-8")
    scope: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, scope)
    app: App = scope["app"]
    return app


class Lines:
    """Lines of words in a topic, and how often each word must be counted."""

    def __init__(self, log: KafkaLog) -> None:
        self._log, self._random = log, random.Random(7)
        self.expected: Counter[str] = Counter()

    def write(self, count: int) -> None:
        lines = [" ".join(self._random.choices(WORDS, k=4)) for _ in range(count)]
        self.expected.update(word for line in lines for word in line.split())
        at_ms = 1_700_000_000_000
        produce(self._log, "text-lines", ((b"line %d" % n, line.encode(), at_ms + n) for n, line in enumerate(lines)))

    def counted(self) -> None:
        """Wait until the newest count of each word is right."""

        def newest() -> dict[str, int]:
            records = read_all(self._log, "text-counts", PARTITIONS)
            return {(r.key or b"").decode(): int.from_bytes(r.value or b"", "big") for r in records}

        eventually(lambda: newest() == self.expected, "every word is counted once")


@pytest.fixture
def log(kafka_broker: SharedBroker) -> Iterator[KafkaLog]:
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as made:
        yield made


def test_a_word_count_goes_to_stateline_and_back_and_no_word_is_lost_or_counted_twice(
    log: KafkaLog, tmp_path: Path
) -> None:
    needed(class_path)
    create(log, {"text-lines": PARTITIONS, "text-counts": PARTITIONS})
    lines, app = Lines(log), shown_app()
    config = configured(
        app, tmp_path / "here", bootstrap__servers=log.bootstrap_servers, processing__guarantee="exactly_once_v2"
    )
    java_dir, name = tmp_path / "java", app.application_id
    java_dir.mkdir()
    with JavaStreams(
        log.bootstrap_servers, name, ["words"], java_dir, prefix="text-", partitions=PARTITIONS, settings=SETTINGS
    ) as java:
        java.start()
        lines.write(300)
        lines.counted()
        java.stop()

        def adopted() -> bool:
            try:
                report = adopt(app, config, [java_dir], dry_run=False)
            except LockedError:
                return False
            assert [each.outcome for each in report.outcomes] == ["adopted"] * PARTITIONS
            return True

        eventually(adopted, "the session of the Java application ends")
        lines.write(200)
        with running(app, config, log):
            lines.counted()
            lines.write(200)
            lines.counted()
        lines.write(100)
        java.start()  # with the stores that it left: it restores what Stateline has written since
        lines.counted()
        java.kill()
        java.lose_stores()
        java.start()  # from the changelog alone
        lines.write(100)
        lines.counted()
