"""Check whether a state directory belongs to the configured log. ``topology.json`` names the log's cluster.

Offsets of one log mean nothing in another: tables would be rebuilt from other topics, and stores with a changelog could
never start. A cluster with a new id keeps the ids of its topics, so state of the same topics still belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from stateline.deployment.stores.discarding import stored
from stateline.deployment.stores.resets import Stale
from stateline.log.interface import EMBEDDED_CLUSTER, Admin, TopicInfo
from stateline_store import ConfigurationError, StateDirectory


def refuse_other_cluster(
    directory: StateDirectory,
    target: str,
    bootstrap_servers: str,
    before: str,
    counted: Mapping[str, TopicInfo],
    admin: Admin,
) -> str:
    """Return the id of the log's cluster. Raises `ConfigurationError` if the stores here belong to another one, and
    what the log raises. `before` is the cluster in ``topology.json``, empty if unknown. `counted` are its topics."""
    now = admin.cluster_id()
    if before in ("", now) or not now or not stored(directory, Stale(everything=True)):
        return now
    found = admin.topics(counted) if counted else {}
    if any(found[name].topic_id == info.topic_id for name, info in counted.items() if name in found):
        return now
    raise ConfigurationError(
        f"The state in {directory.application} is of {_named(before)}, and bootstrap.servers = {bootstrap_servers} is "
        f"{_named(now)}: offsets of one mean nothing in the other. `stateline reset {target}` deletes the state, and "
        "the next start reads the topics from the beginning. Or set bootstrap.servers as it was, or another state.dir."
    )


def _named(cluster: str) -> str:
    return "the embedded log" if cluster == EMBEDDED_CLUSTER else f"Kafka cluster {cluster}"
