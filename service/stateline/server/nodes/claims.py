"""`Claims`: which nodes may say that they own a task: those whose worker Kafka's group has given it.

A node's word over its link is not enough: any linked node could claim that it owns everything. A member of the
group is a node's worker if its static id is ``<node>-<instance>``, or its client id has the id of the node's directory.
Where both fit more nodes than one, it is nobody's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from stateline.log.interface import GroupMember
from stateline.server.state.group_watch import GroupState, GroupWatch
from stateline_store import TopicPartition

# So long after a claim Kafka may show the group as it was before (measured: 20 ms).
_SHOWN_LATE_MS = 250


class Claims:
    """One per server process, for the event loop's thread. `sources` are the partitions that a task reads by the group,
    `directories` those of all nodes that are known, by name."""

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
        self._given: dict[TopicPartition, set[str | None]] = {}  # by that look; None: a member that is no node's

    def forget(self) -> None:
        """Other nodes are known now."""
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
        """Whether no worker of another node has the task, as far as Kafka says: a copy of this node may be the newest
        that there is."""
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
