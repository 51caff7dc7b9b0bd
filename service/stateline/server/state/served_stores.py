"""The stores that a server answers for, and the places of their partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stateline.deployment.stores.topology_file import GLOBAL, Placement, PublishedTopology, read_topology
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topology
from stateline.serde.binding import looking_up
from stateline.serde.plain import shown
from stateline.server.contract.arguments import numbers_shown
from stateline_store import DoesNotExistError, IsolationLevel, NotReadyError, UnknownQueryTypeError
from stateline_store.task_id import TaskId

# Assumed partitions of a subtopology before a worker here has counted them.
_MOST_UNCOUNTED = 1000


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store that this server answers for: its declaration, and the places of its partitions."""

    definition: StoreDefinition
    placement: Placement

    @property
    def is_global(self) -> bool:
        """Whether it is a global table. Each worker has it as one partition, with all partitions of its topic."""
        return self.placement.subtopology == GLOBAL

    @property
    def stopped(self) -> str | None:
        """Why no worker runs it any more. Queries then get its last committed state. None while workers may run it."""
        return self.placement.stopped

    @property
    def name(self) -> str:
        """The store's name."""
        return self.definition.name

    @property
    def partitions(self) -> range:
        """The store's partition numbers."""
        return range(self.placement.partitions)

    def chosen(self, partitions: tuple[int, ...] | None) -> tuple[int, ...] | range:
        """These partitions, or all. Raises `DoesNotExistError` for a partition that the store does not have."""
        for partition in partitions or ():
            if partition not in self.partitions:
                raise DoesNotExistError(
                    f"{self.name!r} has no partition {partition}: it has {numbers_shown(len(self.partitions))}."
                )
        return self.partitions if partitions is None else partitions

    def is_read_here(self, level: IsolationLevel) -> bool:
        """Whether this process reads it at this level: committed data on disk. Its workers answer everything else."""
        on_disk = self.definition.persistent and self.definition.kind != "custom"
        return on_disk and level is IsolationLevel.READ_COMMITTED


class ServedStores:
    """One per server process, for the event loop's thread."""

    def __init__(self, topology: Topology, application: Path) -> None:
        self._declared = {name: _asked(each) for name, each in topology.stores.items()}
        placement = Placement(GLOBAL, 1, None)
        self._global = {name: ServedStore(_asked(each), placement) for name, each in topology.global_tables.items()}
        self._application = application
        self._served: dict[str, ServedStore] = {}
        self._own: dict[str, ServedStore] = {}
        self._read: PublishedTopology | None = None
        self.changes = 0
        """How often `read` has found something new. While it stays, `get` returns the same stores."""
        uncounted = [TaskId(s.ordinal, number) for s in topology.subtopologies for number in range(_MOST_UNCOUNTED)]
        self._tasks = frozenset(map(str, uncounted))

    def __iter__(self) -> Iterator[ServedStore]:
        """Return the stores that workers have placed in tasks, as of the last `read`."""
        return iter(list(self._served.values()))

    @property
    def global_tables(self) -> Collection[ServedStore]:
        """The global tables."""
        return self._global.values()

    @property
    def names(self) -> list[str]:
        """The stores that answer queries: all but those of the user's own kinds."""
        return [name for name, each in self._declared.items() if each.kind != "custom"] + list(self._global)

    @property
    def stopped(self) -> str:
        """Why no worker of this directory runs the application any more, by the last `read`. Empty while one may."""
        return "" if self._read is None else self._read.stopped

    def has_task(self, task_id: str) -> bool:
        """Whether the application has this task, as far as a worker here has counted partitions."""
        return task_id in self._tasks

    def partitions(self, name: str) -> range:
        """Return the partition numbers of this store; none if it is unknown, or not placed yet."""
        served = self._served.get(name) or self._own.get(name)
        return range(0) if served is None else served.partitions

    def declared(self, name: str) -> StoreDefinition | None:
        """Return the declaration of this store for queries, or None. Queries register no schemas of keys. Leaves out
        global tables."""
        return self._declared.get(name)

    def get(self, name: str, *, of_any_kind: bool = False) -> ServedStore:
        """Return the store of this name.

        Raises `DoesNotExistError`. Raises `NotReadyError` if no worker has placed it yet, or it is refused. Raises
        `UnknownQueryTypeError` for a kind of the user's own, unless it may be `of_any_kind`.
        """
        served = self._served.get(name) or self._global.get(name) or (self._own.get(name) if of_any_kind else None)
        if served is not None:
            if served.placement.refused is not None:
                raise NotReadyError(served.placement.refused)
            return served
        if name not in self._declared:
            known = ", ".join(sorted([*self._declared, *self._global])) or "none"
            raise DoesNotExistError(f"There is no store {shown(name)}; there are: {known}.")
        if self._declared[name].kind == "custom" and not of_any_kind:
            raise UnknownQueryTypeError(
                f"{name!r} is a store of the application's own kind: it answers custom queries alone (POST "
                f'/v1/stores/{name}/query with {{"type": "custom", "query": …}}), by its method `query`.'
            )
        self.read()
        if name not in self._served and name not in self._own:
            raise NotReadyError(
                f"The workers that run do not know the store {name!r} yet: restart them, then ask again."
            )
        return self.get(name, of_any_kind=of_any_kind)

    def read(self) -> None:
        """Read again what the workers have left. Raises `NotReadyError` when there was none yet."""
        read = read_topology(self._application)
        if read == self._read:
            return
        self.changes += 1
        self._read, self._tasks, placements = read, read.task_ids(), read.placements()
        for name, store in self._global.items():
            self._global[name] = replace(store, placement=Placement(GLOBAL, 1, None, stopped=read.stopped or None))
        found = {name: self._unless_known(name, at) for name, at in placements.items() if name in self._declared}
        self._served = {name: store for name, store in found.items() if store.definition.kind != "custom"}
        self._own = {name: store for name, store in found.items() if name not in self._served}

    def _unless_known(self, name: str, placement: Placement) -> ServedStore:
        known = self._served.get(name) or self._own.get(name)
        return known if known and known.placement == placement else ServedStore(self._declared[name], placement)


def _asked(definition: StoreDefinition) -> StoreDefinition:
    """Return the definition with a key serde for lookups. A server writes no keys."""
    return replace(definition, key=looking_up(definition.key))
