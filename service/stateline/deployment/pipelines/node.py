"""Decide which node of an application runs its pipelines.

It is one node, because their checkpoints are in its state directory. With `pipeline.checkpoint.location`, it is any
node that reaches the location (`pipelines.lease` decides). A record of the topic ``<application.id>-nodes`` has the
node. The newest one with this key counts:

    key   := 0x00 "pipelines"                  no node is called so: no setting has this byte
    value := {"node": its name, "directory": id of its state directory}      JSON

For checkpoints at a location, it has the node that wrote it first, and ``location:`` with the location's id.

In the log: never change. The first node that starts pipelines writes it, in a transaction with the id
``<application.id>-pipelines/``. If several nodes begin at once, Kafka fences all but one, and the others find its
record. The record stays when the node stops, like the checkpoints. The node of the setting `pipeline.node` overwrites
it at its start.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import asdict, dataclass

import orjson

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.nodes_topic import PIPELINES_KEY, ensure_nodes_topic, newest_value, replace_value
from stateline.deployment.pipelines.checkpoint_location import location_id
from stateline.log.interface import Log
from stateline_store import (
    ConfigurationError,
    FencedError,
    InDoubtError,
    LogUnavailableError,
    StateDirectory,
    TopicPartition,
)

_LOCATION = "location:"
# A fenced driver retries. Drivers of many nodes may begin at once.
_ATTEMPTS = 50

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PipelinesNode:
    """A node's name, for people, and the id of its state directory or of the location. Only the id counts: nodes may be
    renamed."""

    node: str
    directory: str


def be_pipelines_node(config: Config) -> None:
    """Make this node run the application's pipelines, unless another one does. On the embedded log it always may.

    Raises `ConfigurationError` with the other node: that of `pipeline.node`, or the first that started pipelines. With
    `pipeline.checkpoint.location`, every node with the same location may run them. It raises `ConfigurationError` if
    the location differs from that of others or is unusable, and on the embedded log. Raises what the log raises.
    """
    if not config.runs_pipelines:
        raise ConfigurationError(
            f"The pipelines of {config.application_id!r} run on node {config.pipeline_node!r} (pipeline.node), and "
            f"this is node {config.node!r}: start them there."
        )
    if embedded_path(config.bootstrap_servers, config.state_dir) is not None:
        if config.pipelines_move:
            raise ConfigurationError(
                "pipeline.checkpoint.location is for nodes on Kafka; the embedded log is one machine's: leave it out."
            )
        return
    state = str(StateDirectory(config.state_dir, config.application_id).process_id())
    own = PipelinesNode(config.node, _LOCATION + location_id(config) if config.pipelines_move else state)
    with closing(configured_log(config)) as log:
        _claim(log, config, own, state)


def _claim(log: Log, config: Config, own: PipelinesNode, state: str) -> None:
    """`state` is the id of the state directory. The checkpoints may have been there before they had a location."""
    with closing(log.admin()) as admin:
        place = ensure_nodes_topic(config.application_id, admin)
    for _ in range(_ATTEMPTS):
        found = _newest(log, place)
        if found == own or (found is not None and config.pipelines_move and found.directory == own.directory):
            return
        if found is not None and config.pipeline_node is None and found.directory not in (own.directory, state):
            raise _elsewhere(config, found)
        try:
            _write(log, place, config.application_id, found, own)
        except (FencedError, InDoubtError) as error:
            _log.debug("Another driver says where pipelines run: %s", error)
    raise LogUnavailableError(f"Where pipelines run could not be written to {place.topic}: try again.")


def _elsewhere(config: Config, found: PipelinesNode) -> ConfigurationError:
    application, own = config.application_id, config.node
    if config.pipelines_move:
        return ConfigurationError(
            f"The checkpoints of {application!r} are elsewhere, as node {found.node!r} has said, and not in "
            f"{config.pipeline_checkpoint_location} as it is on this node, {own!r}: mount the same directory on all "
            f"nodes (pipeline.checkpoint.location). To have them here from now on, stop the pipelines on all nodes, "
            f"bring {application}/pipelines here from where it was, and start node {found.node!r} first, or set "
            f"pipeline.node={own} for the first start."
        )
    if found.directory.startswith(_LOCATION):
        return ConfigurationError(
            f"The checkpoints of {application!r} are where pipeline.checkpoint.location of node {found.node!r} says: "
            f"set it on this node, {own!r}, too."
        )
    here = f"this is node {own!r}" if found.node != own else f"{config.state_dir} is another directory than it had"
    return ConfigurationError(
        f"The pipelines of {application!r} run on node {found.node!r}, where their checkpoints are, and {here}: start "
        f"them there. To have them here from now on, stop them there, bring {application}/pipelines of its state "
        f"directory here, and set pipeline.node={own} on all nodes."
    )


def _write(
    log: Log, place: TopicPartition, application_id: str, found: PipelinesNode | None, own: PipelinesNode
) -> None:
    value, transactional_id = orjson.dumps(asdict(own)), f"{application_id}-pipelines/"
    replace_value(log, place, transactional_id, PIPELINES_KEY, value, lambda: _newest(log, place) == found)


def _newest(log: Log, place: TopicPartition) -> PipelinesNode | None:
    newest = newest_value(log, place, PIPELINES_KEY)
    return None if newest is None else PipelinesNode(**orjson.loads(newest))
