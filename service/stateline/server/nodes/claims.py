"""Check claims of nodes that own a task: Kafka's group must have given the task to a worker of the node.

A node's word over its link is not enough, because any linked node could claim everything. A member of the group is a
node's worker if its static id is ``<node>-<instance>``, or its client id has the id of the node's directory. A member
that fits several nodes counts for none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from stateline.log.interface import GroupMember
from stateline.server.state.group_watch import GroupState, GroupWatch
from stateline_store import TopicPartition

# For this long after a claim, Kafka may still show the former assignment (measured: 20 ms).
_SHOWN_LATE_MS = 250


class Claims:
    """One per server process, for the event loop's thread. `sources` returns the partitions that a task reads,
    `directories` the directory ids of all known nodes, by name."""

    def __init__(
        self,
        group: GroupWatch,
        sources: Callable[[str], Collection[TopicPartition]],
        directories: Callable[[], Mapping[str, str]],
    ) -> None:
        self._group = group
        self._sources = sources
        self._directories = directories
        self._look: GroupState | None = None
        self._given: dict[TopicPartition, set[str | None]] = {}  # of that look; None: a member of no known node

    def forget(self) -> None:
        """Read the look again at the next call, because other nodes are known now."""
        self._look = None

    def counts(self, task_id: str, node: str, since_ms: int) -> bool:
        """Whether this node may own the task that it has claimed since then (`clock.boot_ms`). While Kafka does not
        answer, a claim counts unless Kafka contradicted it before."""
        look = self._group.assigned
        if look is not None and node in self._holders(look, task_id):
            return True
        is_undecided = look is None or look.at_ms < since_ms + _SHOWN_LATE_MS
        if is_undecided:
            self._group.ask_soon()
        return is_undecided and self._group.is_unanswered

    def may_answer(self, task_id: str, node: str) -> bool:
        """Whether no worker of another node has the task, by Kafka's last answer. Then this node's copy may be the
        newest."""
        look = self._group.assigned
        if look is None or self._group.is_unanswered:
            return self._group.is_unanswered
        return self._holders(look, task_id) <= {node}

    def has_worker(self, node: str) -> bool:
        """Whether Kafka's last answer has a member that is a worker of this node."""
        look, directories = self._group.assigned, self._directories()
        return look is not None and any(_node_of(member, directories) == node for member in look.members)

    def _holders(self, look: GroupState, task_id: str) -> set[str | None]:
        if self._look is not look:
            self._look, self._given = look, self._read(look)
        return set().union(*(self._given.get(source, ()) for source in self._sources(task_id)))

    def _read(self, look: GroupState) -> dict[TopicPartition, set[str | None]]:
        directories, given = self._directories(), defaultdict[TopicPartition, set[str | None]](set)
        for member in look.members:
            node = _node_of(member, directories)
            for partition in member.partitions:
                given[partition].add(node)
        return given


def _node_of(member: GroupMember, directories: Mapping[str, str]) -> str | None:
    """Return the node of this worker; None if the node is unknown or ambiguous."""
    by_name = [node for node in directories if (member.instance_id or "").startswith(f"{node}-")]
    if len(by_name) == 1:
        return by_name[0]
    by_directory = [node for node, its in directories.items() if its and f"-{its}-" in member.client_id]
    found = [node for node in by_directory if node in by_name] if by_name else by_directory
    return found[0] if len(found) == 1 else None
