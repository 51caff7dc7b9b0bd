"""`AskedNodes`: finds the keeper of a snapshot, and asks other nodes for their parts.

A snapshot's id begins with digits of the id of its keeper's directory, so every node finds the keeper. Requests to
another node go over the link, with a proof of the caller's token. `part_routes` answers them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import orjson

from stateline.config.settings import Config
from stateline.problem_kinds import error_of
from stateline.server.nodes.http_over_link import HttpAnswer
from stateline.server.nodes.joining import node_url
from stateline.server.nodes.nodes import Nodes
from stateline.server.relay.node_streams import streamed
from stateline_store import NotPresentError, NotReadyError, StatelineError
from stateline_store.snapshots.snapshot_directory import is_snapshot_id

PART = "/v1/snapshots/{id}/part"
PART_ROWS = f"{PART}/rows"
OK, OTHER_EPOCHS = 200, 409
TIMEOUT_S = 20.0  # a worker has 10 s to make its part
# In ids of snapshots, on disk: never change.
_DIRECTORY_DIGITS, _OWN_DIGITS = 8, 16


@dataclass
class NodeRefusedError(Exception):
    """A node does not do its part, because of `error`. `owner` is its URL, if known. `store` and `partition` are one of
    its places, if any."""

    error: StatelineError
    owner: str | None = None
    store: str | None = None
    partition: int | None = None


class AskedNodes:
    """One per server process, for the event loop's thread. An embedded log has no other node."""

    def __init__(self, config: Config, nodes: Nodes | None) -> None:
        self._nodes = nodes
        self._own_url = node_url(config)
        self.own = "" if self._nodes is None else self._nodes.own.node
        """This node's name."""

    @property
    def shown(self) -> str | None:
        """Return this node's name for answers; None while there is no other node."""
        return None if self._nodes is None else self._nodes.shown

    @property
    def linked(self) -> list[str]:
        """Return the names of the nodes that can be asked."""
        return [] if self._nodes is None else [name for name, _ in self._nodes.links()]

    @property
    def unreached(self) -> list[str]:
        """Return the names of known nodes that cannot be asked."""
        return [] if self._nodes is None else sorted(self._nodes.out_of_reach())

    def owner(self, task_id: str) -> str | None:
        """Return the other node that owns this task; None if none is known."""
        link = None if self._nodes is None else self._nodes.owner(task_id)
        return None if link is None else link.hello.node

    def url(self, node: str) -> str | None:
        """Return the URL at which clients reach this node, if known."""
        if node == self.own:
            return self._own_url or None
        other = None if self._nodes is None else self._nodes.others.get(node)
        return None if other is None else other.url

    def new_id(self, node: str) -> str:
        """Return an id for a snapshot with this keeper."""
        digits = secrets.token_hex(_OWN_DIGITS // 2)
        if self._nodes is None:
            return secrets.token_hex(_DIRECTORY_DIGITS // 2) + digits
        directory = self._nodes.own.directory if node == self.own else self._nodes.others[node].entry.directory
        return directory[:_DIRECTORY_DIGITS] + digits

    def keeper(self, snapshot_id: str) -> str | None:
        """Return the keeper of this snapshot; None if no known node is, or if it is no id of a snapshot."""
        if self._nodes is None:
            return self.own
        if not is_snapshot_id(snapshot_id):
            return None
        digits = snapshot_id[:_DIRECTORY_DIGITS]
        nodes = {self.own: self._nodes.own.directory} | {
            n: each.entry.directory for n, each in self._nodes.others.items()
        }
        return next((name for name, directory in nodes.items() if directory.startswith(digits)), None)

    def may_have_left(self, snapshot_id: str) -> bool:
        """Return whether the keeper of a snapshot may have left, or was not heard of yet."""
        if self._nodes is None or not is_snapshot_id(snapshot_id):
            return False
        digits = snapshot_id[:_DIRECTORY_DIGITS]
        is_known = any(directory.startswith(digits) for directory in self._nodes.left.values())
        return is_known or not self._nodes.is_heard

    async def ask(
        self,
        node: str,
        method: str,
        path: str,
        members: Mapping[str, Any] | None = None,
        place: tuple[str, int] | None = None,
    ) -> Any:
        """Return the JSON that this node answers; None for an empty answer and for `OTHER_EPOCHS`.

        `place` is a store and a partition that it is asked for. Raises `NodeRefusedError`.
        """
        link = None if self._nodes is None else self._nodes.link(node)
        try:
            if link is None:
                raise NotPresentError(f"Node {node!r} cannot be reached: ask again in a moment.")
            if method == "POST" and not link.declares_the_same:
                raise NotReadyError(
                    f"Node {node!r} declares stores with timestamps that {self.own!r} has without, or the reverse: "
                    "make snapshots when all nodes run one application again."
                )
            body = b"" if members is None else orjson.dumps(members)
            answer = await link.http(method, path, {}, body, timeout_s=TIMEOUT_S)
            if answer.status == OTHER_EPOCHS:
                return None
            if not 200 <= answer.status < 300:
                raise _error(node, answer)
            return orjson.loads(answer.body) if answer.body else None
        except StatelineError as error:
            raise NodeRefusedError(error, self.url(node), *(place or ())) from error

    async def stream(
        self, node: str, path: str, members: Mapping[str, Any], resources: AsyncExitStack
    ) -> AsyncGenerator[bytes, None]:
        """Return the pieces of this node's answer to a POST, as they were sent. `resources` close the connection.

        Raises the node's refusal, `NotPresentError` if it cannot be reached, `NotReadyError` if its answer breaks off.
        """
        assert self._nodes is not None, "there is another node"
        status, pieces = await streamed(self._nodes, node, path, orjson.dumps(members), resources)
        if status != OK:
            raise _error(node, HttpAnswer(status, {}, b"".join([piece async for piece in pieces])))
        return pieces


def _error(node: str, answer: HttpAnswer) -> StatelineError:
    try:
        problem = orjson.loads(answer.body)
        reason, detail = str(problem["reason"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        reason, detail = "", f"it answers with status {answer.status}."
    return error_of(reason, f"Node {node!r}: {detail}")
