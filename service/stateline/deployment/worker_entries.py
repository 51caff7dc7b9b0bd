"""What workers tell each other in ``<application.id>-nodes``, those of all nodes: of which topology each is.

    key   := 0x00 "worker/" name in the group, UTF-8: its static id, or else its client id
    value := {"topology": digest of what it runs}                       JSON

In the log: never change. What else a value has is a newer build's. A worker that has gone leaves its entry: it counts
for nothing while the group has no such member.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from stateline.deployment.nodes_topic import nodes_partition
from stateline.log.interface import Consumer, GroupMember, Log
from stateline_store import DoesNotExistError, LogUnavailableError
from stateline_store.clock import now_ms

_log = logging.getLogger(__name__)

_KEY = b"\0worker/"
_READ_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """Of one worker. `topology`: `Topology.digest`."""

    topology: str

    def encode(self) -> bytes:
        """The value of its record."""
        return orjson.dumps({"topology": self.topology})

    @classmethod
    def decode(cls, value: bytes) -> WorkerEntry | None:
        """What `encode` wrote; None for anything else, which may be a newer build's."""
        try:
            found = orjson.loads(value)["topology"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
        return cls(found) if isinstance(found, str) else None


class WorkerEntries:
    """One worker's, on its thread. What is called raises what the log raises."""

    def __init__(self, log: Log, application_id: str, own: str, entry: WorkerEntry) -> None:
        """`own` is the worker's name in the group, `entry` what it says of itself."""
        self._log = log
        self._place = nodes_partition(application_id)
        self._own = own
        self._entry = entry
        self._consumer: Consumer | None = None
        self._found: dict[str, tuple[int, WorkerEntry]] = {}
        self._own_at: int | None = None  # where its own entry is, until that was read

    def say(self) -> None:
        """Let the others know what this one is, from now on."""
        producer = self._log.producer()
        try:
            key, value = _KEY + self._own.encode(), self._entry.encode()
            producer.produce(self._place.topic, key, value, timestamp_ms=now_ms(), partition=self._place.partition)
            self._own_at = producer.flush()[self._place]
        finally:
            producer.close()
        if self._consumer is None:
            self._consumer = self._log.consumer()
            self._consumer.assign({self._place: 0})  # it reads ahead until somebody looks

    def all(self) -> Mapping[str, tuple[int, WorkerEntry]]:
        """What each has said last, by its name, and at which offset: all of it that was said before this one did, and
        what has come since. Empty while the topic has gone.
        """
        deadline = time.monotonic() + _READ_TIMEOUT_S
        while self._consumer is not None:
            try:
                records = self._consumer.poll(1000, 0.0 if self._own_at is None else 0.1)
            except DoesNotExistError as error:
                _log.warning("What other workers are is not known: %s", error)
                self.close()
                return {}
            for record in records:
                if record.key is not None and record.key.startswith(_KEY) and record.value is not None:
                    name = record.key[len(_KEY) :].decode(errors="replace")
                    if (entry := WorkerEntry.decode(record.value)) is not None:
                        self._found[name] = record.offset, entry
                if self._own_at is not None and record.offset >= self._own_at:
                    self._own_at = None
            if not records and self._own_at is None:
                break
            if time.monotonic() > deadline:
                raise LogUnavailableError(f"{self._place.topic} could not be read in {_READ_TIMEOUT_S:g} s.")
        return self._found

    def close(self) -> None:
        """Let go of the log."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._found.clear()


def entry_name(member: GroupMember) -> str:
    """Under which a member of the group has said what it is."""
    return member.instance_id or member.client_id
