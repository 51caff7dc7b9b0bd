"""The connection by which this process asks another node, after the greeting.

    request := like a server's to a worker (`stateline.query.wire`): "query", "more", "drop"; HTTP (`http_over_link`)
             | {"id", "type": "hold", "scans": numbers of open scans}     repeated; has no reply
             | {"id", "type": "point", "path", "query"}     a client's GET of one key
               "query", "more", "point" and HTTP have the caller (`credentials`) and the id of the client's request.
             | {"id", "type": "ends", "store", "partitions"} | {"id", "type": "wake"}
    reply   := like a worker's, or an HTTP answer
             | {"id", "body": the answer's body, or null if there is no answer at once}
             | {"id", "ends": [[partition, next offset of its changelog]]}     without unknown partitions
    event   := the other node's map (`node_map`), a few times a second
             | {"event": "commit"}          once after "wake" (which has no reply), at the next commit

`answering` is the other end. A node asks over the link that it has dialed, and answers over links dialed by others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stateline.deployment.nodes_topic import is_server_url
from stateline.processes.seldom import seldom
from stateline.processes.tracing import carrier, span
from stateline.query.values import Failure, Outcome, Terms
from stateline.query.wire import WireRequest, encode_request
from stateline.server.contract.observation import current_request_id
from stateline.server.contract.request_id import passed_on
from stateline.server.guard.passing_on import token_to_pass_on
from stateline.server.guard.proofs import Shown
from stateline.server.nodes import http_over_link
from stateline.server.nodes.credentials import with_proof
from stateline.server.nodes.greeting import Hello, proven_link
from stateline.server.nodes.http_over_link import HttpAnswer
from stateline.server.nodes.node_map import NodeMap
from stateline.server.nodes.traffic import Traffic
from stateline.server.wire.exchange import Exchange, Message
from stateline.server.wire.scans_elsewhere import ScansElsewhere
from stateline.server.wire.streams import Arrivals
from stateline_store import InvalidArgumentError, NotPresentError, Query, StatelineError
from stateline_store.clock import boot_ms

# In addition to a request's wait for its bound.
ANSWER_TIMEOUT_S = 5.0
# After this long without a message, a node counts as away. Nodes send four maps a second.
SILENT_AFTER_S = 1.0

_log = seldom(__name__)


class Link:
    """A link to one node. Create and use it on the event loop's thread.

    - `wire` is the version that both speak. `declares_the_same`: its answers to clients are also right here.
    - `on_map` is called when it has other tasks, `on_commit` when it has committed (after `wake`).
    - `bounded` removes unknown stores and pipelines from its map. `traffic` counts requests. `place` is its address."""

    def __init__(
        self,
        arrivals: Arrivals,
        writer: asyncio.StreamWriter,
        own: Hello,
        hello: Hello,
        on_map: Callable[[], None],
        on_commit: Callable[[], None],
        traffic: Traffic,
        bounded: Callable[[NodeMap], NodeMap] = lambda told: told,
        *,
        place: str = "",
    ) -> None:
        self.hello = hello
        self.wire = own.spoken(hello)
        self.declares_the_same = own.topology == hello.topology
        self.traffic = traffic
        self.map = self._told = NodeMap()
        self._is_cut = False
        self._on_map, self._on_commit, self._bounded = on_map, on_commit, bounded
        self.claimed_at_ms = 0
        """The last change of its tasks (`clock.boot_ms`)."""
        self._has_too_much = False  # whether its map has unknown tasks
        self._is_waking = False
        self._exchange = Exchange(arrivals, writer, f"Node {hello.node!r}", self._take)
        self._proven = proven_link(hello, hello.challenge, place)
        self._scans = ScansElsewhere(self._exchange, ANSWER_TIMEOUT_S, self._with_shown)
        self._exchange.heard_at_s = asyncio.get_running_loop().time()  # the greeting was just now

    async def begin(self) -> None:
        """Receive messages from now on."""
        await self._exchange.begin()

    @property
    def alive(self) -> bool:
        """Whether the node is connected, and sent a message within `SILENT_AFTER_S`."""
        return self._exchange.alive and self.silent_s < SILENT_AFTER_S

    @property
    def silent_s(self) -> float:
        """Return the seconds since its last message."""
        return asyncio.get_running_loop().time() - self._exchange.heard_at_s

    async def query(
        self,
        terms: Terms,
        partition: int,
        query: Query[Any],
        wait_ms: int,
        shown: Shown | None,
        *,
        timestamped: bool | None = None,
    ) -> Outcome:
        """Return the answer of that node's copy, for the caller of this token.

        `timestamped` decides whether values have timestamps. None: as that node stores them. Raises `NotPresentError`
        if the node does not answer, and `StatelineError` if it does not understand."""
        request = WireRequest(self._exchange.number(), terms, partition, query, wait_ms, timestamped)
        timeout_s = wait_ms / 1000 + (ANSWER_TIMEOUT_S if self.alive else SILENT_AFTER_S)
        hop = span(f"ask {self.hello.node}", {"store": terms.store, "partition": partition}, "CLIENT")
        with hop, self.traffic.forwarding(self.hello.node) as counted:
            message = encode_request(request) | carrier() | passed_on(current_request_id())
            message = with_proof(message, shown, self._proven)
            outcome = self._scans.outcome(await self._reply(message, timeout_s))
            counted.note(outcome)
        if isinstance(outcome, Failure) and not is_server_url(outcome.owner):
            return Failure(outcome.error, outcome.position)
        return outcome

    def point(
        self, path: str, query: str, shown: Shown | None, request_id: str, later: Callable[[bytes | None], None]
    ) -> None:
        """Ask for one key by a client's URL (ASCII). `later` is called once with the answer's body, or with None.

        After None, call `query`, which returns the reason. Raises `NotPresentError` if the node is gone."""
        began_s = time.perf_counter()

        def on_reply(reply: Message | None) -> None:
            body = None if reply is None else reply.get("body")
            if isinstance(body, str):  # without an answer, the following query counts
                self.traffic.forwarded(self.hello.node, "ok", time.perf_counter() - began_s)
                later(body.encode())
            else:
                later(None)

        message = {"id": self._exchange.number(), "type": "point", "path": path, "query": query}
        message |= passed_on(request_id)
        self._exchange.ask(with_proof(message, shown, self._proven), on_reply)

    async def ends(self, store: str, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset after the last committed one in the changelog or topic, by partition of a store on disk.

        Partitions that the node does not know are left out. Raises `StatelineError` if the node does not answer."""
        message = {"id": self._exchange.number(), "type": "ends", "store": store, "partitions": list(partitions)}
        reply = await self._reply(message, ANSWER_TIMEOUT_S)
        try:
            return {int(partition): int(end) for partition, end in reply["ends"]}
        except (KeyError, TypeError, ValueError) as error:
            raise StatelineError(f"Node {self.hello.node!r} does not say what is committed: {error!r}") from error

    def wake(self) -> None:
        """Call `on_commit` once, at that node's next commit."""
        if not self._is_waking and self._exchange.alive:
            self._is_waking = True
            self._exchange.send({"id": self._exchange.number(), "type": "wake"})

    async def http(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float = http_over_link.TIMEOUT_S,
    ) -> HttpAnswer:
        """Return that node's answer to a client's request. `path` includes the query string.

        After `timeout_s`, or if the caller is cancelled, the request also ends there. Raises `NotPresentError` if the
        node does not answer, and `StatelineError` if it cannot, or the answer is too large."""
        with (
            span(f"ask {self.hello.node}", {"method": method}, "CLIENT"),
            self.traffic.forwarding(self.hello.node) as counted,
        ):
            sent = {**headers, **carrier()}
            message = http_over_link.encode_request(self._exchange.number(), method, path, sent, body)
            reply = await self._reply(self._with_shown(message), timeout_s)
            answer = http_over_link.decode_answer(reply, self.hello.node)
            counted.note_status(answer.status)
        return answer

    def _with_shown(self, message: Message) -> Message:
        return with_proof(message | passed_on(current_request_id()), token_to_pass_on(), self._proven)

    async def _reply(self, message: Message, timeout_s: float) -> Message:
        """Return the node's reply. After `timeout_s`, or if the caller is cancelled, end the request there, too."""
        try:
            return await self._exchange.request(message, timeout_s)
        except (NotPresentError, asyncio.CancelledError):
            if self._exchange.alive:
                self._exchange.send({"id": message["id"], "type": "cancel"})
            raise

    def hold(self) -> None:
        """Keep the open scans at that node. Repeat this call."""
        self._scans.hold()

    def give_up(self) -> None:
        """Fail all pending requests, like a lost connection."""
        self._exchange.give_up()

    async def ended(self) -> None:
        """Wait until the connection has ended."""
        await self._exchange.ended()

    async def close(self) -> None:
        """Close the connection. Pending requests fail."""
        await self._exchange.close()

    def _take(self, message: Message) -> None:
        match message.get("event"):
            case "map":
                self._take_map(message)
            case "commit":
                self._is_waking = False
                self._on_commit()
            case _:
                self._scans.refuse(message)

    def _take_map(self, message: Message) -> None:
        known = self.map
        try:
            told = NodeMap.from_json(message, self._told)
        except InvalidArgumentError as error:
            _log.warning("Node %r: %s", self.hello.node, error)
            return
        if told is self._told and not self._is_cut:
            return
        self._told, self.map = told, self._bounded(told)
        self._is_cut = self.map != told  # more partitions may become known here
        if (foreign := len(told.tasks) - len(self.map.tasks)) and not self._has_too_much:
            _log.warning("Node %r says that it has %d tasks that are not known here: ignored", self.hello.node, foreign)
        self._has_too_much = bool(foreign)
        if known.tasks != self.map.tasks:
            self.claimed_at_ms = boot_ms()
            self._on_map()
