"""The server's end of one worker's query socket (`stateline.query.wire`). For the event loop's thread only.

The server asks each worker repeatedly for a sign of life (`status`), because a worker that hangs keeps its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from stateline.deployment.unix_sockets import connected
from stateline.query.values import Outcome, Terms
from stateline.query.wire import WireRequest, encode_request
from stateline.server.wire.exchange import Exchange, Message
from stateline.server.wire.scans_elsewhere import ScansElsewhere
from stateline.server.wire.streams import Arrivals, streams
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import KeyQuery, NotReadyError, Query, StatelineError
from stateline_store.clock import boot_ms
from stateline_store.snapshots.checkpoints import CheckpointPart

# A worker answers between slices of a few milliseconds. A commit or a rebalance may delay it for seconds.
ANSWER_TIMEOUT_S = 10.0
# After this long, a request for one key is repeated in a task.
POINT_TIMEOUT_S = 1.0
# After this long without a sign of life, a worker counts as unreachable. Queries still wait for it.
SILENT_AFTER_S = 3.0

# Requests are counted from 1.
_SUBSCRIPTION = 0
_SIGN_OF_LIFE = -1

_log = logging.getLogger(__name__)


class LinkedParts(NamedTuple):
    """Files that a worker has linked into a snapshot. For stores of whole epochs also their numbers, each with the
    topic and the partition of its markers (`Topology.epoch_numbers`)."""

    parts: list[CheckpointPart]
    epochs: Sequence[tuple[str, int, int]]


class LinkedForCopy(NamedTuple):
    """Files that a worker has linked for another node or a backup, the ids of the topics that they were made from, and
    the offset in its changelog by the directory of each part that has one. For a backup: `Backup.committed` of all its
    running tasks, and the reason for each task that it lacks."""

    parts: list[CheckpointPart]
    topics: Mapping[str, str]
    offsets: Mapping[str, int]
    committed: Mapping[str, Mapping[str, Sequence[Any]]]
    lacks: Mapping[str, str]


class WorkerConnection:
    """A connection to one worker. Each of the worker's commits calls `on_commit`. Requests may overlap.

    The answer to the subscription also calls `on_commit`, because earlier commits were not announced here.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        writer: asyncio.StreamWriter,
        on_commit: Callable[[], None],
        limits: TimeLimits,
    ) -> None:
        self._exchange = Exchange(arrivals, writer, "The worker", self._take)
        self._scans = ScansElsewhere(self._exchange, ANSWER_TIMEOUT_S)
        self._on_commit = on_commit
        self._limits = limits
        # The last request for a sign of life. The answer to the subscription is the first sign.
        self._asked_at_s = asyncio.get_running_loop().time()
        self._declared: dict[str, str] = {}  # from the first answer, to the subscription
        self.lease_until_ms: float = 0
        """The end of its lease (`clock.boot_ms`), by its last status."""
        self.fault = ""
        """Why it does not run its tasks, by its last status; empty while it does."""
        self.figures: bytes | None = None
        """Its figures, if it cannot write them to its file; None while it can."""
        self.wanted_copies: Mapping[str, Sequence[str]] = {}
        """The stores that it wants from another node, by task, by its last status."""

    @classmethod
    async def open(
        cls, path: Path, on_commit: Callable[[], None], limits: TimeLimits, trusted: Collection[int] | None = None
    ) -> WorkerConnection:
        """Connect to the worker's socket and subscribe. Raises `OSError` if no process listens there, and
        `PermissionError` if its user is not `trusted` (default: root and this user)."""
        loop = asyncio.get_running_loop()
        to_worker = connected(path, (0, os.geteuid()) if trusted is None else trusted)
        arrivals, writer = await streams(lambda made: loop.create_unix_connection(made, sock=to_worker))
        connection = cls(arrivals, writer, on_commit, limits)
        await connection._exchange.begin()
        connection._exchange.send({"id": _SUBSCRIPTION, "type": "subscribe"})
        return connection

    @property
    def alive(self) -> bool:
        """Whether the connection is open, as far as this end knows."""
        return self._exchange.alive

    @property
    def owns_tasks(self) -> bool:
        """Whether the connection is open, and the worker's lease holds, so that no other process has its tasks now.
        Makes few calls, because each read asks."""
        exchange, until_ms = self._exchange, self.lease_until_ms
        return not exchange.is_over and not exchange.is_closing() and (until_ms == math.inf or boot_ms() < until_ms)

    @property
    def answers(self) -> bool:
        """Whether the worker is connected, has answered once, and owes no sign of life for `SILENT_AFTER_S`."""
        if not self._exchange.heard_at_s:  # its lease is unknown, so its tasks would be standbys
            return False
        silent_s = asyncio.get_running_loop().time() - self._asked_at_s
        return self.alive and (not self._is_owed or silent_s < SILENT_AFTER_S)

    def look_after(self) -> None:
        """Ask for a sign of life, unless one is owed already."""
        if self.alive and not self._is_owed:
            self._asked_at_s = asyncio.get_running_loop().time()
            self._exchange.send({"id": _SIGN_OF_LIFE, "type": "status"})

    @property
    def _is_owed(self) -> bool:
        """Whether the worker has not answered the last request for a sign of life."""
        return self._exchange.heard_at_s < self._asked_at_s

    async def query(self, terms: Terms, partition: int, query: Query[Any], wait_ms: int, declared: str) -> Outcome:
        """Return the worker's answer.

        Raises `NotPresentError` if the worker does not answer, and `StatelineError` if it cannot. Raises
        `NotReadyError` if its declaration of the store differs from `declared` (`StoreDefinition.description`), or if
        the server stops while the query may wait.
        """
        message = encode_request(WireRequest(self._exchange.number(), terms, partition, query, wait_ms))
        within = self._limits.within if wait_ms else asyncio.timeout
        reply = await self._exchange.request(message, wait_ms / 1000 + ANSWER_TIMEOUT_S, within)
        outcome = self._scans.outcome(reply)
        if (theirs := self._declared.get(terms.store, declared)) != declared:
            raise NotReadyError(
                f"The worker has {terms.store!r} as {theirs}, and this server has it as {declared}: the same bytes "
                "would be read as something else. Start both with the same application."
            )
        return outcome

    def point(
        self, terms: Terms, partition: int, key: KeyQuery, declared: str, later: Callable[[Outcome | None], None]
    ) -> None:
        """Look up one key without waiting in a task. `later` is called once with the answer, or with None if no usable
        one comes within `POINT_TIMEOUT_S`. Raises `NotPresentError` if the worker is gone."""
        number = self._exchange.number()

        def on_reply(reply: Message | None) -> None:
            timer.cancel()
            outcome = None
            if reply is not None and self._declared.get(terms.store, declared) == declared:
                with contextlib.suppress(StatelineError):  # `query` reports it
                    outcome = self._scans.outcome(reply)
            later(outcome)

        def on_timeout() -> None:
            self._exchange.forget(number)
            later(None)

        self._exchange.ask(encode_request(WireRequest(number, terms, partition, key, 0)), on_reply)
        timer = asyncio.get_running_loop().call_later(POINT_TIMEOUT_S, on_timeout)

    async def snapshot(self, snapshot: str, places: Sequence[tuple[str, int]]) -> LinkedParts:
        """Let the worker link these store partitions into a snapshot's directory, all at one commit. Raises
        `NotPresentError` if the worker does not answer, or the worker's error."""
        reply = await self._linked("snapshot", snapshot, places)
        if "parts" in reply:
            epochs = [(str(topic), int(partition), int(number)) for topic, partition, number in reply["epochs"]]
            return LinkedParts([CheckpointPart.from_json(part) for part in reply["parts"]], epochs)
        raise self._scans.failure(reply, "made no snapshot")

    async def link_for_copy(
        self, snapshot: str, places: Sequence[tuple[str, int]], *, is_backup: bool = False
    ) -> LinkedForCopy:
        """Let the worker link stores for a copy on another node, also of a standby, or for a backup, its own alone.
        Raises like `snapshot`."""
        reply = await self._linked("backup" if is_backup else "copy", snapshot, places)
        if "parts" in reply and "topics" in reply:
            parts = [CheckpointPart.from_json(part) for part in reply["parts"]]
            return LinkedForCopy(parts, reply["topics"], reply["offsets"], reply["committed"], reply.get("lacks", {}))
        raise self._scans.failure(reply, "made no copy")

    async def _linked(self, type_: str, snapshot: str, places: Sequence[tuple[str, int]]) -> Message:
        number, listed = self._exchange.number(), [list(each) for each in places]
        message = {"id": number, "type": type_, "snapshot": snapshot, "places": listed}
        return await self._exchange.request(message, ANSWER_TIMEOUT_S)

    def say_copying(self, task_id: str, *, ended: bool = False, why: str = "") -> None:
        """Tell the worker that its copy is coming, or has `ended`. `why` is the reason if there is none."""
        if self.alive:
            told = {"id": self._exchange.number(), "type": "copying", "task": task_id, "ended": ended, "why": why}
            self._exchange.send(told)

    def say_unreached(self, why: str) -> None:
        """Tell the worker that no other node reaches this one."""
        if self.alive:
            self._exchange.send({"id": self._exchange.number(), "type": "unreached", "why": why})

    async def close(self) -> None:
        """Close the connection. Pending queries fail."""
        await self._exchange.close()

    def _take(self, message: Message) -> None:
        if (status := message.get("status")) is not None:
            until_ms = status["lease_until_ms"]
            self.lease_until_ms = math.inf if until_ms is None else until_ms
            self.wanted_copies = status["copies"]
            self.fault = str(status["fault"])
            figures = status["figures"]
            self.figures = None if figures is None else orjson.dumps(figures)
        if message.get("event") == "commit" or message.get("id") == _SUBSCRIPTION:
            self._declared = message.get("stores", self._declared)
            self._on_commit()
        else:
            self._scans.refuse(message)  # the caller left before the answer
