"""The commands that start a store over or restore it, as errors name them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from stateline.model.replay import replayed_with
from stateline.model.topology import Topology
from stateline_store import TopologyError


def reset_command(topology: Topology, stores: Collection[str]) -> str:
    """Return the command that starts these stores over, with everything that must start over with them. They are of
    one subtopology. The application must be stopped everywhere first."""
    return f"stateline reset {topology.target} {_options(topology, stores)}"


def restore_command(topology: Topology) -> str:
    """Return the command that writes lost changelogs again from backups. The application must be stopped everywhere
    first."""
    return f"stateline backup restore {topology.target} --changelogs-lost"


def way_back(topology: Topology, backup_location: str | None) -> str:
    """Return how a lost changelog comes back with its rows, without a full stop. `backup_location` is the setting."""
    if backup_location is None:
        return "Bring the topic back"
    return (
        f"To restore the newest backups, stop the application everywhere: {restore_command(topology)}. Or bring the "
        "topic back"
    )


@contextmanager
def of_store(store: str) -> Iterator[None]:
    """Let a `TopologyError` in the block know that this store has other data than is declared."""
    try:
        yield
    except TopologyError as error:
        error.of_store = store
        raise


@contextmanager
def says_how_to_begin_anew(topology: Topology) -> Iterator[None]:
    """Let a `TopologyError` `of_store` in the block end with the command that deletes the store's content."""
    try:
        yield
    except TopologyError as error:
        if error.of_store is not None:
            command = reset_command(topology, [error.of_store])
            error.args = (f"{error} Or stop the application, and start over without its data: {command}",)
        raise


def _options(topology: Topology, stores: Collection[str]) -> str:
    counting = {name for name in stores if name in topology.stores and topology.stores[name].source is None}
    if counting:  # whatever is kept of a topic can begin anew alone
        subtopology = topology.subtopology_of(next(iter(counting)))
        together = replayed_with(topology, [subtopology.ordinal])
        all_counting = {store.name for store in subtopology.stores if store.source is None}
        if together != {subtopology.ordinal} or counting != all_counting:
            return " ".join(f"--subtopology {number}" for number in sorted(together))
    return " ".join(f"--store {name}" for name in stores)
