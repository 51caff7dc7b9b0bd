"""Answers queries of this worker's stores over a unix socket, on the thread that owns the stores.

The worker calls `let_in` between slices of its work. So no query needs a lock or sees half a slice, and no query waits
longer than a slice takes. One call answers at most `MAX_REQUESTS_PER_CALL` requests in `MAX_SECONDS_PER_CALL`. Further
requests wait in their connections for the next call. `stateline.query.wire` has the frames.

While only some stores have committed (`mid_commit`), only requests are answered that see no difference: queries at
READ_UNCOMMITTED, the rest of scans, and the status. Other requests wait on their connections.

An unreadable or too large frame ends the connection. An unknown request is answered with an error. While a client does
not read its replies, none of its requests is read, and commit events become one. No client ever blocks the worker. A
query that is behind its bound waits here (`waiting_queries`).
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from stateline.deployment.unix_sockets import check_user, trusted_users
from stateline.processes.seldom import seldom
from stateline.query.open_scan import OpenScan
from stateline.query.open_scans import OpenScans
from stateline.query.values import Failure, HostedPartition, Outcome, QueryRows
from stateline.query.wire import WireRequest, decode_message, decode_request, encode_outcome, encode_rows, frame
from stateline.worker.queries.hosted_queries import HostedQueries, Lookup, Owned
from stateline.worker.queries.query_connection import QueryConnection, listen
from stateline.worker.queries.waiting_queries import WaitingQueries
from stateline_store import CursorExpiredError, InvalidArgumentError, IsolationLevel, StatelineError, StoreClosedError

MAX_REQUESTS_PER_CALL = 256
MAX_SECONDS_PER_CALL = 0.005

# The step of a wait in the middle of a commit.
_HELD_BACK_S = 0.001

_log = seldom(__name__)

Message: TypeAlias = dict[str, Any]
Handler: TypeAlias = Callable[[Message], Message | None]
"""Takes a request that is no query and returns its reply, without the id; None if the request gets none."""

_NOTHING_TO_TELL: Mapping[str, Callable[[], object]] = MappingProxyType(
    {"lease_until_ms": lambda: None, "copies": dict, "fault": str, "figures": lambda: None}
)


class QuerySocket:
    """The worker's end. Call every method on the thread that owns the stores.

    `hosts` are asked in order for a store's partition. `handlers` answer other requests by type. `status` has the
    status' members (`query.wire`). `owned` is `Tasks.owned`. `declared` has `StoreDefinition.description` by store; a
    subscribing server compares it with its own. Raises like `listen`.
    """

    def __init__(
        self,
        path: Path,
        *hosts: Lookup,
        handlers: Mapping[str, Handler] = MappingProxyType({}),
        declared: Mapping[str, str] = MappingProxyType({}),
        by_clock: bool = False,
    ) -> None:
        self.hosts = list(hosts)
        self.owned: Owned = lambda store, partition: None
        self.handlers = dict(handlers)
        self.status: dict[str, Callable[[], object]] = dict(_NOTHING_TO_TELL)
        self._path = path
        self._queries = HostedQueries(
            self.hosted, lambda store, partition: self.owned(store, partition), by_clock=by_clock
        )
        self._declared = dict(declared)
        self._listener = listen(path)
        self._trusted = trusted_users(path.parent)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._clients: dict[int, QueryConnection] = {}
        self._waiting = WaitingQueries(self._queries, self._answer)
        self.scans: OpenScans[OpenScan] = OpenScans()
        self._had_server = False
        self._backlog = False  # whole requests were left in connections when the last call ended
        self._is_mid_commit = False

    def hosted(self, store: str, partition: int) -> HostedPartition | None:
        return next((found for host in self.hosts if (found := host(store, partition)) is not None), None)

    @property
    def has_clients(self) -> bool:
        return bool(self._clients)

    @property
    def has_lost_its_server(self) -> bool:
        return self._had_server and not any(client.subscribed for client in self._clients.values())

    def let_in(self, wait_s: float = 0.0, *, stay: bool = False, most_s: float | None = None) -> int:
        """Answer the requests that have arrived, and return their number. If there are none, wait up to `wait_s` for
        the first. With `stay`, answer each request that arrives within `wait_s`. Start no answer after `most_s`
        (`MAX_SECONDS_PER_CALL` by default), counted from each arrival."""
        end_s = time.monotonic() + wait_s if stay else 0.0
        answered = self._let_in_once(wait_s, most_s)
        while stay and (left_s := end_s - time.monotonic()) > 0:
            answered += self._let_in_once(left_s, most_s)
        return answered

    def _let_in_once(self, wait_s: float, most_s: float | None) -> int:
        is_at_once = self._is_mid_commit or self._backlog or wait_s <= 0
        self._move_all_bytes(0.0 if is_at_once else self._waiting.patience_s(wait_s))
        end_s = time.monotonic() + (MAX_SECONDS_PER_CALL if most_s is None else most_s)
        if not self._is_mid_commit:
            return self._waiting.answer_due(end_s) + self._answer_arrived(end_s)
        answered = self._answer_arrived(end_s, _sees_no_commit)
        if not answered and wait_s > 0:  # requests that are held back would end every wait for more
            time.sleep(min(wait_s, _HELD_BACK_S))
        return answered

    @contextmanager
    def mid_commit(self) -> Iterator[None]:
        """Within this block some stores have made a commit and others have not."""
        self._is_mid_commit = True
        try:
            yield
        finally:
            self._is_mid_commit = False

    def announce_commit(self) -> None:
        """Tell every subscriber that something was committed. Never blocks. Unread announcements become one."""
        for client in list(self._clients.values()):
            if client.subscribed:
                client.commit_due = True
                self._send(client)

    def announce_status(self) -> None:
        for client in list(self._clients.values()):
            if client.subscribed:
                self._queue(client, {"event": "commit", "status": self._status()})

    def close(self) -> None:
        """Hang up on every client and remove the socket's file. A second call does nothing."""
        for client in list(self._clients.values()):
            self._drop(client)
        if self._listener.fileno() >= 0:
            self._selector.close()
            self._listener.close()
            self._path.unlink(missing_ok=True)

    def _move_all_bytes(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif (client := self._clients.get(key.fd)) is not None:
                self._move_bytes(client, events)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # it hung up at once, or the process has no descriptor left
            _log.warning("A query connection could not be accepted: %s", error)
            return
        try:
            check_user(connection, self._trusted)
        except OSError as error:
            _log.warning("A query connection is refused: %s", error)
            connection.close()
            return
        client = QueryConnection(connection)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ)

    def _move_bytes(self, client: QueryConnection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                client.receive()
        except OSError:  # the client is gone
            self._drop(client)
            return
        except InvalidArgumentError as error:  # the next frame's beginning is unknown
            self._refuse(client, error)
            return
        if events & selectors.EVENT_WRITE:
            self._send(client)

    def _answer_arrived(self, end_s: float, may_be_answered: Callable[[Message], bool] | None = None) -> int:
        """Answer one request of each connection in turn, until there is none or the call's time is used up."""
        answered = 0
        ready = list(self._clients.values())
        self._backlog = False
        while ready and answered < MAX_REQUESTS_PER_CALL and time.monotonic() < end_s:
            ready = [client for client in ready if self._answer_next(client, may_be_answered)]
            answered += len(ready)
        self._backlog |= bool(ready)
        return answered

    def _answer_next(self, client: QueryConnection, may_be_answered: Callable[[Message], bool] | None) -> bool:
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
                self.scans.drop(client, message.get("scan"))
            case "subscribe":
                client.subscribed = self._had_server = True
                self._queue(client, {"id": number, "status": self._status(), "stores": self._declared})
            case "status":
                self._queue(client, {"id": number, "status": self._status()})
            case str(other) if other in self.handlers:
                if (reply := self.handlers[other](message)) is not None:
                    self._queue(client, {"id": number, **reply})
            case other:
                self._queue(client, {"id": number, "error": f"No request is of type {other!r}."})

    def _status(self) -> Message:
        own = {"pid": os.getpid(), "connections": len(self._clients), "waiting": len(self._waiting)}
        return {**own, **{name: told() for name, told in self.status.items()}}

    def _start(self, client: QueryConnection, message: Message) -> None:
        try:
            request = decode_request(message)
        except InvalidArgumentError as error:
            self._queue(client, {"id": message.get("id"), "error": str(error)})
            return
        outcome = self._queries.run(request)
        if not self._waiting.add(client, request, outcome):
            self._answer(client, request, outcome)

    def _answer(self, client: QueryConnection, request: WireRequest, outcome: Outcome) -> None:
        rest = None if isinstance(outcome, Failure) else outcome.rows.rest
        place = (request.terms.store, request.partition)
        scan = (
            self.scans.keep(client, place, rest, self._queries.pinned(request)) if isinstance(rest, OpenScan) else None
        )
        self._queue(client, {"id": request.id, "outcome": encode_outcome(outcome, scan)}, scan)

    def _more(self, client: QueryConnection, message: Message) -> dict[str, Any]:
        try:
            number, limit = int(message["scan"]), int(message["limit"])
            rows = self._read_on(client, number, limit)
            return {"rows": encode_rows(rows, None if rows.rest is None else number)}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"Not a scan and a limit: {error!r}"}
        except StatelineError as error:
            return {"outcome": encode_outcome(Failure(error))}
        except Exception as error:  # noqa: BLE001 - as in `HostedQueries.run`
            _log.exception("A scan failed")
            return {"outcome": encode_outcome(Failure(StatelineError(f"Reading on failed: {error}")))}

    def _read_on(self, client: QueryConnection, number: int, limit: int) -> QueryRows:
        scan = self.scans.used(client, number).scan
        try:
            rows = scan.rows(max(1, limit))
        except StoreClosedError as error:
            self.scans.drop(client, number)
            raise CursorExpiredError("The worker closed the store of this scan. Start over.") from error
        except BaseException:
            self.scans.drop(client, number)
            raise
        if rows.rest is None:
            self.scans.drop(client, number)
        return rows

    def _queue(self, client: QueryConnection, message: Message, scan: object = None) -> None:
        """Send a reply; `scan` is the number of the scan that it leaves open."""
        try:
            client.queue(frame(message))
        except InvalidArgumentError as error:
            self.scans.drop(client, scan)  # the client misses its number, or these rows
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
        self.scans.drop_all(client)
        self._selector.unregister(client.socket)
        del self._clients[client.socket.fileno()]
        client.socket.close()


def _sees_no_commit(message: Message) -> bool:
    """Return whether the answer is the same before and after a store's commit."""
    uncommitted = message.get("isolation_level") == IsolationLevel.READ_UNCOMMITTED.value
    return message.get("type") in ("more", "drop", "status") or (message.get("type") == "query" and uncommitted)
