"""`stateline node list`: list the nodes with their versions."""

from __future__ import annotations

from contextlib import closing

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.nodes_topic import known_nodes
from stateline_store import InvalidArgumentError


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
