"""Answer a node that has dialed this process. `link.Link` is the other end.

Requests are answered from copies of this node, or refused. They are never forwarded, so there are no circles.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from starlette.types import ASGIApp

from stateline.processes.seldom import seldom
from stateline.processes.tracing import carried_by, span
from stateline.query.open_scans import OpenScans
from stateline.query.values import Failure, Outcome, Rest
from stateline.query.wire import (
    COMMIT_EVENT,
    WireRequest,
    decode_request,
    encode_outcome,
    encode_rows,
    scan_of,
)
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.contract.request_id import AskedBy, asked_by
from stateline.server.guard.proofs import Proof, ProvenConnection
from stateline.server.nodes import http_over_link
from stateline.server.nodes.credentials import proof_in
from stateline.server.nodes.greeting import Hello
from stateline.server.nodes.node_map import HEARTBEAT, NodeMap
from stateline.server.nodes.passed_on import PassedOn, ToScans
from stateline.server.nodes.traffic import Counted, Traffic
from stateline.server.wire.exchange import Exchange, Message
from stateline.server.wire.streams import Arrivals
from stateline.server.wire.turns import let_others_in
from stateline_store import InvalidArgumentError, StatelineError

# A stopped or disconnected node reads nothing. Beyond this, it gets no more maps.
_MOST_UNSENT_BYTES = 1024 * 1024

_log = seldom(__name__)


class Answering(Protocol):
    """Answers other nodes from copies of this one. `scans` has their open scans."""

    scans: OpenScans[Rest]

    async def answer(self, request: WireRequest, shown: Proof | None) -> Outcome:
        """Return a copy's answer for the caller of this proof."""

    def point(self, path: str, query: str, shown: Proof | None, asked_by: AskedBy) -> bytes | None:
        """Return the body of the answer to a GET of one key for the caller of this proof, or None if there is none at
        once."""

    def tell(self, asked_by: AskedBy, kind: str, counted: Counted, seconds: float) -> None:
        """Report an answered message of this kind to the access log."""

    def is_large(self, request: WireRequest) -> bool:
        """Return whether a scan process should answer this. False for an unknown store."""

    def check(self, shown: Proof | None, store: str) -> None:
        """Raise `UnauthenticatedError` or `ForbiddenError` if the caller of this proof may not read this store."""

    async def ends(self, store: str, partitions: Collection[int]) -> dict[int, int]:
        """Return the next offset after the committed ones of the changelog or topic, by partition of a store on
        disk."""

    def next_commit(self) -> asyncio.Event:
        """Return the event that the next commit here sets."""


class AskingNode:
    """One connection of an asking node. `app` answers its HTTP. `traffic` counts its requests. `proven` identifies the
    connection in proofs of tokens. Large reads go `to_scans`. Create and use it on the event loop's thread."""

    def __init__(
        self,
        arrivals: Arrivals,
        writer: asyncio.StreamWriter,
        hello: Hello,
        answers: Answering,
        app: ASGIApp,
        traffic: Traffic,
        proven: ProvenConnection,
        to_scans: ToScans | None = None,
    ) -> None:
        self.hello = hello
        self._proven = proven
        self._passed_on = None if to_scans is None else PassedOn(hello, proven, to_scans)
        self._traffic = traffic
        self._answers = answers
        self._app = app
        self._scans = answers.scans
        self._told = NodeMap()
        self._answering: dict[asyncio.Task[None], object] = {}  # with the request's number
        self._exchange = Exchange(arrivals, writer, f"Node {hello.node!r}", self._take)

    async def begin(self) -> None:
        """Receive and answer requests from now on."""
        await self._exchange.begin()

    def say(self, own: NodeMap) -> None:
        """Send this node's map, as the differences to the last one."""
        if self._exchange.alive and self._exchange.unsent_bytes < _MOST_UNSENT_BYTES:
            self._exchange.send(HEARTBEAT if own is self._told else own.to_json(self._told))
            self._told = own

    async def ended(self) -> None:
        """Wait until the connection has ended. Then cancel the node's requests and close its scans."""
        try:
            await self._exchange.ended()
        finally:
            for task in self._answering:
                task.cancel()
            self._scans.drop_all(self)
            if self._passed_on is not None:
                await self._passed_on.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._exchange.close()

    def _take(self, message: Message) -> None:
        match message.get("type"):
            case "point":
                self._answer_point(message)
            case "query" | "more" | "ends" | "http":
                task = asyncio.create_task(self._reply_to(message))
                self._answering[task] = message.get("id")
                task.add_done_callback(self._answering.pop)
            case "cancel":
                for task, number in self._answering.items():
                    if number == message.get("id"):
                        task.cancel()
            case "wake":
                task = asyncio.create_task(self._say_commit(self._answers.next_commit()))
                self._answering[task] = message.get("id")
                task.add_done_callback(self._answering.pop)
            case "drop":
                self._scans.drop(self, message.get("scan"))
                self._tell_scans(message)
            case "hold":
                wanted = message.get("scans")
                self._scans.hold(self, wanted if isinstance(wanted, list) else ())
                self._tell_scans(message)
            case other:
                self._exchange.send({"id": message.get("id"), "error": f"No request is of type {other!r:.100}."})

    def _tell_scans(self, message: Message) -> None:
        if self._passed_on is not None:
            self._passed_on.tell(message)

    def _answer_point(self, message: Message) -> None:
        try:
            self._exchange.send({"id": message.get("id"), "body": self._point(message)})
        except InvalidArgumentError:  # too large for a frame: the following query reports it
            self._exchange.send({"id": message.get("id"), "body": None})

    def _point(self, message: Message) -> str | None:
        path, query = message.get("path"), message.get("query")
        if not isinstance(path, str) or not isinstance(query, str):
            return None
        try:
            body = self._answers.point(path, query, proof_in(message, self._proven), asked_by(self.hello.node, message))
        except StatelineError:
            return None
        except Exception:  # noqa: BLE001 - a defect: the following query meets it, too, and reports it
            _log.exception("A request of node %r could not be answered at once", self.hello.node)
            return None
        if body is None:
            return None
        self._traffic.answers[self.hello.node, "ok"] += 1
        return body.decode()

    async def _reply_to(self, message: Message) -> None:
        try:
            match message["type"]:
                case "query":
                    reply = await self._answered(message)
                case "more":
                    reply = await self._read_on(message)
                case "ends":
                    reply = {"ends": list((await self._ends(message)).items())}
                case _:
                    with self._traffic.answering(self.hello.node) as counted:
                        proof = proof_in(message, self._proven)
                        reply = await http_over_link.answered(self._app, message, self.hello.node, proof)
                        counted.note_status(reply.get("status", 500))
        except (InvalidArgumentError, KeyError, TypeError, ValueError) as error:
            reply = {"error": without_paths(f"Not understood: {error!r:.500}")}
        except StatelineError as error:
            reply = {"outcome": encode_outcome(Failure(error))}
        except Exception:  # noqa: BLE001 - a defect: without a reply, the caller would wait in vain
            _log.exception("A request of node %r could not be answered", self.hello.node)
            reply = {"error": "Something unexpected went wrong: see that node's log."}
        try:
            self._exchange.send({"id": message.get("id"), **reply})
        except InvalidArgumentError as error:  # too large for a frame
            self._scans.drop(self, scan_of(reply))  # the other end never gets its number
            self._exchange.send({"id": message.get("id"), "error": str(error)})

    @contextmanager
    def _answering_to(self, message: Message) -> Iterator[Counted]:
        """Count the block's answer, and report it to the access log."""
        began_s, counted = time.perf_counter(), Counted()
        try:
            with self._traffic.answering(self.hello.node, counted):
                yield counted
        finally:
            seconds = time.perf_counter() - began_s
            self._answers.tell(asked_by(self.hello.node, message), message["type"], counted, seconds)

    async def _ends(self, message: Message) -> dict[int, int]:
        return await self._answers.ends(str(message["store"]), [int(partition) for partition in message["partitions"]])

    async def _say_commit(self, commit: asyncio.Event) -> None:
        await commit.wait()
        if self._exchange.alive:
            self._exchange.send(COMMIT_EVENT)

    async def _answered(self, message: Message) -> dict[str, Any]:
        request = decode_request(message)
        made = span(f"answer {self.hello.node}", {"store": request.terms.store}, "SERVER", carried_by(message))
        with made, self._answering_to(message) as counted:
            counted.store, counted.level = request.terms.store, request.terms.isolation_level.value
            if self._passed_on is not None and self._answers.is_large(request):
                reply = await self._passed_on.answered(message)
                if reply is not None:
                    counted.note_reply(reply)
                    return reply
            outcome = await self._answers.answer(request, proof_in(message, self._proven))
            counted.note(outcome)
        rest = None if isinstance(outcome, Failure) else outcome.rows.rest
        scan = None if rest is None else self._scans.keep(self, (request.terms.store, request.partition), rest)
        return {"outcome": encode_outcome(outcome, scan)}

    async def _read_on(self, message: Message) -> dict[str, Any]:
        await let_others_in()  # another node may read many scans at the same time
        number, limit = int(message["scan"]), int(message["limit"])
        if self._passed_on is not None and number not in self._scans.kept:
            with self._answering_to(message) as counted:
                reply = await self._passed_on.more(message)
                if reply is not None:
                    counted.note_reply(reply)
                    return reply
        kept = self._scans.used(self, number)
        try:
            with self._answering_to(message) as counted:
                counted.store, _ = kept.place
                self._answers.check(proof_in(message, self._proven), counted.store)
                rows = await kept.scan.more(max(1, limit))
                counted.outcome, counted.rows = "ok", len(rows.entries)
        except BaseException:  # rows are lost, and the next ones would skip them
            self._scans.drop(self, number)
            raise
        if rows.rest is None:
            self._scans.drop(self, number)
            return {"rows": encode_rows(rows, None)}
        self._scans.replace(self, number, rows.rest)
        return {"rows": encode_rows(rows, number)}
