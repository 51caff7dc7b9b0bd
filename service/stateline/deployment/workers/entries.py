"""Records of workers in ``<application.id>-nodes``: their topology and directory, their standbys, their faults.

    key   := 0x00 "worker/" name in the group, UTF-8: its static id, or else its client id
    value := {"topology": digest, "directory": id of its state directory, "tags": {name: text},
              "tasks": digest without timestamps of stores (`Topology.tasks_digest`)}                              JSON

    key   := 0x00 "standbys/" the same name
    value := {"caught_up": [task, …], "joining": whether it is about to join the group}                            JSON

    key   := 0x00 "fault/" the same name
    value := {"stays": whether it stays in its group}         while it cannot work                                 JSON
             a tombstone when it works again

In the log: never change. Other members of a value come from newer builds. Entries without a member of this name in the
group are ignored.
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
"""A worker that is about to join repeats it at this interval. It counts for three intervals."""


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """A worker's entry. `topology` is `Topology.digest`, and `tasks` `Topology.tasks_digest`. `directory` is the id of
    its state directory. `tags` are its ``client.tag.*``."""

    topology: str
    directory: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    tasks: str = ""

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, value: bytes) -> WorkerEntry | None:
        """None for other content, which may be a newer build's."""
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
    """The tasks, as texts, with which a worker has caught up. A `joining` worker repeats that (`SAID_AGAIN_S`), and
    waits until the tasks that will move because of it have caught up."""

    caught_up: frozenset[str] = frozenset()
    joining: bool = False

    def encode(self) -> bytes:
        return orjson.dumps({"caught_up": sorted(self.caught_up), "joining": self.joining})

    @classmethod
    def decode(cls, value: bytes) -> StandbysEntry | None:
        """None for other content, which may be a newer build's."""
        try:
            found = orjson.loads(value)
            return cls(frozenset(map(str, found["caught_up"])), bool(found["joining"]))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """A worker whose starts fail, or that cannot be reached. It `stays` in its group, or leaves it for a while."""

    stays: bool

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, value: bytes) -> FaultEntry | None:
        """None for other content, which may be a newer build's."""
        try:
            return cls(bool(orjson.loads(value)["stays"]))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None


class SaidFault(NamedTuple):
    """A fault with its offset and its time in milliseconds since the epoch, by the writer's clock."""

    offset: int
    at_ms: int
    entry: FaultEntry


class WorkerEntries:
    """One worker's view, for its thread. Methods raise what the log raises. After `all`, `standbys` has each worker's
    entry and its time (`time.monotonic`), and `faults` the entries of workers that cannot work."""

    def __init__(self, log: Log, application_id: str, own: str, entry: WorkerEntry) -> None:
        """`own` is the worker's name in the group."""
        self._log = log
        self._place = nodes_partition(application_id)
        self._own = own
        self._entry = entry
        self._consumer: Consumer | None = None
        self._found: dict[str, tuple[int, WorkerEntry]] = {}
        self.standbys: dict[str, tuple[float, StandbysEntry]] = {}
        self.faults: dict[str, SaidFault] = {}
        self._own_at: int | None = None  # offset of its own entry, until it is read
        self._reset: bytes | None = None  # the newest record's value

    def say(self) -> None:
        """Write this worker's entry."""
        self._own_at = self._write(_KEY, self._entry.encode())
        if self._consumer is None:
            self._consumer = self._log.consumer()
            self._consumer.assign({self._place: 0})  # the consumer reads ahead

    def say_standbys(self, entry: StandbysEntry) -> None:
        """Write what this worker follows. After `say`."""
        self._write(_STANDBYS_KEY, entry.encode())

    def say_fault(self, entry: FaultEntry) -> int:
        """Write that this worker cannot work. Returns the offset; the next `all` has everything before it. After
        `say`."""
        self._own_at = self._write(FAULT_KEY, entry.encode())
        return self._own_at

    def withdraw_fault(self) -> None:
        """Write that this worker works again, if it has written a fault. After `say`."""
        self.all()
        if self.faults.pop(self._own, None) is not None:
            self._write(FAULT_KEY, None)

    def _write(self, key: bytes, value: bytes | None) -> int:
        with closing(self._log.producer()) as producer:
            name = key + self._own.encode()
            producer.produce(self._place.topic, name, value, timestamp_ms=now_ms(), partition=self._place.partition)
            return producer.flush()[self._place]

    def all(self) -> Mapping[str, tuple[int, WorkerEntry]]:
        """Each worker's last entry and its offset, by name: everything before this worker's own entry, and newer ones
        that have arrived. Empty while the topic is missing."""
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
            # Older entries have an age by the writer's clock. Entries that arrive later count as new: clocks of
            # machines differ.
            age_s = 0.0 if self._own_at is None else max(0, now_ms() - record.timestamp_ms) / 1000
            self.standbys[_name(key, _STANDBYS_KEY)] = time.monotonic() - age_s, standbys

    def newest_reset(self, admin: Admin) -> Reset | None:
        """The newest reset written before this call. None also while the topic is missing."""
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
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._found.clear()
        self.standbys.clear()
        self.faults.clear()


def _name(key: bytes, prefix: bytes) -> str:
    return key[len(prefix) :].decode(errors="replace")


def entry_name(member: GroupMember) -> str:
    """The name under which a member of the group writes its entries."""
    return member.instance_id or member.client_id
