"""What workers tell each other in ``<application.id>-nodes``, those of all nodes: what each is, and what it follows.

    key   := 0x00 "worker/" name in the group, UTF-8: its static id, or else its client id
    value := {"topology": digest of what it runs, "directory": id of its state directory, "tags": {name: text},
              "tasks": digest of the same but for timestamps of stores (`Topology.tasks_digest`)}                  JSON

    key   := 0x00 "standbys/" the same name
    value := {"caught_up": [task, …], "joining": whether it is about to join the group}                            JSON

    key   := 0x00 "fault/" the same name
    value := {"stays": whether it is in its group nevertheless}         of one that cannot work                     JSON
             a tombstone when it works again

In the log: never change. What else a value has is a newer build's. A worker that has gone leaves its entries: they
count for nothing while the group has no such member.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from typing import NamedTuple

import orjson

from stateline.deployment.nodes_topic import RESET_KEY, nodes_partition
from stateline.deployment.stores.resets import Reset
from stateline.log.interface import Admin, Consumer, GroupMember, Log, Record
from stateline_store import DoesNotExistError, LogUnavailableError
from stateline_store.clock import now_ms

_log = logging.getLogger(__name__)

_KEY = b"\0worker/"
_STANDBYS_KEY = b"\0standbys/"
FAULT_KEY = b"\0fault/"
_READ_PAUSE_S = 0.005
_READ_TIMEOUT_S = 15.0
SAID_AGAIN_S = 5.0
"""How often one that is about to join says so; one that has not for three times as long does not any more."""


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """Of one worker. `topology`: `Topology.digest`; `directory`: id of its state directory; `tags`: its
    ``client.tag.*``; `tasks`: `Topology.tasks_digest`."""

    topology: str
    directory: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    tasks: str = ""

    def encode(self) -> bytes:
        """The value of its record."""
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, value: bytes) -> WorkerEntry | None:
        """What `encode` wrote; None for anything else, which may be a newer build's."""
        try:
            found = orjson.loads(value)
            topology, directory, tags, tasks = (found[each.name] for each in fields(cls))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
        if not (isinstance(tags, dict) and all(isinstance(text, str) for text in (topology, directory, tasks))):
            return None
        return cls(topology, directory, {name: str(tag) for name, tag in tags.items()}, tasks)


@dataclass(frozen=True, slots=True)
class StandbysEntry:
    """What a worker follows: the tasks that have caught up, as texts. One that is `joining` says so again and again
    (`SAID_AGAIN_S`), and waits until what will move to it, and to others because of it, has."""

    caught_up: frozenset[str] = frozenset()
    joining: bool = False

    def encode(self) -> bytes:
        """The value of its record."""
        return orjson.dumps({"caught_up": sorted(self.caught_up), "joining": self.joining})

    @classmethod
    def decode(cls, value: bytes) -> StandbysEntry | None:
        """As `WorkerEntry.decode`."""
        try:
            found = orjson.loads(value)
            return cls(frozenset(map(str, found["caught_up"])), bool(found["joining"]))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """Of a worker whose starts fail, or that nobody reaches: whether it `stays` in its group, or leaves it for a
    while."""

    stays: bool

    def encode(self) -> bytes:
        """The value of its record."""
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, value: bytes) -> FaultEntry | None:
        """As `WorkerEntry.decode`."""
        try:
            return cls(bool(orjson.loads(value)["stays"]))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None


class SaidFault(NamedTuple):
    """A fault, at which offset it stands, and when it was said: milliseconds since the epoch, by the clock of who
    said it."""

    offset: int
    at_ms: int
    entry: FaultEntry


class WorkerEntries:
    """One worker's, on its thread. What is called raises what the log raises. `standbys` is, as of the last look with
    `all`, what each follows by its name, and when that was said (`time.monotonic`); `faults` has what
    those say that cannot work."""

    def __init__(self, log: Log, application_id: str, own: str, entry: WorkerEntry) -> None:
        """`own` is the worker's name in the group, `entry` what it says of itself."""
        self._log = log
        self._place = nodes_partition(application_id)
        self._own = own
        self._entry = entry
        self._consumer: Consumer | None = None
        self._found: dict[str, tuple[int, WorkerEntry]] = {}
        self.standbys: dict[str, tuple[float, StandbysEntry]] = {}
        self.faults: dict[str, SaidFault] = {}
        self._own_at: int | None = None  # where its own entry is, until that was read
        self._reset: bytes | None = None  # the newest, as it was written

    def say(self) -> None:
        """Let the others know what this one is, from now on."""
        self._own_at = self._write(_KEY, self._entry.encode())
        if self._consumer is None:
            self._consumer = self._log.consumer()
            self._consumer.assign({self._place: 0})  # it reads ahead until somebody looks

    def say_standbys(self, entry: StandbysEntry) -> None:
        """Let the others know what this one follows, from now on. After `say`."""
        self._write(_STANDBYS_KEY, entry.encode())

    def say_fault(self, entry: FaultEntry) -> int:
        """Let the others know that this one cannot work. Returns the offset; the next `all` has what was said before
        it. After `say`."""
        self._own_at = self._write(FAULT_KEY, entry.encode())
        return self._own_at

    def withdraw_fault(self) -> None:
        """Let the others know that this one works again, if it has said that it cannot. After `say`."""
        self.all()
        if self.faults.pop(self._own, None) is not None:
            self._write(FAULT_KEY, None)

    def _write(self, key: bytes, value: bytes | None) -> int:
        with closing(self._log.producer()) as producer:
            name = key + self._own.encode()
            producer.produce(self._place.topic, name, value, timestamp_ms=now_ms(), partition=self._place.partition)
            return producer.flush()[self._place]

    def all(self) -> Mapping[str, tuple[int, WorkerEntry]]:
        """What each has said last, by its name, and at which offset: all of it that was said before this one did, and
        what has come since. Empty while the topic has gone.
        """
        deadline = time.monotonic() + _READ_TIMEOUT_S
        while self._consumer is not None:
            try:
                records = self._consumer.poll(1000, 0.0 if self._own_at is None else 0.1)
            except DoesNotExistError as error:
                _log.warning("The other workers are not known: %s", error)
                self.close()
                return {}
            for record in records:
                self._take(record)
                if self._own_at is not None and record.offset >= self._own_at:
                    self._own_at = None
            if not records and self._own_at is None:
                break
            if time.monotonic() > deadline:
                raise LogUnavailableError(f"{self._place.topic} could not be read in {_READ_TIMEOUT_S:g} s.")
        return self._found

    def _take(self, record: Record) -> None:
        key, value = record.key or b"", record.value
        if key == RESET_KEY:
            self._reset = value
        if value is None:
            if key.startswith(FAULT_KEY):
                self.faults.pop(_name(key, FAULT_KEY), None)
            return
        if key.startswith(_KEY) and (entry := WorkerEntry.decode(value)) is not None:
            self._found[_name(key, _KEY)] = record.offset, entry
        if key.startswith(FAULT_KEY) and (fault := FaultEntry.decode(value)) is not None:
            self.faults[_name(key, FAULT_KEY)] = SaidFault(record.offset, record.timestamp_ms, fault)
        if key.startswith(_STANDBYS_KEY) and (standbys := StandbysEntry.decode(value)) is not None:
            # What was said before this one came may be of long ago; the other's clock has no say in what it says since.
            age_s = 0.0 if self._own_at is None else max(0, now_ms() - record.timestamp_ms) / 1000
            self.standbys[_name(key, _STANDBYS_KEY)] = time.monotonic() - age_s, standbys

    def newest_reset(self, admin: Admin) -> Reset | None:
        """As `resets.newest_reset`, of all that was said before this call; None too while the topic has gone."""
        if self._consumer is None:
            return None
        end = admin.watermarks(self._place)[1]
        deadline = time.monotonic() + _READ_TIMEOUT_S
        while self._consumer is not None and (self._consumer.next_offset(self._place) or 0) < end:
            self.all()
            time.sleep(_READ_PAUSE_S)
            if time.monotonic() > deadline:
                raise LogUnavailableError(f"{self._place.topic} could not be read in {_READ_TIMEOUT_S:g} s.")
        return None if self._reset is None else Reset.decode(self._reset)

    def close(self) -> None:
        """Let go of the log."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._found.clear()
        self.standbys.clear()
        self.faults.clear()


def _name(key: bytes, prefix: bytes) -> str:
    return key[len(prefix) :].decode(errors="replace")


def entry_name(member: GroupMember) -> str:
    """Under which a member of the group has said what it is."""
    return member.instance_id or member.client_id
