"""Nodes of one application that are linked, or are not: real sockets and greetings, without Kafka, workers or HTTP."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import uvloop

from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.nodes_topic import NodeEntry
from stateline.query.open_scans import OpenScans
from stateline.query.values import Failure, Outcome, Rest
from stateline.query.wire import WireRequest
from stateline.server.contract.request_id import AskedBy
from stateline.server.guard.proofs import Proof
from stateline.server.listeners import peer_listener
from stateline.server.nodes.greeting import WIRE_VERSIONS, Hello, proven_link
from stateline.server.nodes.joining import peer_address
from stateline.server.nodes.keys import node_keys, why_alone
from stateline.server.nodes.link import Link
from stateline.server.nodes.node_map import NodeMap
from stateline.server.nodes.nodes import Nodes
from stateline.server.nodes.traffic import Counted, Traffic
from stateline.server.wire.streams import Arrivals, streams
from stateline_store import NotPresentError
from support.processes.node_secret import write_secret
from support.run.patience import HANGING_S

Accept = Callable[[Arrivals, asyncio.StreamWriter], Awaitable[None]]
GREETING = Hello("app", "one", "directory", "version", "topology", "url")
PROVEN = proven_link(GREETING, GREETING.challenge, "")


def _nothing() -> None: ...


@asynccontextmanager
async def link_to(accept: Accept) -> AsyncIterator[Link]:
    """A link, greeted by `GREETING`, to what answers as `accept` does. Closed in the end."""
    loop = asyncio.get_running_loop()

    def accepted() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(Arrivals(loop=loop), cast(Any, accept), loop=loop)

    async with await loop.create_server(accepted, "127.0.0.1") as server:
        at = server.sockets[0].getsockname()
        arrivals, writer = await streams(lambda made: loop.create_connection(made, *at))
        link = Link(arrivals, writer, GREETING, GREETING, _nothing, _nothing, Traffic())
        try:
            await link.begin()
            yield link
        finally:
            await link.close()


class HasNothing:
    """Answers of a node without copies."""

    def __init__(self) -> None:
        self.scans: OpenScans[Rest] = OpenScans()
        self.asked: list[WireRequest] = []
        self.told: list[tuple[AskedBy, str, Counted]] = []

    async def answer(self, request: WireRequest, shown: Proof | None) -> Outcome:
        self.asked.append(request)
        return Failure(NotPresentError("Nothing is here."))

    def point(self, path: str, query: str, shown: Proof | None, asked_by: AskedBy) -> bytes | None:
        return None

    def tell(self, asked_by: AskedBy, kind: str, counted: Counted, seconds: float) -> None:
        self.told.append((asked_by, kind, counted))

    def is_large(self, request: WireRequest) -> bool:
        return False

    def check(self, shown: Proof | None, store: str) -> None:
        """Everybody may ask."""

    async def ends(self, store: str, partitions: Collection[int]) -> dict[int, int]:
        return {}

    def next_commit(self) -> asyncio.Event:
        return asyncio.Event()


class LinkedNode:
    """One of them, on a loop that is there already; `peer` is where the others reach it."""

    def __init__(
        self,
        name: str,
        config: Config,
        *,
        application: str = "app",
        topology: str = "t",
        wire: tuple[int, ...] = WIRE_VERSIONS,
        tasks: str = "",
    ) -> None:
        keys = node_keys(config)
        directory = f"directory of {name}, {id(self)}"
        own = Hello(application, name, directory, "1.0", topology, f"http://{name}", wire, tasks)
        self.map = NodeMap()
        self.answers = HasNothing()
        self.nodes = Nodes(own, keys, why_alone(config), lambda: self.map, self.answers, lambda: None)
        listener = peer_listener(config)
        self.peer = peer_address(config, listener)
        if listener is not None:
            self.nodes.listen(listener, self.peer)
        self.keeping = asyncio.get_running_loop().create_task(self.nodes.keep())

    @property
    def entry(self) -> NodeEntry:
        own = self.nodes.own
        return NodeEntry(own.url, self.peer, own.directory, own.version, own.topology, "", own.tasks, own.wire)

    def answer_by(self, answers: HasNothing) -> None:
        """From who links with it next on."""
        self.answers = self.nodes._answers = answers

    def hear_of(self, name: str, entry: NodeEntry) -> None:
        self.nodes.told(name, entry)

    def is_linked_with(self, name: str) -> bool:
        return name in dict(self.nodes.links())

    def fault(self, name: str) -> str:
        return self.nodes.others[name].fault

    async def close(self) -> None:
        self.keeping.cancel()
        await asyncio.gather(self.keeping, return_exceptions=True)


def node_config(*settings: str) -> Config:
    return load_config("app", environment={}, overrides=["bootstrap.servers=localhost:9092", *settings])


def with_secret(folder: Path, secret: str = "a secret of these nodes alone") -> Config:
    return node_config(f"node.peer.secret.file={write_secret(folder, secret, f'{len(secret)}.secret')}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANGING_S):
        while not condition():
            await asyncio.sleep(0.01)


def run(scene: Coroutine[Any, Any, None]) -> None:
    """On the loop that servers run on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene)


@contextmanager
def running_node(
    name: str, config: Config, *, answers: HasNothing | None = None, **greeting: Any
) -> Iterator[LinkedNode]:
    """One on a thread of its own, for a test that has no loop; `greeting` as of `LinkedNode`."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def made() -> LinkedNode:
        node = LinkedNode(name, config, **greeting)
        if answers is not None:
            node.answer_by(answers)
        return node

    try:
        node = asyncio.run_coroutine_threadsafe(made(), loop).result(HANGING_S)
        yield node
        asyncio.run_coroutine_threadsafe(node.close(), loop).result(HANGING_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(HANGING_S)
        loop.close()


def heard_until_hung_up(place: str, said: bytes) -> bytes:
    """What the port answers to a stranger that says this, until it hangs up."""
    host, _, port = place.rpartition(":")
    heard = b""
    with socket.create_connection((host, int(port)), HANGING_S) as stranger:
        stranger.sendall(said)
        try:
            stranger.shutdown(socket.SHUT_WR)
            while more := stranger.recv(65536):
                heard += more
        except ConnectionError:
            pass
    return heard
