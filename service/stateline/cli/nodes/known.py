"""`stateline node list` and `forget`: the nodes that have announced themselves in the log."""

from __future__ import annotations

import socket
from contextlib import closing

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.nodes_topic import NodeEntry, known_nodes, say_node
from stateline.log.interface import Admin
from stateline_store import DoesNotExistError, InvalidArgumentError

_CONNECT_TIMEOUT_S = 3.0


def forget_node(config: Config, node: str) -> None:
    """Write that the node has left. If it lives after all, it reads this and announces itself again.

    Raises `DoesNotExistError` for an unknown node, `InvalidArgumentError` if it seems to live or the log is the
    embedded one, and what the log raises.
    """
    if embedded_path(config.bootstrap_servers, config.state_dir) is not None:
        raise InvalidArgumentError("The embedded log is one machine's: there are no nodes to forget.")
    with closing(configured_log(config)) as log, closing(log.admin()) as admin:
        known = known_nodes(log, config.application_id)
        if (entry := known.get(node)) is None:
            raise DoesNotExistError(f"No node {node!r} is known; there are {', '.join(sorted(known)) or 'none'}.")
        if listens(entry.peer):
            raise InvalidArgumentError(
                f"Node {node!r} may live: {entry.peer} answers. Stop it in order (SIGTERM), then it is forgotten."
            )
        if workers := _workers(admin, config.application_id, entry):
            raise InvalidArgumentError(
                f"Node {node!r} may live: {', '.join(workers)} is in the group. Stop it in order, or ask again when "
                f"its session is over (session.timeout.ms, {config.session_timeout_ms} here)."
            )
        say_node(log, config.application_id, node, None)


def listens(place: str) -> bool:
    """Whether a process accepts connections at this ``host:port``."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError):  # nobody listens, or it is no address
        return False
    return True


def _workers(admin: Admin, group: str, entry: NodeEntry) -> list[str]:
    """Members of the group that are workers of this node's directory, by their client ids."""
    found = [member for member in admin.members(group) if f"-{entry.directory}-" in member.client_id]
    return sorted(member.instance_id or member.member_id for member in found)


def list_nodes(config: Config) -> list[dict[str, str]]:
    """A row per node, by name. Raises `InvalidArgumentError` on the embedded log, `DoesNotExistError` before the first
    node has started, and what the log raises."""
    if embedded_path(config.bootstrap_servers, config.state_dir) is not None:
        raise InvalidArgumentError("The embedded log is one machine's: there are no nodes to list.")
    with closing(configured_log(config)) as log:
        known = known_nodes(log, config.application_id)
    return [
        {
            "node": name,
            "url": entry.url,
            "version": entry.version,
            "wire": ", ".join(map(str, sorted(entry.wire))),
            "topology": entry.topology,
            "rack": entry.rack,
        }
        for name, entry in sorted(known.items())
    ]
