"""Ask other nodes whether they would link with this one, before any of its processes starts.

If no node links with this one, its workers would take tasks that no other node can ask for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.nodes_topic import NodeEntry, known_nodes
from stateline.model.topology import Topology
from stateline.server.nodes.greeting import Hello, NotANodeError, OtherWireError, RefusedError, greet
from stateline.server.nodes.joining import hello_of
from stateline.server.nodes.keys import Keys, node_keys, tls_failure
from stateline.server.nodes.nodes import opened
from stateline_store import ConfigurationError, StatelineError

# The deadline for reading the registry. The server reads it again later, and logs what is wrong.
_PATIENCE_S = 5.0


class _Answer(NamedTuple):
    """`why` the other end refuses this node; empty if it does not. `is_node`: the other end has proven to be a node."""

    why: str
    is_node: bool


def check_accepted(config: Config, topology: Topology) -> None:
    """Raise `ConfigurationError` if a running node has this node's name or state directory, or if all nodes that answer
    refuse this one.

    Does nothing if one node accepts it, no node answers, or Kafka does not return the registry in 5 s."""
    keys = node_keys(config)
    if keys is None:
        return
    try:
        with closing(configured_log(config)) as log:
            if log.embedded_file is not None:
                return
            with log.patience.for_all(_PATIENCE_S):
                found = known_nodes(log, topology.application_id)
    except StatelineError:
        return
    own = hello_of(config, topology)
    others = {n: each for n, each in found.items() if each.peer and (n, each.directory) != (own.node, own.directory)}
    answers = asyncio.run(_asked(own, keys, others))
    rivals = {n for n in answers if n == own.node or others[n].directory == own.directory}
    for node in rivals:
        if answers[node].why and answers[node].is_node:
            raise ConfigurationError(f"Node {node!r} at {others[node].peer} runs already, and {answers[node].why}.")
    refusals = {n: each.why for n, each in answers.items() if n not in rivals and each.why}
    if refusals and len(refusals) == len(answers.keys() - rivals):
        node, why = next(iter(refusals.items()))
        raise ConfigurationError(
            f"No node links with this one ({own.node!r}): node {node!r} at {others[node].peer}: {why}. It is not "
            "started, because nobody could ask it for the tasks that it would take. `stateline node forget` makes the "
            "others forget a node that is gone for good."
        )


async def _asked(own: Hello, keys: Keys, others: Mapping[str, NodeEntry]) -> dict[str, _Answer]:
    """Return the nodes' answers by name. Nodes that do not answer are left out."""
    answers = await asyncio.gather(*(_answer(own, keys, each.peer) for each in others.values()))
    return {node: answer for node, answer in zip(others, answers, strict=True) if answer is not None}


async def _answer(own: Hello, keys: Keys, place: str) -> _Answer | None:
    try:
        reader, writer = await opened(place, keys)
    except ssl.SSLError as error:
        return _Answer(tls_failure(error), is_node=False)
    except (OSError, ValueError):
        return None
    try:
        await greet(reader, writer, own, dialing=True, secret=keys.secret, place=place)
    except NotANodeError as error:
        return _Answer(str(error), is_node=isinstance(error, RefusedError))
    except OtherWireError:  # a node of another build
        pass
    except OSError:
        return None
    finally:
        writer.close()
    return _Answer("", is_node=True)
