"""The other nodes of the application, and this process's links to them.

Each process of a node dials every node in the registry, and dials again when the link is lost. It sends its requests
over this link. Requests of other nodes come over the links that they have dialed (`answering`). A node's tasks are
known only from its link, while the link lives.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from stateline.deployment.nodes_topic import MOST_NODES, NodeEntry, nodes_partition
from stateline.processes.seldom import seldom
from stateline.query.values import ServedBy
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.guard.proofs import ProvenConnection
from stateline.server.nodes.answering import Answering, AskingNode
from stateline.server.nodes.claims import Claims
from stateline.server.nodes.greeting import (
    GREETING_TIMEOUT_S,
    LINK,
    Hello,
    NotANodeError,
    OtherWireError,
    greet,
    proven_link,
)
from stateline.server.nodes.keys import Keys, certificate_fault, is_loopback, tls_failure
from stateline.server.nodes.link import Link
from stateline.server.nodes.node_map import NodeMap, claimants
from stateline.server.nodes.passed_on import ToScans
from stateline.server.nodes.peer_port import PeerPort
from stateline.server.nodes.traffic import Traffic
from stateline.server.wire.streams import Arrivals, streams
from stateline_store import NotPresentError
from stateline_store.clock import now_ms

HEARTBEAT_S = 0.25
# Between two attempts to reach a node.
_DIAL_INTERVAL_S = 1.0
# A link is closed and dialed again after this long without a message.
_LOST_AFTER_S = 4.0
# After this long without a message, pending requests of a link fail.
_GIVE_UP_AFTER_S = 2.0

Purpose = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Hello, ProvenConnection], Awaitable[None]]

_log, _crowd_log = logging.getLogger(__name__), seldom(f"{__name__}.crowd")


class Dialed(NamedTuple):
    """A connection to another node beside the link. `proven` identifies it in proofs of tokens."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    proven: ProvenConnection


@dataclass
class Other:
    """Another node of the registry. `fault` is why there is no link. It is empty while there is a link, or one is being
    made. `reached_at_ms` is the time of the present link. `is_away`: nobody answers there;
    `refuses_tls`: one of the two does not take the other's certificate."""

    entry: NodeEntry
    link: Link | None = None
    said_url: str | None = None
    fault: str = ""
    reached_at_ms: int | None = None
    is_away: bool = False
    refuses_tls: bool = False
    dialing: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def url(self) -> str | None:
        """The URL for clients, or None if unknown. The node's own word over a link counts first. The registry's counts
        only before the first link, because any writer of the topic can set it."""
        return (self.entry.url if self.said_url is None else self.said_url) or None


class Nodes:
    """One per server process, for the event loop's thread.

    `own_map` returns what this node has now. `answers` answers other nodes' requests. `on_change` is called when a node
    comes or goes, has other tasks, or has committed. Without `keys`, there are no links; `why_alone` has the reason.
    """

    def __init__(
        self,
        own: Hello,
        keys: Keys | None,
        why_alone: str,
        own_map: Callable[[], NodeMap],
        answers: Answering,
        on_change: Callable[[], None],
        *,
        bounded: Callable[[NodeMap], NodeMap] = lambda told: told,
    ) -> None:
        self.own = own
        self.others: dict[str, Other] = {}
        self.is_heard = False
        """Whether the registry was read up to this node's own record, the last one."""
        self.left: dict[str, str] = {}
        """Directories of the last `MOST_NODES` nodes that left, by name; empty text if unknown."""
        self.number = now_ms()
        """Grows with each change of any node's map."""
        self.traffic = Traffic()
        self.rivals: dict[str, str] = {}
        """Messages about nodes that have this node's name or directory, by name."""
        self.is_handed_over = False
        """Whether another process is this node from now on."""
        self.registry_fault = ""
        """Why the registry cannot be read; empty if it can."""
        self.app: ASGIApp = _no_app
        """Answers HTTP requests of other nodes. Set before this node listens."""
        self.bounded = bounded
        """Removes stores and pipelines from another node's map that the application does not have."""
        self.claims: Claims | None = None
        """Decides which nodes may own a task. None: every node that says so."""
        self.purposes: dict[str, Purpose] = {}
        """Answer nodes that dialed for `greeting.COPY` or `greeting.READ`, until the connection ends. Set before this
        node listens."""
        self.to_scans: ToScans | None = None
        """Connects other nodes' large reads with a scan process of this node. None if this process answers them."""
        self.why_alone = why_alone
        self._keys = keys
        self._own_map = own_map
        self._own_number = 0
        self._answers = answers
        self._on_change = on_change
        self._owners: dict[str, Link] = {}  # by task; cleared at each change of a map
        self._last_owners: dict[str, tuple[str, str]] = {}  # name and URL, by task
        self._logged: dict[str, str] = {}  # by node, why there is no link
        self._asking: set[AskingNode] = set()
        self._accepting: asyncio.Task[None] | None = None

    @property
    def shown(self) -> str | None:
        """This node's name in answers; None without other nodes."""
        return self.own.node if self.others else None

    @property
    def known(self) -> set[str]:
        """All nodes that the registry has named, also those that left, and this one."""
        return {*self.others, *self.left} | ({self.own.node} if self.is_heard else set())

    @property
    def has_neighbours(self) -> bool:
        """Whether another node is known: from the registry, or because it dialed this one. The second also works while
        this node is cut off from Kafka."""
        return bool(self.others or self._asking)

    def owner(self, task_id: str) -> Link | None:
        """Return the link to the task's owner, or None if no linked node may own it."""
        known = self._owners.get(task_id)
        if known is not None and known.alive:
            return known
        link = next(filter(partial(self._may_own, task_id), self.claimants(task_id)), None)
        if link is not None:
            self._owners[task_id] = link
        return link

    def claimants(self, task_id: str) -> list[Link]:
        """Return the links to all nodes that say that they own this task, even if this does not count."""
        names = claimants(task_id, ((name, link.map) for name, link in self.links()))
        return [link for name in names if (link := self.link(name)) is not None]

    def _may_own(self, task_id: str, link: Link) -> bool:
        return self.claims is None or self.claims.counts(task_id, link.hello.node, link.claimed_at_ms)

    def may_answer(self, task_id: str, link: Link, served_by: ServedBy) -> bool:
        """Whether the node's copy may be the newest one, although the node is not known to be the owner. The node's own
        word is not enough."""
        if self.claims is None:
            return True
        if served_by == "active":
            return self._may_own(task_id, link)
        return self.claims.may_answer(task_id, link.hello.node)

    def has_worker(self, node: str) -> bool:
        """Whether Kafka's group has a worker of this node. True if nothing checks claims."""
        return self.claims is None or self.claims.has_worker(node)

    def note_assigned(self) -> None:
        """Note that Kafka's group has a new assignment."""
        self._changed()

    def directories(self) -> dict[str, str]:
        """Return the directory ids of all known nodes by name. A linked node's own word wins over the registry."""
        others = {name: each.entry.directory for name, each in self.others.items()}
        linked = {name: link.hello.directory for name, link in self.links()}
        return {**others, **linked, self.own.node: self.own.directory}

    def runs(self, task_id: str) -> bool:
        """Whether a linked node says that its worker runs this task within its lease."""
        link = self.owner(task_id)
        return link is not None and link.map.tasks[task_id].role == "active"

    def last_owner_url(self, task_id: str) -> str | None:
        """Return the URL for clients of `last_owner`, only while there is no link to it. Returns None if it is linked
        or unknown."""
        last, url = self._last_owners.get(task_id, ("", ""))
        return None if self.link(last) is not None else url or None

    def last_owner(self, task_id: str) -> str | None:
        """Return the last node that said it runs this task; None if no node has, or if this node was the last."""
        return self._last_owners[task_id][0] if task_id in self._last_owners else None

    def holders(self, task_id: str, store: str, partition: int) -> list[Link]:
        """Return the links to all nodes with a copy: the owner's first, then the furthest copies."""
        owner = self.owner(task_id)
        found = [link for _, link in self.links() if task_id in link.map.tasks and link is not owner]
        found.sort(key=lambda link: -link.map.offset(store, partition))
        return found if owner is None else [owner, *found]

    def has_copies(self, task_id: str) -> bool:
        """Whether a linked node has a copy of this task."""
        return any(task_id in link.map.tasks for _, link in self.links())

    def out_of_reach(self) -> dict[str, str]:
        """Return the nodes without a link now, and why."""
        return {
            name: other.fault or ("it has said nothing for a while" if other.link else "the link is being made")
            for name, other in self.others.items()
            if self.link(name) is None
        }

    def link(self, node: str) -> Link | None:
        """Return the live link to this node, or None."""
        other = self.others.get(node)
        return None if other is None or other.link is None or not other.link.alive else other.link

    def links(self) -> Iterator[tuple[str, Link]]:
        """Return the live links by node name."""
        return ((name, link) for name in self.others if (link := self.link(name)) is not None)

    @property
    def fault(self) -> str:
        """The reason why this node cannot link with any other; empty if it can."""
        if self.rivals:
            return next(iter(self.rivals.values()))
        return self.registry_fault or (self.why_alone if self.others else "")

    @property
    def unreached(self) -> str:
        """Why no other node links with this one, although some are there. Empty if one does, or none is there."""
        if self._keys is None or self._asking or self.rivals or any(True for _ in self.links()):
            return ""
        own = _of_own_certificate(self._keys)
        there = {name: each for name, each in self.others.items() if each.fault and not each.is_away}
        refused = {name: each.fault for name, each in there.items() if own or each.refuses_tls}
        if not refused:
            return ""
        told = own or "; ".join(f"node {name!r}: {why}" for name, why in refused.items())
        return f"No other node links with this one: {told}."

    def other_topologies(self) -> list[str]:
        """Return one sentence for each node that runs another topology."""
        return [
            f"Node {name!r} runs another topology ({other.entry.topology}, Stateline {other.entry.version}) than "
            f"{self.own.node!r} ({self.own.topology}, Stateline {self.own.version}): start all with one application."
            for name, other in self.others.items()
            if other.entry.tasks != self.own.tasks and not other.is_away
        ]

    @property
    def is_settled(self) -> bool:
        """Whether the registry was read, and each of its nodes has a link or a known fault. Also True if the registry
        cannot be read, or this node makes no links."""
        if self._keys is None or self.registry_fault:
            return True
        others = self.others.items()
        return self.is_heard and all(each.fault or self.link(name) for name, each in others)

    def told(self, node: str, entry: NodeEntry | None, directory: str = "") -> None:
        """Follow a record of the registry: dial a node with a new entry, and drop a node that left (None). `directory`
        is the node's last known directory."""
        self._hear_of_rival(node, entry)
        if node == self.own.node:
            self.is_heard = True
            return
        if entry is not None and entry.directory == self.own.directory:
            entry, directory = None, ""
        known = self.others.get(node)
        if known is not None and known.entry == entry:
            return
        if known is not None:
            self._drop(node)
            if entry is None and self.is_heard:  # else it left before this node came
                _log.info("Node %r has left: others get its tasks when its session has timed out", node)
        if entry is not None:
            if not self._has_room(node):
                return
            self.left.pop(node, None)
            self._reach(node, entry)
        else:
            self.left[node] = directory or (known.entry.directory if known is not None else "")
            if len(self.left) > MOST_NODES:
                del self.left[next(iter(self.left))]
        self._changed()

    def _drop(self, node: str) -> None:
        other = self.others.pop(node)
        if other.dialing is not None:
            other.dialing.cancel()

    def _has_room(self, node: str) -> bool:
        """Whether there is room for this node. If there are too many, drop one without a link: preferably one that
        never had a link, and of these the oldest."""
        if len(self.others) < MOST_NODES:
            return True
        unlinked = [name for name in self.others if self.link(name) is None]
        never = [name for name in unlinked if self.others[name].said_url is None]
        dropped = next(iter(never or unlinked), node)
        _crowd_log.warning(
            "More than %d other nodes have announced themselves in %s: nodes without a link are ignored, the oldest "
            "first. Give nodes names that stay the same, and let nobody else write that topic.",
            MOST_NODES, nodes_partition(self.own.application).topic,
        )  # fmt: skip
        if dropped == node:
            return False
        self._drop(dropped)
        return True

    def _hear_of_rival(self, node: str, entry: NodeEntry | None) -> None:
        """Note or forget a rival. A node is a rival only while its record is newer than this node's. An older record
        with this directory is this node's earlier name."""
        own, found = (self.own.node, self.own.directory), (node, "" if entry is None else entry.directory)
        place = "" if entry is None else entry.url or entry.peer or "an unknown address"
        if found == own:
            self.rivals.clear()
        elif entry is None or (own[0] != found[0] and own[1] != found[1]):
            self.rivals.pop(node, None)
        elif own[0] == found[0]:
            self.rivals[node] = (
                f"Another directory, at {place}, calls itself node {node!r} as well: give each a node.name of its own."
            )
        else:
            self.rivals[node] = (
                f"Node {node!r}, at {place}, has the state directory of node {own[0]!r}, or a copy of it. Stop one of "
                "the two, and give it a state.dir of its own, without the copy."
            )

    def _reach(self, node: str, entry: NodeEntry) -> None:
        other = self.others[node] = Other(entry)
        if entry.url and entry.url == self.own.url:
            _log.warning("Node %r has the node.url of this one, %s: give each its own", node, entry.url)
        if self._keys is None:
            self._note(node, other, self.why_alone)
        elif not entry.peer:
            self._note(node, other, "it says no address for nodes: see its log")
        elif self._keys.secret is not None and not is_loopback(entry.peer):
            why = f"it is at {entry.peer}, and a secret links nodes of one machine alone: use certificates"
            self._note(node, other, why)
        else:
            other.dialing = asyncio.create_task(self._dial(node, other, self._keys))

    def listen(self, listener: socket.socket, place: str) -> None:
        """Accept links at this listening socket from now on. `place` is the address that other nodes get. Without keys,
        do nothing."""
        if self._keys is not None:
            port = PeerPort(self.own, self._keys, place, self._welcome)
            self._accepting = asyncio.create_task(port.accept(listener))

    async def keep(self) -> None:
        """Send this node's map and check the links, four times a second, until cancelled. Then close the links."""
        try:
            while True:
                try:
                    self.say()
                except Exception:  # noqa: BLE001 - a defect; without heartbeats, other nodes would drop this one
                    _log.exception("This node could not announce its stores")
                await self._check_links()
                await asyncio.sleep(HEARTBEAT_S)
        finally:
            running = [task for other in self.others.values() if (task := other.dialing) is not None]
            running += [] if self._accepting is None else [self._accepting]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for asking in list(self._asking):
                await asking.close()
            for _, link in list(self.links()):
                await link.close()

    def own_map(self) -> NodeMap:
        """Return this node's map as it is now, with its `number`."""
        own = self._own_map()
        if own.number != self._own_number:
            self._own_number, self.number = own.number, max(self.number + 1, now_ms())
            for task_id in own.running:
                self._last_owners.pop(task_id, None)
        return own

    def say(self) -> None:
        """Send this node's map to all nodes that ask it."""
        if not self._asking:
            return
        own = self.own_map()
        for asking in self._asking:
            asking.say(own)

    async def _check_links(self) -> None:
        """Keep scans over links open, and close links that have been silent for too long."""
        for _ in range(2):  # after a stall of this process, links first read the messages that arrived meanwhile
            await asyncio.sleep(0)
        for name, other in list(self.others.items()):
            if (link := other.link) is None:
                continue
            try:
                link.hold()
                if link.silent_s >= _GIVE_UP_AFTER_S:
                    link.give_up()
                if link.silent_s >= _LOST_AFTER_S:
                    await link.close()
            except Exception:  # noqa: BLE001 - a defect, of one link
                _log.exception("The link with node %r could not be checked", name)

    def _changed(self) -> None:
        self.number = max(self.number + 1, now_ms())
        self._owners.clear()
        if self.claims is not None:
            self.claims.forget()
        for name, link in self.links():
            owned = (task_id for task_id in link.map.running if self._may_own(task_id, link))
            self._last_owners |= dict.fromkeys(owned, (name, link.hello.url))
        self._on_change()

    async def _dial(self, node: str, other: Other, keys: Keys) -> None:
        while True:
            try:
                reader, writer = await opened(other.entry.peer, keys)
                await self._ask_over(reader, writer, node, other, keys)
            except ssl.SSLError as error:
                self._not_linked(node, other, _of_own_certificate(keys) or tls_failure(error))
                other.is_away, other.refuses_tls = False, True
            except TimeoutError:
                other.is_away = True
                self._not_linked(node, other, f"{other.entry.peer} cannot be reached: it did not answer in time")
            except (OSError, ValueError) as error:
                other.is_away = True
                self._not_linked(node, other, f"{other.entry.peer} cannot be reached: {error}")
            except (NotANodeError, OtherWireError) as error:
                other.is_away = False
                self._not_linked(node, other, _of_own_certificate(keys) or str(error))
            await asyncio.sleep(_DIAL_INTERVAL_S)

    async def _ask_over(
        self, arrivals: Arrivals, writer: asyncio.StreamWriter, node: str, other: Other, keys: Keys
    ) -> None:
        """Greet, then run the link until it ends."""
        try:
            hello = await greet(arrivals, writer, self.own, dialing=True, secret=keys.secret, place=other.entry.peer)
            other.is_away = False
            if hello.node != node:
                raise NotANodeError(f"{other.entry.peer} is node {hello.node!r}")
            if not self.own.understands(hello):
                raise NotANodeError(
                    f"it runs another topology, with Stateline {hello.version}: start all nodes with one application"
                )
        except BaseException:
            writer.close()
            raise
        link = other.link = Link(
            arrivals, writer, self.own, hello, self._changed, self._on_change, self.traffic, self.bounded,
            place=other.entry.peer,
        )  # fmt: skip
        other.fault, other.reached_at_ms, other.said_url, other.refuses_tls = "", now_ms(), hello.url, False
        self._logged.pop(node, None)
        _log.info("Linked with node %r, by version %d of the wire", node, link.wire)
        try:
            await link.begin()
            await link.ended()
        finally:
            other.link, other.reached_at_ms = None, None
            await link.close()
            self._changed()
        other.fault = "the link has ended"
        _log.info("The link with node %r has ended", node)  # the next dial logs its own result

    async def dial(self, node: str, purpose: str) -> Dialed:
        """Open another connection to a linked node, for this purpose, and greet over it. Raises `NotPresentError` if
        the node cannot be reached. The caller closes the writer."""
        other, keys = self.others.get(node), self._keys
        if other is None or keys is None or self.link(node) is None:
            raise NotPresentError(f"Node {node!r} is not linked with.")
        place, writer = other.entry.peer, None
        try:
            reader, writer = await opened(place, keys)
            own = replace(self.own, purpose=purpose)
            hello = await greet(reader, writer, own, dialing=True, secret=keys.secret, place=place)
            if (hello.node, hello.topology) != (node, self.own.topology):
                raise NotANodeError("it is another one now")
        # TimeoutError and ssl.SSLError are OSErrors.
        except (OSError, ValueError, NotANodeError, OtherWireError) as error:
            if writer is not None:
                writer.close()
            raise NotPresentError(f"Node {node!r} is not reached: {error}") from error
        return Dialed(reader, writer, proven_link(hello, hello.challenge, place))

    async def _welcome(
        self, arrivals: Arrivals, writer: asyncio.StreamWriter, hello: Hello, proven: ProvenConnection
    ) -> None:
        """Answer a node's requests until the link ends."""
        if hello.purpose != LINK:
            if (answer := self.purposes.get(hello.purpose)) is not None:
                await answer(arrivals, writer, hello, proven)
            return
        asking = AskingNode(arrivals, writer, hello, self._answers, self.app, self.traffic, proven, self.to_scans)
        self._asking.add(asking)
        asking.say(self.own_map())
        try:
            await asking.begin()
            await asking.ended()
        finally:
            self._asking.discard(asking)

    async def answer_passed_on(
        self, arrivals: Arrivals, writer: asyncio.StreamWriter, hello: Hello, proven: ProvenConnection
    ) -> None:
        """Answer large reads of a node, which a server process here passes on, until it has enough of them."""
        asking = AskingNode(arrivals, writer, hello, self._answers, self.app, self.traffic, proven)
        await asking.begin()
        await asking.ended()

    def _not_linked(self, node: str, other: Other, why: str) -> None:
        self.traffic.failed_dials[node] += 1
        other.refuses_tls = False
        self._note(node, other, why)

    def _note(self, node: str, other: Other, why: str) -> None:
        other.fault = without_paths(why)
        if self._logged.pop(node, None) != why:  # the topic may repeat a node's record many times
            log = _log if len(self.others) < MOST_NODES else _crowd_log
            log.warning("No link with node %r: %s", node, why)
        self._logged[node] = why
        if len(self._logged) > MOST_NODES:
            del self._logged[next(iter(self._logged))]


def _of_own_certificate(keys: Keys) -> str:
    """Return the fault if no node links with this one because of its certificate; else an empty text."""
    why = certificate_fault(keys)
    return f"this node's certificate (node.peer.tls.certificate.file) is taken by no other node: {why}" if why else ""


async def opened(place: str, keys: Keys) -> tuple[Arrivals, asyncio.StreamWriter]:
    """Open a connection to a node's address, `host:port`. Raises `OSError` (also as `ssl.SSLError` or `TimeoutError`),
    and `ValueError` if it is no address."""
    host, _, port = place.rpartition(":")
    name = "" if keys.dialing is not None else None  # an empty name is not sent: listeners on the way would read it
    async with asyncio.timeout(GREETING_TIMEOUT_S):
        at, loop = (host.strip("[]"), int(port)), asyncio.get_running_loop()
        return await streams(lambda made: loop.create_connection(made, *at, ssl=keys.dialing, server_hostname=name))


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotImplementedError("`app` was not set.")
