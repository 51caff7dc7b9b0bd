"""Whether other nodes take this one, asked before any of its processes starts: a worker of a node that nobody links
with takes tasks from those that others reach, and nobody could ask for them any more.
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

# Who cannot say by then which nodes there are is not asked again: the server looks, too, and says what it meets.
_PATIENCE_S = 5.0


class _Answer(NamedTuple):
    """`why` this node is refused, empty where it is not; `is_node` once who answers has proven to be one."""

    why: str
    is_node: bool


def check_accepted(config: Config, topology: Topology) -> None:
    """Raise `ConfigurationError` when a node answers that has this node's name or its state directory, or when nodes
    of the application answer and each of them refuses this one. Nothing when one takes it, none answers or is there, or
    Kafka does not say which there are."""
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
    """Return each node's answer to this one. Nodes that do not answer are left out."""
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
    except OtherWireError:  # it is one of them, of another build
        pass
    except OSError:
        return None
    finally:
        writer.close()
    return _Answer("", is_node=True)
