"""`QuerySocket`: answers queries of this worker's stores over a unix socket, on the thread that owns the
stores.

The worker calls `serve_pending` between slices of its work. So no query needs a lock or sees half a slice,
and none waits longer than a slice takes. What a call does is bounded (`MAX_REQUESTS_PER_CALL`,
`MAX_SECONDS_PER_CALL`); the rest waits in its connection for the next call. The frames stand in
`stateline.query.wire`.

Rules for a client: a frame that cannot be read, or that is too large, ends the connection; a request that
makes no sense is answered with an error. A client that does not read its replies gets no further request
read, and commit events reach it as one, once it reads again. None of that ever blocks the worker.

A query that is behind its bound waits here (`wait_ms`), and is looked at again when its partition has moved:
uncommitted state moves between commits, so the worker alone knows when. These looks, too, end with the call's
share of time; the next call begins with those who were not looked at.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from stateline.query.execution import OpenScan, execute
from stateline.query.values import Failure, HostedPartition, Outcome, any_behind
from stateline.query.wire import (
    WireRequest,
    decode_message,
    decode_request,
    encode_outcome,
    encode_rows,
    frame,
)
from stateline.worker.open_scans import OpenScans, Pinned
from stateline.worker.query_connection import QueryConnection
from stateline.worker.snapshots import SnapshotMaker
from stateline_store import (
    ConfigurationError,
    InvalidArgumentError,
    IsolationLevel,
    LockedError,
    NotPresentError,
    Position,
    StatelineError,
    StoreState,
)

MAX_REQUESTS_PER_CALL = 256
MAX_SECONDS_PER_CALL = 0.005
# Requests that wait for their bound. One more is told at once that it is behind; its server may ask again.
MAX_WAITING = 1024

_log = logging.getLogger(__name__)

Lookup = Callable[[str, int], HostedPartition | None]


# Where a partition stands at an isolation level; None when a query must find out itself what is wrong.
_Standing = tuple[Position, StoreState] | None
_Place = tuple[str, int, IsolationLevel]
Message: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class _Waiting:
    """`standing` is where the partition stood when the request was found to be behind."""

    client: QueryConnection
    request: WireRequest
    deadline_s: float
    standing: _Standing


class QuerySocket:
    """The worker's end. Every method is for the thread that owns the stores.

    `lookup(store, partition)` says what this worker hosts now, or None; without `snapshots` it makes none. `declared`
    is `StoreDefinition.description` by store: who subscribes compares it with its own.

    Raises `LockedError` when a live process listens at `path`; the file of a dead one is replaced. Raises
    `ConfigurationError` when no socket can be made there: a path may have about 100 bytes.
    """

    def __init__(
        self,
        path: Path,
        lookup: Lookup,
        snapshots: SnapshotMaker | None = None,
        declared: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._path = path
        self._lookup = lookup
        self._snapshots = snapshots
        self._declared = dict(declared)
        self._listener = _listen(path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._clients: dict[int, QueryConnection] = {}
        self._waiting: list[_Waiting] = []
        self._scans = OpenScans()
        self._backlog = False  # whole requests were left in connections when the last call ended

    def serve_pending(self, timeout_s: float = 0.0) -> int:
        """Answer what has arrived and return how many requests that was.

        With nothing to do it waits up to `timeout_s` for something to arrive; a request that waits for its
        bound shortens that to its deadline.
        """
        self._move_all_bytes(self._patience(timeout_s))
        end_s = time.monotonic() + MAX_SECONDS_PER_CALL
        return self._retry_waiting(end_s) + self._answer_arrived(end_s)

    def serve_uncommitted(self, most_s: float) -> int:
        """As `serve_pending`, for `most_s` seconds, when some stores have made a commit and others have not.

        Nothing but queries at READ_UNCOMMITTED is answered, and the rest of scans: they see no difference. What else
        has arrived waits, and what is behind it on its connection.
        """
        self._move_all_bytes(0.0)
        return self._answer_arrived(time.monotonic() + most_s, _sees_no_commit)

    def announce_commit(self) -> None:
        """Tell every subscriber that something was committed. Never blocks; unread announcements become
        one.
        """
        for client in list(self._clients.values()):
            if client.subscribed:
                client.commit_due = True
                self._send(client)

    def close(self) -> None:
        """Hang up on every client and remove the socket's file. A second call does nothing."""
        for client in list(self._clients.values()):
            self._drop(client)
        if self._listener.fileno() >= 0:
            self._selector.close()
            self._listener.close()
            self._path.unlink(missing_ok=True)

    def _patience(self, timeout_s: float) -> float:
        if self._backlog or timeout_s <= 0:
            return 0.0
        if self._waiting:
            nearest = min(waiting.deadline_s for waiting in self._waiting) - time.monotonic()
            return max(0.0, min(timeout_s, nearest))
        return timeout_s

    def _move_all_bytes(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif (client := self._clients.get(key.fd)) is not None:
                self._move_bytes(client, events)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # it hung up at once, or we are out of descriptors: serve those who are here
            _log.warning("A query connection could not be accepted: %s", error)
            return
        client = QueryConnection(connection)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ)

    def _move_bytes(self, client: QueryConnection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                client.receive()
        except OSError:  # the client is gone, nothing is owed to it
            self._drop(client)
            return
        except InvalidArgumentError as error:  # no telling where the next frame begins
            self._refuse(client, error)
            return
        if events & selectors.EVENT_WRITE:
            self._send(client)

    def _answer_arrived(self, end_s: float, may_be_answered: Callable[[Message], bool] | None = None) -> int:
        """One request of each connection in turn, until there is none or the call's share is used up."""
        answered = 0
        ready = list(self._clients.values())
        self._backlog = False
        while ready and answered < MAX_REQUESTS_PER_CALL and time.monotonic() < end_s:
            ready = [client for client in ready if self._answer_next(client, may_be_answered)]
            answered += len(ready)
        self._backlog |= bool(ready)
        return answered

    def _answer_next(self, client: QueryConnection, may_be_answered: Callable[[Message], bool] | None) -> bool:
        """Whether there was a request, and it was answered."""
        if client.closed:
            return False
        try:
            body = client.next_frame()
            if body is None:
                if client.ended:
                    self._drop(client)
                return False
            message = decode_message(body)
        except InvalidArgumentError as error:
            self._refuse(client, error)
            return False
        if may_be_answered is not None and not may_be_answered(message):
            client.put_back(body)
            self._backlog = True
            return False
        self._reply_to(client, message)
        return True

    def _reply_to(self, client: QueryConnection, message: Message) -> None:
        number = message.get("id")
        match message.get("type"):
            case "query":
                self._start(client, message)
            case "more":
                self._queue(client, {"id": number, **self._more(client, message)}, message.get("scan"))
            case "drop":
                self._scans.drop(client, message.get("scan"))
            case "snapshot" if self._snapshots is not None:
                self._queue(client, {"id": number, **self._snapshots.answer(message)})
            case "subscribe":
                client.subscribed = True
                self._queue(client, {"id": number, "status": self._status(), "stores": self._declared})
            case "status":
                self._queue(client, {"id": number, "status": self._status()})
            case other:
                self._queue(client, {"id": number, "error": f"No request is of type {other!r}."})

    def _status(self) -> dict[str, int]:
        return {"pid": os.getpid(), "connections": len(self._clients), "waiting": len(self._waiting)}

    def _start(self, client: QueryConnection, message: Message) -> None:
        try:
            request = decode_request(message)
        except InvalidArgumentError as error:
            self._queue(client, {"id": message.get("id"), "error": str(error)})
            return
        outcome = self._execute(request)
        if request.wait_ms > 0 and any_behind((outcome,)) and len(self._waiting) < MAX_WAITING:
            deadline_s = time.monotonic() + request.wait_ms / 1000
            self._waiting.append(_Waiting(client, request, deadline_s, self._standing(_place(request))))
        else:
            self._answer(client, request, outcome)

    def _answer(self, client: QueryConnection, request: WireRequest, outcome: Outcome) -> None:
        rest = None if isinstance(outcome, Failure) else outcome.rows.rest
        place = (request.terms.store, request.partition)
        scan = self._scans.keep(client, place, rest, self._pinned(request)) if isinstance(rest, OpenScan) else None
        self._queue(client, {"id": request.id, "outcome": encode_outcome(outcome, scan)}, scan)

    def _pinned(self, request: WireRequest) -> Pinned | None:
        """What a scan that was begun just now keeps of what is staged."""
        hosted = self._lookup(request.terms.store, request.partition)
        if hosted is None or request.terms.isolation_level is IsolationLevel.READ_COMMITTED:
            return None
        return Pinned(hosted.store.staged_version, hosted.store.approximate_num_uncommitted_bytes)

    def _more(self, client: QueryConnection, message: Message) -> dict[str, Any]:
        """What a scan has next, or why not."""
        try:
            number, limit = int(message["scan"]), int(message["limit"])
            rows = self._scans.more(client, number, limit)
            return {"rows": encode_rows(rows, None if rows.rest is None else number)}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"Not a scan and a limit: {error!r}"}
        except StatelineError as error:
            return {"outcome": encode_outcome(Failure(error))}
        except Exception as error:  # noqa: BLE001 - as in `_execute`
            _log.exception("A scan failed")
            return {"outcome": encode_outcome(Failure(StatelineError(f"Reading on failed: {error}")))}

    def _retry_waiting(self, end_s: float) -> int:
        """Answer those whose bound is met or whose time is up; forget those whose client is gone."""
        if not self._waiting:
            return 0
        standings = {place: self._standing(place) for place in {_place(each.request) for each in self._waiting}}
        waiting, self._waiting = self._waiting, []
        still: list[_Waiting] = []
        looked_at = answered = 0
        now_s = time.monotonic()
        while looked_at < len(waiting) and now_s < end_s:
            each = waiting[looked_at]
            looked_at, now_s = looked_at + 1, time.monotonic()
            if each.client.closed:
                continue
            if self._waits_on(each, standings[_place(each.request)], now_s):
                still.append(each)
            else:
                answered += 1
        self._waiting = waiting[looked_at:] + still
        return answered

    def _waits_on(self, waiting: _Waiting, standing: _Standing, now_s: float) -> bool:
        """Whether it was not answered: its time is not up and its partition still behind."""
        request, in_time = waiting.request, now_s < waiting.deadline_s
        if in_time and (standing == waiting.standing or _is_behind(request, standing)):
            waiting.standing = standing
            return True
        outcome = self._execute(request)
        if in_time and any_behind((outcome,)):
            return True
        self._answer(waiting.client, request, outcome)
        return False

    def _standing(self, place: _Place) -> _Standing:
        store, partition, level = place
        hosted = self._lookup(store, partition)
        if hosted is None or not hosted.store.is_open:
            return None
        try:
            return hosted.store.position(level), hosted.state
        except StatelineError:
            return None

    def _execute(self, request: WireRequest) -> Outcome:
        terms, partition = request.terms, request.partition
        hosted = self._lookup(terms.store, partition)
        if hosted is None or not hosted.store.is_open:
            message = f"Partition {partition} of {terms.store!r} is not on this worker now: ask again in a moment."
            return Failure(NotPresentError(message))
        try:
            reader = hosted.store.reader(terms.isolation_level)
            return execute(request.query, reader, hosted.store.schema, partition, terms, hosted.status())
        except StatelineError as error:
            return Failure(error)
        except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception; a query must not end the worker
            _log.exception("A query of partition %d of %r failed", partition, terms.store)
            return Failure(StatelineError(f"Reading {terms.store!r} failed: {error}"))

    def _queue(self, client: QueryConnection, message: Message, scan: object = None) -> None:
        """Send a reply; `scan` is the number of the scan that it leaves open."""
        try:
            client.queue(frame(message))
        except InvalidArgumentError as error:
            self._scans.drop(client, scan)  # who asked does not learn its number, or goes on behind what was lost
            client.queue(frame({"id": message["id"], "error": str(error)}))
        self._send(client)

    def _send(self, client: QueryConnection) -> None:
        if client.closed:
            return
        try:
            client.send()
        except OSError:  # the client is gone
            self._drop(client)
            return
        if (interest := client.wanted_events()) != client.interest:
            self._selector.modify(client.socket, interest)
            client.interest = interest

    def _refuse(self, client: QueryConnection, error: InvalidArgumentError) -> None:
        _log.warning("A query connection is closed: %s", error)
        self._drop(client)

    def _drop(self, client: QueryConnection) -> None:
        if client.closed:
            return
        client.closed = True
        self._scans.drop_all(client)
        self._selector.unregister(client.socket)
        del self._clients[client.socket.fileno()]
        client.socket.close()


def _sees_no_commit(message: Message) -> bool:
    """Whether the answer is the same before and after a store's commit."""
    uncommitted = message.get("isolation_level") == IsolationLevel.READ_UNCOMMITTED.value
    return message.get("type") in ("more", "drop") or (message.get("type") == "query" and uncommitted)


def _place(request: WireRequest) -> _Place:
    return request.terms.store, request.partition, request.terms.isolation_level


def _is_behind(request: WireRequest, standing: _Standing) -> bool:
    """Whether `execute` would say so too; what it may refuse for another reason, it has to look at."""
    if standing is None or (request.terms.require_active and standing[1] is not StoreState.ACTIVE):
        return False
    return not request.terms.bound.is_met(standing[0], request.partition)


def _listen(path: Path) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before bind: Linux gives the file the socket's own mode, so that it is never open to others.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"No query socket can be made at {path} ({error}): choose a short path in a directory of your own."
        ) from error
    listener.setblocking(False)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a process that is gone."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigurationError(f"The query socket {path} cannot be replaced: {error}") from error
    raise LockedError(f"Another process answers queries at {path}: stop it, or choose another path.")
