"""Which workers of a group keep standbys of its tasks. Pure: every worker computes the same from the same members.

Kafka's range assignor gives a topic's partitions to the members in the order of their names, so who inherits what is
known before a node is lost (`RangeAssignor` of Kafka's clients). The first standby of a task stands there: with the
member that range would give the task if the node of its owner had no members. Each further one is placed by rendezvous
hashing (Thaler and Ravishankar, 1998), in another rack if there is one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Placeable:
    """A member of the group. `name` is its static id, or else its member id: the order of range. `node` is the id of
    its state directory, in which a task is once; `tags` are its ``client.tag.*``."""

    name: str
    node: str
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)


def range_owner(members: Sequence[Placeable], partitions: int, partition: int) -> Placeable | None:
    """Return the member that the range assignor gives this partition of so many; None without members. `members`
    subscribe to the same topics, in any order."""
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

    `task` is the name that is hashed, `partition` its own of so many `partitions`. `rack_tags` are the tags by which
    nodes are to differ (``rack.aware.assignment.tags``), the more of them the better; the first standby is where range
    has it, whatever its tags.
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
    """In how many of these tags it is like one that is used already; not to have a tag is to be like nobody."""
    return sum(
        any(tag in member.tags and member.tags[tag] == other.tags.get(tag) for other in used) for tag in rack_tags
    )


def _rank(task: str, member: Placeable) -> bytes:
    """By node first: that the workers of a node are others changes nothing for the other nodes."""
    return b"".join(hashlib.blake2b(f"{part}\0{task}".encode(), digest_size=8).digest() for part in _parts(member))


def _parts(member: Placeable) -> tuple[str, str]:
    return member.node, member.name
