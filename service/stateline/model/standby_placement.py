"""Place the standbys of tasks on the workers of a group. Pure: every worker computes the same from the same members.

Kafka's range assignor (`RangeAssignor`) gives a topic's partitions to the members in the order of their names. So the
next owner is known before a node is lost. The first standby of a task is placed on this member: the one that range
would choose without the owner's node. Rendezvous hashing (Thaler and Ravishankar, 1998) places the others, in another
rack if there is one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Placeable:
    """A member of the group. `name` is its static id, or else its member id; range sorts by it. `node` is the id of its
    state directory, which has at most one copy of a task. `tags` are its ``client.tag.*``."""

    name: str
    node: str
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)


def range_owner(members: Sequence[Placeable], partitions: int, partition: int) -> Placeable | None:
    """Return the range assignor's member for this partition, or None without members. `members` subscribe to the same
    topics, in any order."""
    if not members:
        return None
    ordered = sorted(members, key=lambda member: member.name)
    each, more = divmod(partitions, len(ordered))
    # The first `more` members have one more than the others.
    with_more = more * (each + 1)
    if partition < with_more:
        return ordered[partition // (each + 1)]
    return ordered[more + (partition - with_more) // each]


def standbys(
    task: str,
    owner: Placeable,
    members: Collection[Placeable],
    partitions: int,
    partition: int,
    replicas: int,
    rack_tags: Sequence[str] = (),
) -> list[Placeable]:
    """Return the members that keep standbys of this task, at most one per node: `replicas`, or one per other node.

    `task` is hashed. `partition` is the task's, of `partitions`. Nodes should differ in as many `rack_tags` as possible
    (``rack.aware.assignment.tags``). The first standby ignores them.
    """
    elsewhere = [member for member in members if member.node != owner.node]
    found: list[Placeable] = []
    used = [owner]
    while elsewhere and len(found) < replicas:
        best = range_owner(elsewhere, partitions, partition) if not found else None
        best = best or min(elsewhere, key=lambda each: (_shared(each, used, rack_tags), _rank(task, each)))
        found.append(best)
        used.append(best)
        elsewhere = [member for member in elsewhere if member.node != best.node]
    return found


def _shared(member: Placeable, used: Sequence[Placeable], rack_tags: Sequence[str]) -> int:
    """Return how many of these tags the member shares with a used one. A missing tag is never shared."""
    return sum(
        any(tag in member.tags and member.tags[tag] == other.tags.get(tag) for other in used) for tag in rack_tags
    )


def _rank(task: str, member: Placeable) -> bytes:
    """Return the rank, by node first. So other workers of a node do not change the order of nodes."""
    return b"".join(hashlib.blake2b(f"{part}\0{task}".encode(), digest_size=8).digest() for part in _parts(member))


def _parts(member: Placeable) -> tuple[str, str]:
    return member.node, member.name
