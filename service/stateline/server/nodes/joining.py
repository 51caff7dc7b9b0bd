"""Make a server process a node of its application: its identity, its addresses, and its announcement."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

from stateline import __version__
from stateline.config.settings import Config
from stateline.deployment.nodes_topic import NodeEntry
from stateline.model.topology import Topology
from stateline.server.nodes.greeting import Hello
from stateline.server.nodes.nodes import Nodes
from stateline.server.nodes.registry import Registry
from stateline_store import RetryLaterError, StateDirectory

# Between two looks for the state directory's id, in a process that cannot write one.
_LOOK_INTERVAL_S = 1.0
_NO_ID = "The state directory has no id yet, and this process cannot write there: a worker's start gives it one."

_log = logging.getLogger(__name__)


def node_url(config: Config) -> str:
    """Return this node's URL for clients. Empty if unknown: a server that listens at every address needs `node.url`."""
    if config.node_url is not None:
        return config.node_url.rstrip("/")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(config.server_host).is_unspecified:
            return ""
    scheme = "http" if config.server_tls_key_file is None else "https"
    host = f"[{config.server_host}]" if ":" in config.server_host else config.server_host
    return f"{scheme}://{host}:{config.server_port}" if config.server_port else ""


def rack(config: Config) -> str:
    """Return this node's rack from its consumers' settings; empty without one."""
    return str(config.consumer.get("client.rack", ""))


def hello_of(config: Config, topology: Topology) -> Hello:
    """Return this node's hello. Its `directory` is empty if unknown."""
    return Hello(
        topology.application_id,
        config.node,
        _directory_id(config, topology.application_id),
        __version__,
        topology.digest(),
        node_url(config),
        tasks=topology.tasks_digest(),
    )


def _directory_id(config: Config, application: str) -> str:
    """Return the directory's id; empty if nothing has written it yet and this process cannot."""
    try:
        return str(StateDirectory(config.state_dir, application).process_id())
    except RetryLaterError:
        return ""


def peer_address(config: Config, listener: socket.socket | None) -> str:
    """Return the address where other nodes reach this one; empty if they cannot."""
    if listener is None:
        return ""
    if config.node_peer_advertised is not None:
        return config.node_peer_advertised
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = os.uname().nodename
        _log.info(
            "Other nodes are told to reach this one at %s:%d; node.peer.advertised says another address", host, port
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def joined(
    nodes: Nodes, config: Config, listener: socket.socket | None, *, announces: bool
) -> AsyncIterator[None]:
    """Be a node during the block, as soon as the state directory has an id. A server that cannot write the id waits for
    another process. `announces`: this process writes the node's record."""
    registries: list[Registry] = []

    async def join() -> None:
        while not nodes.own.directory:
            nodes.registry_fault = _NO_ID
            await asyncio.sleep(_LOOK_INTERVAL_S)
            nodes.own = replace(nodes.own, directory=_directory_id(config, nodes.own.application))
        nodes.registry_fault = ""
        registries.append(_registered(nodes, config, listener, announces=announces))

    joining, keeping = asyncio.create_task(join()), asyncio.create_task(nodes.keep())
    if nodes.own.directory:
        await joining
    try:
        yield
    finally:
        joining.cancel()
        for registry in registries:
            await asyncio.to_thread(registry.stop, leaves=not nodes.is_handed_over)
        keeping.cancel()
        await asyncio.gather(joining, keeping, return_exceptions=True)


def _registered(nodes: Nodes, config: Config, listener: socket.socket | None, *, announces: bool) -> Registry:
    """Listen for other nodes, and start the registry. Returns the registry."""
    loop = asyncio.get_running_loop()
    own = nodes.own
    entry = NodeEntry(
        own.url,
        peer_address(config, listener),
        own.directory,
        own.version,
        own.topology,
        rack(config),
        own.tasks,
        own.wire,
    )

    def told(node: str, other: NodeEntry | None, directory: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(nodes.told, node, other, directory)

    def failed(why: str) -> None:
        nodes.registry_fault = why  # atomic, so other threads read the old text or the new one

    if listener is not None:
        nodes.listen(listener, entry.peer)
    elif announces and (config.node_peer_listen or config.node_peer_secret_file):
        _log.warning("This node links with no other: %s", nodes.why_alone)
    registry = Registry(config, own.application, own.node, entry if announces else None, told, failed)
    registry.start()
    return registry
