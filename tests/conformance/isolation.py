"""One application on both sides while its input flows: a Kafka Streams application with transactional stores, and
`stateline worker` with a server. Both are asked the same questions, each at both isolation levels."""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from conformance import live_app
from conformance.live_input import begin_ms
from stateline.client import Client
from stateline.log.kafka import KafkaLog
from stateline_store import IsolationLevel, RetryLaterError
from support import TESTS
from support.kafka.java_streams import SIZE_MS, TRANSACTIONAL, JavaStreams
from support.processes.forked import Forked
from support.processes.running_worker import create, produce
from support.processes.served_here import served_here

STORES = {"table": "table", "count": "events", "tumbling": "events", "session": "events", "versioned": "versioned"}
"""Each store, and the topic that it is made of."""

KEYS = [f"key-{n}" for n in range(6)]
LEVELS = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
_COMMIT_INTERVAL_MS = 1_000
_STEP_MS = 400  # between the times of two records

Entries = list[tuple[Any, ...]]  # key, start, end, timestamp, value: None for what an entry does not have


class Question(NamedTuple):
    """A store, and the words of `StoreQuestion.java`."""

    store: str
    words: tuple[str, ...]


class Answered(NamedTuple):
    """`offset` is the answer's Position in the store's only input partition; -1 for none."""

    offset: int
    entries: Entries


@dataclass
class Sides:
    """Both programs of one scene, over one partition of each topic."""

    log: KafkaLog
    java: JavaStreams
    client: Client
    prefix: str
    directory: Path
    application_id: str
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    now_ms: int = field(default_factory=begin_ms)
    worker: Forked | None = None
    stream_times: dict[str, list[int]] = field(default_factory=lambda: {topic: [] for topic in STORES.values()})
    """Of each topic: the largest timestamp up to each offset."""
    sent: dict[str, list[tuple[str, str | None, int]]] = field(
        default_factory=lambda: {topic: [] for topic in STORES.values()}
    )
    """Of each topic: key, value and timestamp by offset."""

    def produce(self, count: int) -> None:
        """Write records to each topic: mostly in order, some late, some deletes."""
        rows: dict[str, list[tuple[bytes, bytes | None, int]]] = {topic: [] for topic in STORES.values()}
        for _ in range(count):
            self.now_ms += self.chance.randrange(_STEP_MS) + (60_000 if self.chance.random() < 0.01 else 0)
            for topic, made in rows.items():
                late_ms = 0 if self.chance.random() < 0.8 else self.chance.randrange(50_000)
                gone = topic != "events" and self.chance.random() < 0.1
                value = None if gone else b"%d" % self.chance.randrange(1_000_000)
                made.append((self.chance.choice(KEYS).encode(), value, self.now_ms - late_ms))
        for topic, made in rows.items():
            times = self.stream_times[topic]
            for _, _, at_ms in made:
                times.append(max(at_ms, times[-1]) if times else at_ms)
            self.sent[topic] += [
                (key.decode(), None if value is None else value.decode(), at_ms) for key, value, at_ms in made
            ]
            produce(self.log, f"{self.prefix}{topic}", made)

    def stream_time(self, store: str, offset: int) -> int:
        """Return the store's stream time at this Position."""
        return self.stream_times[STORES[store]][offset]

    def counts(self, key: str, start_ms: int, end: int) -> dict[str, int]:
        """Return the largest timestamp of a tumbling window by its count, up to this offset. Late records count."""
        found, at_ms = dict[str, int](), 0
        for name, _, time_ms in self.sent["events"][:end]:
            if name == key and start_ms <= time_ms < start_ms + SIZE_MS:
                at_ms = max(at_ms, time_ms)
                found[str(len(found) + 1)] = at_ms
        return found

    def versions(self, key: str, offset: int) -> Entries:
        """Return every version that the key ever had at this Position. None was too late for the history."""
        values = {at_ms: value for name, value, at_ms in self.sent["versioned"][: offset + 1] if name == key}
        times = sorted(values)
        ends = dict(itertools.zip_longest(times, times[1:]))
        return [(key, at_ms, end, None, value) for at_ms, end in ends.items() if (value := values[at_ms]) is not None]

    def question(self) -> Question:
        """Some question of some store."""
        store = self.chance.choice([*STORES])
        one, other = sorted(self.chance.sample(KEYS, 2))
        since, until = str(self.now_ms - self.chance.randrange(200_000)), str(self.now_ms + 60_000)
        match store:
            case "tumbling":
                return Question(
                    store, self.chance.choice([("windows", one, since, until), ("all_windows", since, until)])
                )
            case "session":
                return Question(store, ("sessions", one))
            case "versioned":
                return Question(store, ("versions", one))
            case _:
                spans = [("range", a, b) for a in (one, "-") for b in (other, "-")]
                return Question(store, self.chance.choice([("key", one), ("key", other), *spans]))

    def of_java(self, question: Question, level: IsolationLevel) -> Answered | None:
        """What Kafka Streams answers, None while it cannot."""
        found = self.java.ask(question.store, level.name, *question.words)
        if found is None:
            return None
        position, lines = found
        offset = re.search(rf"{re.escape(self.prefix + STORES[question.store])}=\{{0=(\d+)\}}", position)
        return Answered(-1 if offset is None else int(offset[1]), sorted(map(_typed, lines), key=repr))

    def of_ours(self, question: Question, level: IsolationLevel) -> Answered | None:
        """What the server answers, None while it cannot."""
        store = self.client.store(question.store, isolation_level=level)
        kind, *words = question.words
        try:
            if kind == "key":
                answer: Any = store.get(words[0])
                entries = [(words[0], None, None, answer.timestamp, answer.value)] if answer.found else []
            else:
                answer, entries = _scanned(store, kind, words)
        except RetryLaterError:
            return None
        offset = answer.position.get(self.prefix + STORES[question.store], 0)
        made = [(*entry[:4], str(entry[4])) for entry in entries]
        return Answered(-1 if offset is None else offset, sorted(made, key=repr))

    def start(self) -> None:
        """Start both."""
        self.worker = _worker(self)
        self.java.start()

    def kill(self) -> None:
        """Kill both, as a crash would. Java deletes its stores after that, so they go here: a segment that was just
        being made would keep it from starting."""
        self.java.kill()
        self.java.lose_stores()
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()


def _scanned(store: Any, kind: str, words: list[str]) -> tuple[Any, Entries]:
    match kind:
        case "range":
            lower, upper = (None if word == "-" else word for word in words)
            page = next(store.range(lower=lower, upper=upper).pages())
            return page, [(e.key, None, None, e.timestamp, e.value) for e in page.entries]
        case "windows":
            page = next(store.windows(words[0], time_from=int(words[1]), time_to=int(words[2])).pages())
            return page, [(words[0], e.start, None, e.timestamp, e.value) for e in page.entries]
        case "all_windows":
            page = next(store.all_windows(time_from=int(words[0]), time_to=int(words[1])).pages())
            return page, [(e.key, e.start, None, e.timestamp, e.value) for e in page.entries]
        case "sessions":
            page = next(store.sessions(words[0]).pages())
            return page, [(words[0], e.start, e.end, None, e.value) for e in page.entries]
        case _:
            page = next(store.versions(words[0]).pages())
            return page, [(words[0], e.timestamp, e.valid_to, None, e.value) for e in page.entries]


def _typed(line: tuple[str, ...]) -> tuple[Any, ...]:
    key, start, end, timestamp, value = line
    return (key, *(None if word == "-" else int(word) for word in (start, end, timestamp)), value)


def _worker(sides: Sides) -> Forked:
    settings = {
        "bootstrap.servers": sides.log.bootstrap_servers,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": sides.directory / "state",
        "commit.interval.ms": _COMMIT_INTERVAL_MS,
    }
    command = ["worker", "conformance.live_app:app"]
    for name, setting in settings.items():
        command += ["--set", f"{name}={setting}"]
    environment = {
        **os.environ,
        "CONFORMANCE_APPLICATION": sides.application_id,
        "CONFORMANCE_PREFIX": sides.prefix,
        "CONFORMANCE_STORES": " ".join(STORES),
    }
    with (sides.directory / "worker.log").open("ab") as output:
        return Forked(command, cwd=TESTS, env=environment, output=output.fileno())


@contextmanager
def both_running(servers: str, prefix: str, directory: Path) -> Iterator[Sides]:
    """Both, over topics of this prefix that have a few records."""
    application_id = f"{prefix}ours"
    with ExitStack() as stack:
        log = stack.enter_context(closing(KafkaLog(servers)))
        create(log, dict.fromkeys((f"{prefix}{topic}" for topic in STORES.values()), 1))
        (directory / "java").mkdir()
        java = stack.enter_context(
            JavaStreams(
                servers,
                f"{prefix}java",
                list(STORES),
                directory / "java",
                prefix=prefix,
                settings={
                    "commit.interval.ms": _COMMIT_INTERVAL_MS,
                    "statestore.cache.max.bytes": 0,
                    "processing.guarantee": "exactly_once_v2",
                    TRANSACTIONAL: "true",
                },
            )
        )
        app = live_app.build(application_id, prefix, STORES)
        settings = f"bootstrap.servers={servers}"
        here = stack.enter_context(served_here(directory / "state", settings, app=app, until_ready=False))
        client = stack.enter_context(Client(f"http://127.0.0.1:{here.port}"))
        sides = Sides(log, java, client, prefix, directory, application_id)
        stack.callback(sides.kill)
        sides.produce(20)
        sides.start()
        yield sides
