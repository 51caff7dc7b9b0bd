"""The map of `GET /v1/nodes`, and the node to ask for a key. Decided here, asked elsewhere."""

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
    """Of the consumer group, under which a worker was given it; -1 where there is none."""
    lag_records: int | None = None
    """What its copies lack of the changelogs; None where that is not known."""
    restore_remaining: int | None = None
    """What a restore has left."""
    upgraded: bool = True
    """Whether its stores that are declared with timestamps have them; they may get them while they are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of the application."""

    url: str | None
    """Where clients reach it; None where it does not know that."""
    version: str
    wire: tuple[int, ...] = ()
    """Versions of what nodes say to each other that it understands."""
    spoken: int | None = None
    """The one that it and the node that was asked speak; None where they are not linked, and of that node itself."""
    rack: str | None = None
    reached: bool
    """Whether the node that was asked is linked with it."""
    reached_at_ms: int | None = None
    """Since when."""
    fault: str | None = None
    """Why it is not."""
    tasks: Mapping[str, NodeTask] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Every node, as the one that was asked knows them."""

    application: str
    node: str
    """Who was asked."""
    number: int
    """Grows with each change, as this node counts them."""
    nodes: Mapping[str, Node]
    stores: Mapping[str, Mapping[int, str | None]]
    """Store → partition → URL of its owner; None while nobody is known to be."""
    key_types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Owner:
    """The node that is asked for a partition."""

    node: str
    url: str


class OwnerMap:
    """Which node owns which partition, of those that may be asked from here. Immutable.

    A URL is not used that several nodes say, that is less safe than `given` (http where that is https: tokens and
    values would go in the clear), or that means this machine while `given` means another one.
    """

    def __init__(self, nodes: Nodes, given: Iterable[str]) -> None:
        self.application = nodes.application
        self.nodes = nodes
        addresses = [urlsplit(url) for url in given]
        secure = any(parts.scheme == "https" for parts in addresses)
        local = any(_is_loopback(parts.hostname) for parts in addresses)
        said = [each.url.rstrip("/") for each in nodes.nodes.values() if each.url is not None]
        self.owners: dict[str, Owner] = {}
        """By URL, every node that may be asked."""
        for name, each in nodes.nodes.items():
            url = (each.url or "").rstrip("/")
            if said.count(url) == 1 and _may_be_asked(url, secure=secure, local=local):
                self.owners[url] = Owner(name, url)
        self._askable = {owner.node for owner in self.owners.values()}

    def owner(self, home: Home) -> Owner | None:
        """Return the owner of the asked partition. None if it is not one partition, or no known owner may be asked."""
        partition = self._partition(home)
        return None if partition is None else self._of(home.store, partition)

    def agrees(self, store: str, partition: int, node: str | None) -> bool:
        """Whether this is still right when an answer says that the partition's owner is this node, or (None) that there
        is no other node."""
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
        # With Kafka's library, which takes a client longer to load than half of all else: only where it is used.
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
