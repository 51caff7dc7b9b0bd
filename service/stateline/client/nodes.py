"""The map of `GET /v1/nodes`, and the node to ask for a key. Sends nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from stateline.client.requests import Home, key_text
from stateline.serde.plain import BytesSerde, FloatSerde, IntegerSerde, JsonSerde, Serde, StringSerde
from stateline_store import InvalidArgumentError

_SERDES: Mapping[str, Serde] = {
    serde.name: serde
    for serde in (
        StringSerde(),
        JsonSerde(),
        BytesSerde(),
        IntegerSerde("int32", 4),
        IntegerSerde("int64", 8),
        FloatSerde(),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTask:
    """A node's role for a task."""

    role: str
    """`active`, `standby` or `restoring`."""
    generation: int
    """The consumer group's generation in which a worker got the task; -1 without one."""
    lag_records: int | None = None
    """Records of the changelogs that its copies lack; None if unknown."""
    restore_remaining: int | None = None
    """Offsets that a restore has left."""
    upgraded: bool = True
    """Whether its stores that are declared with timestamps have them. An upgrade adds them while stores answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of the application."""

    url: str | None
    """Its address for clients; None if it does not know one."""
    version: str
    wire: tuple[int, ...] = ()
    """Versions of the nodes' protocol that it understands."""
    spoken: int | None = None
    """The version that it speaks with the answering node. None if they are not linked, or it is that node."""
    rack: str | None = None
    reached: bool
    """Whether the answering node is linked with it."""
    reached_at_ms: int | None = None
    """The beginning of this link."""
    fault: str | None = None
    """Why there is no link."""
    tasks: Mapping[str, NodeTask] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Every node, as the answering node knows them."""

    application: str
    node: str
    """The answering node."""
    number: int
    """Grows with each change of the answering node's map."""
    nodes: Mapping[str, Node]
    stores: Mapping[str, Mapping[int, str | None]]
    """Store → partition → URL of its owner; None while the owner is unknown."""
    key_types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Owner:
    """A node and its URL."""

    node: str
    url: str


class OwnerMap:
    """The owners of partitions that this client may ask. Immutable.

    A node is left out if another node has the same URL, or if its URL is http and a `given` one is https: tokens and
    values would be sent in the clear. It is also left out if its URL means this machine, and no `given` one does.
    """

    def __init__(self, nodes: Nodes, given: Iterable[str]) -> None:
        self.application = nodes.application
        self.nodes = nodes
        addresses = [urlsplit(url) for url in given]
        secure = any(parts.scheme == "https" for parts in addresses)
        local = any(_is_loopback(parts.hostname) for parts in addresses)
        said = [each.url.rstrip("/") for each in nodes.nodes.values() if each.url is not None]
        self.owners: dict[str, Owner] = {}
        """Every node that may be asked, by URL."""
        for name, each in nodes.nodes.items():
            url = (each.url or "").rstrip("/")
            if said.count(url) == 1 and _may_be_asked(url, secure=secure, local=local):
                self.owners[url] = Owner(name, url)
        self._askable = {owner.node for owner in self.owners.values()}

    def owner(self, home: Home) -> Owner | None:
        """Return the owner of the request's partition. None for several partitions, or if no known owner may be
        asked."""
        partition = self._partition(home)
        return None if partition is None else self._of(home.store, partition)

    def agrees(self, store: str, partition: int, node: str | None) -> bool:
        """Whether the map agrees with an answer that names `node` as the partition's owner. None means that there is
        one node only."""
        if node is None:
            return False
        owner = self._of(store, partition)
        if owner is None:
            return node in self.nodes.nodes and node not in self._askable
        return owner.node == node

    def _of(self, store: str, partition: int) -> Owner | None:
        url = self.nodes.stores.get(store, {}).get(partition)
        return None if url is None else self.owners.get(url.rstrip("/"))

    def _partition(self, home: Home) -> int | None:
        only = home.partitions[0] if home.partitions is not None and len(home.partitions) == 1 else None
        serde = _SERDES.get(self.nodes.key_types.get(home.store, ""))
        count = len(self.nodes.stores.get(home.store, {}))
        if only is not None or home.key is None or serde is None or not count:
            return only
        # Imports Kafka's library, which takes long to load.
        from stateline.serde.partitioner import home_partition

        try:
            partition = home_partition(serde.parse_text(key_text(home.key)), count)
        except InvalidArgumentError:
            return None  # the server reports the error
        return partition if home.partitions is None or partition in home.partitions else None


def _may_be_asked(url: str, *, secure: bool, local: bool) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        return False
    if not named or parts.username is not None or parts.query or parts.fragment:
        return False
    if not local and _is_loopback(parts.hostname):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and not secure)


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
