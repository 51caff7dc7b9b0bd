"""The input of the live conformance, always the same: late, out of order, doubled, deleted, without a key."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType

from stateline.log.interface import Headers
from stateline.log.kafka import KafkaLog
from stateline.model.topic import Topic
from stateline_store import TopicPartition
from support.processes.running_worker import create, produce

VARIABLE = "STATELINE_CONFORMANCE_RECORDS"
RECORDS = int(os.environ.get(VARIABLE, "20000"))
PARTITIONS = 4

# Share of all records that each topic gets.
SHARES = {
    "events": 0.32, **dict.fromkeys(("table", "versioned", "left", "right"), 0.1), "timed": 0.14, "skipped": 0.14,
}  # fmt: skip
TIMED = ("timed", "skipped")  # their values begin with the time that counts

_HOUR_MS = 3_600_000
_STEP_MS = 50
_LONGEST_MS = 10 * _HOUR_MS  # the broker deletes windows' changelogs after a day
_ROUND_MS = 2_500
_PAUSE_MS = 47_000  # ten times there is nothing for so long: sessions and windows end


def begin_ms() -> int:
    """Where the input's timestamps begin: not long ago, and so that windows lie as they always do."""
    now_ms = time.time_ns() // 1_000_000
    return (now_ms - _LONGEST_MS) // _HOUR_MS * _HOUR_MS - _HOUR_MS


def keys(records: int) -> list[str]:
    """The keys of so much input."""
    return [*(f"key-{number}" for number in range(max(150, min(10_000, records // 100)))), "ключ"]


Sent = tuple[bytes | None, bytes | None, int, Headers]


def input_of(topic: str, records: int, begin_ms: int) -> Iterator[Sent]:
    """What a topic gets of so many records in all, in the order of offsets: (key, value, timestamp, headers). Most have
    headers: one, none, or some with a name twice, without a value, and named as a Position's are.

    No two topics have the same timestamp anywhere: Kafka Streams leaves open which of these it takes first.
    """
    rng, names = random.Random(topic), [key.encode() for key in keys(records)]
    count = round(records * SHARES[topic])
    length_ms = min(count * _STEP_MS, _LONGEST_MS)
    phase = list(SHARES).index(topic)
    tombstones = 0.03 if topic in ("events", *TIMED) else 0.15
    row: Sent | None = None
    for number in range(count):
        if row is not None and rng.random() < 0.03:
            yield row  # a double
            continue
        now_ms = begin_ms + number * length_ms // count + number * 10 // count * _PAUSE_MS
        at_ms = max(begin_ms, now_ms - _late_ms(rng))
        # Rounded up, so that the newest lie where windows begin and end, and others a gap or a grace before these.
        at_ms = -(-at_ms // (whole := _ROUND_MS if rng.random() < 0.3 else len(SHARES))) * whole + phase
        # A tenth of the keys are frequent, some of the others come once or twice.
        name = rng.choice(names) if rng.random() < 0.5 else names[int(len(names) * rng.random() ** 4)]
        key = None if rng.random() < 0.01 else name
        chance = rng.random()
        value = None if chance < tombstones else b"" if chance > 0.99 else b"%s-%d" % (topic.encode(), number)
        if topic in TIMED and value is not None:
            # Each partition has a valid time before the first invalid one: without, Kafka Streams ends.
            said = b"none" if number > 50 * PARTITIONS and rng.random() < 0.1 else b"%d" % at_ms
            value, at_ms = b"%s-%s" % (said, value), begin_ms
        own: Headers = (("of", b"%s-%d" % (topic.encode(), number)), ("é", None), ("of", b""), ("v", b"\0"))
        row = key, value, at_ms, own[: number % 5]
        yield row


def _late_ms(rng: random.Random) -> int:
    """Mostly in order; some late, and some beyond every grace and history."""
    chance = rng.random()
    if chance < 0.70:
        return 0
    if chance < 0.88:
        return rng.randrange(5_000)
    return rng.randrange(60_000) if chance < 0.96 else rng.randrange(300_000)


@dataclass(frozen=True)
class Input:
    """What both sides read: all of it is there before they start."""

    prefix: str
    ends: Mapping[TopicPartition, int]
    keys: Sequence[str]

    def ends_of(self, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
        """Where these topics end."""
        names = {topic.name for topic in topics}
        return {place: end for place, end in self.ends.items() if place.topic in names}


def write_input(
    log: KafkaLog, prefix: str, records: int = RECORDS, more: Mapping[str, str] = MappingProxyType({})
) -> Input:
    """Make the topics, and write so many records to all of them together. `more` are topics besides, by the kind of
    their records."""
    topics = {f"{prefix}{name}": kind for name, kind in {**{kind: kind for kind in SHARES}, **more}.items()}
    create(log, dict.fromkeys(topics, PARTITIONS))
    began_ms = begin_ms()
    for topic, kind in topics.items():
        produce(log, topic, input_of(kind, records, began_ms))
    with closing(log.admin()) as admin:
        places = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
        return Input(prefix, {place: admin.log_end(place) for place in places}, keys(records))
