"""What a node has, as it says to the others: which tasks, in which role, and how far its copies are. Pure.

    map  := {"event": "map", "number", "tasks": {task: [role, generation]}, "copies": {store: {partition: offset}},
             "pipelines": {pipeline: status}, "remaining": {task: offsets}, "plain": [task],
             "followed": [task], "faults": {worker: why it does not run its tasks}}
    role := "active" | "restoring" | "standby"

`number` grows with each change of `tasks`. `generation` is that of the consumer group under which a worker was given
the task, -1 where there is none. `copies` has those that are not active: the last offset of the changelog that each
has, `remaining` those that are restored, with what is left of it. `followed` are those standbys that a worker keeps up
to date; others are copies that were left behind. `plain` are tasks of which a store that is declared
with timestamps still has its plain files. `pipelines` has those that a driver of this node has
told of, each as in ``/v1/topology``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from stateline.query.values import ServedBy
from stateline_store import InvalidArgumentError


class HeldTask(NamedTuple):
    """What a node does with a task."""

    role: ServedBy
    generation: int = -1


@dataclass(frozen=True, slots=True)
class NodeMap:
    """All that one node has."""

    number: int = 0
    tasks: Mapping[str, HeldTask] = field(default_factory=dict)
    copies: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pipelines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remaining: Mapping[str, int] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    followed: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it is sent."""
        tasks = {task: [held.role, held.generation] for task, held in self.tasks.items()}
        told = {"number": self.number, "tasks": tasks, "copies": self.copies, "remaining": self.remaining}
        told |= {"pipelines": self.pipelines, "plain": sorted(self.plain), "followed": sorted(self.followed)}
        told["faults"] = self.faults
        return {"event": "map", **told}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> NodeMap:
        """What `to_json` wrote. Raises `InvalidArgumentError` for anything else."""
        try:
            tasks = {task: _held(role, generation) for task, (role, generation) in message["tasks"].items()}
            copies = {s: {p: _whole(offset) for p, offset in found.items()} for s, found in message["copies"].items()}
            pipelines = {name: dict(status.items()) for name, status in message["pipelines"].items()}
            remaining = {task: _whole(offsets) for task, offsets in message["remaining"].items()}
            plain = frozenset(map(str, message["plain"]))
            followed = frozenset(map(str, message["followed"]))
            faults = {str(worker): str(why) for worker, why in message["faults"].items()}
            return cls(_whole(message["number"]), tasks, copies, pipelines, remaining, plain, followed, faults)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(f"Not the map of a node: {error!r}") from error

    @property
    def running(self) -> Iterator[str]:
        """The tasks that it runs."""
        return (task_id for task_id, held in self.tasks.items() if held.role == "active")

    def offset(self, store: str, partition: int) -> int:
        """The last offset that its copy has of the changelog; -1 when nothing is known."""
        return self.copies.get(store, {}).get(str(partition), -1)


def _held(role: Any, generation: Any) -> HeldTask:
    if role not in get_args(ServedBy):
        raise ValueError(f"no role {role!r}")
    return HeldTask(role, _whole(generation))


def _whole(number: Any) -> int:
    """An offset, a generation or a count: one that an answer can show."""
    if not isinstance(number, int) or not -1 <= number < 2**63:
        raise ValueError(f"no number {number!r:.100}")
    return number


def owner_of(task: str, maps: Iterable[tuple[str, NodeMap]]) -> str | None:
    """The node that has this task as its owner, by what all said last; None when none said so.

    Of two that say it, as one may that has not heard yet that it is no owner any more, the one of the larger generation
    is, also while it restores what the other still runs; whoever is asked looks again before it answers.
    """
    return next(iter(claimants(task, maps)), None)


def claimants(task: str, maps: Iterable[tuple[str, NodeMap]]) -> list[str]:
    """The nodes that say so, that of the largest generation first."""
    claims = [
        (held.generation, held.role == "active", node)
        for node, each in maps
        if (held := each.tasks.get(task)) is not None and held.role != "standby"
    ]
    return [node for _, _, node in sorted(claims, reverse=True)]
