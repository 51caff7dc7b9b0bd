"""A node's map for the other nodes: its tasks, their roles, and the offsets of its copies. Pure.

    map  := {"event": "map", "number", "tasks": {task: [role, generation]}, "copies": {store: {partition: offset}},
             "pipelines": {pipeline: status}, "remaining": {task: offsets}, "plain": [task],
             "followed": [task], "faults": {worker: why it does not run its tasks}}
    role := "active" | "restoring" | "standby"

The first message on a link has everything. Later ones have only the differences: absent members and keys are unchanged,
and a key with null is gone. `plain` and `followed` are always whole.

- `number` grows with each change of `tasks`. `generation` is the consumer group's when a worker got the task, or -1.
- `copies` has the last changelog offset of each copy that is not active. `remaining` has the offsets that restores have
  left.
- `followed` has the standbys that a worker keeps up to date. Other standbys were left behind.
- `plain` has tasks with plain files of a store that is declared with timestamps.
- `pipelines` has the reports of this node's drivers, as in ``/v1/topology``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, get_args

from stateline.query.values import ServedBy
from stateline_store import InvalidArgumentError

_Value = TypeVar("_Value")
_MOST_KEYS = 100_000  # of a member: differences could add to it without end
HEARTBEAT = {"event": "map"}
"""The message of an unchanged map."""


class HeldTask(NamedTuple):
    """A node's role for a task."""

    role: ServedBy
    generation: int = -1


@dataclass(frozen=True, slots=True)
class NodeMap:
    """The tasks, copies and pipelines of one node."""

    number: int = 0
    tasks: Mapping[str, HeldTask] = field(default_factory=dict)
    copies: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pipelines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remaining: Mapping[str, int] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    followed: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)

    def to_json(self, known: NodeMap | None = None) -> dict[str, Any]:
        """The message that tells this map to a node that knows `known`, None: nothing yet."""
        known, told = known or NodeMap(), dict[str, Any](HEARTBEAT)
        stores = known.copies.keys() | self.copies.keys()
        copies = {store: _changes(known.copies.get(store, {}), self.copies.get(store, {})) for store in stores}
        differences = {
            "number": self.number if self.number != known.number else None,
            "tasks": {task: held and [*held] for task, held in _changes(known.tasks, self.tasks).items()},
            "copies": {store: offsets for store, offsets in copies.items() if offsets},
            "pipelines": _changes(known.pipelines, self.pipelines),
            "remaining": _changes(known.remaining, self.remaining),
            "plain": sorted(self.plain) if self.plain != known.plain else None,
            "followed": sorted(self.followed) if self.followed != known.followed else None,
            "faults": _changes(known.faults, self.faults),
        }
        return told | {name: each for name, each in differences.items() if each is not None and each != {}}

    @classmethod
    def from_json(cls, message: Mapping[str, Any], known: NodeMap | None = None) -> NodeMap:
        """Return the map of a message of `to_json` to a node that knows `known`; `known` itself if nothing differs.
        Raises `InvalidArgumentError` for any other message."""
        known = known or cls()
        if message == HEARTBEAT:
            return known
        try:
            copies = dict(known.copies)
            for store, offsets in message.get("copies", {}).items():
                copies[store] = _changed(copies.get(store, {}), offsets, _whole)
            return cls(
                _whole(message.get("number", known.number)),
                _changed(known.tasks, message.get("tasks", {}), _held),
                {store: offsets for store, offsets in copies.items() if offsets},
                _changed(known.pipelines, message.get("pipelines", {}), lambda status: dict(status.items())),
                _changed(known.remaining, message.get("remaining", {}), _whole),
                frozenset(map(str, message.get("plain", known.plain))),
                frozenset(map(str, message.get("followed", known.followed))),
                _changed(known.faults, message.get("faults", {}), str),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(f"Not the map of a node: {error!r}") from error

    @property
    def running(self) -> Iterator[str]:
        """The tasks that it runs."""
        return (task_id for task_id, held in self.tasks.items() if held.role == "active")

    def offset(self, store: str, partition: int) -> int:
        """Return the last changelog offset of its copy; -1 if unknown."""
        return self.copies.get(store, {}).get(str(partition), -1)


def _changes(known: Mapping[str, _Value], now: Mapping[str, _Value]) -> dict[str, _Value | None]:
    """The keys that have another value now; None for those that are gone."""
    return {key: value for key, value in now.items() if known.get(key) != value} | dict.fromkeys(known.keys() - now)


def _changed(
    known: Mapping[str, _Value], changes: Mapping[str, Any], decoded: Callable[[Any], _Value]
) -> dict[str, _Value]:
    """Apply the changes of `_changes` to the known members."""
    kept = {key: value for key, value in known.items() if key not in changes}
    kept |= {str(key): decoded(value) for key, value in changes.items() if value is not None}
    if len(kept) > _MOST_KEYS:
        raise ValueError(f"it has {len(kept):,} keys, and {_MOST_KEYS:,} are allowed")
    return kept


def _held(told: Any) -> HeldTask:
    role, generation = told
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

    If two nodes say so, because one has not heard yet that it lost the task, the larger generation wins. This is so
    even while its node restores and the other still runs the task. The asked node checks again before it answers.
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
