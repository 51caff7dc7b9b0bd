"""`Partitions`: the stores' committed state, as this process reads it: one RocksDB secondary per store
partition.

Secondaries are opened when they are first needed (or by the keeper of `serving`), kept, and closed together.
A read is refresh, then query, without anything in between: data and position belong together because only
`refresh` moves a secondary, and all of this runs on the event loop's thread without an await.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stateline.query import CopyStatus, Failure, Outcome, Query, Terms, execute, served_by
from stateline.server.deployment import Placement
from stateline.topology import StoreDefinition
from stateline_store import (
    NotPresentError,
    SecondaryReader,
    StateDirectory,
    StatelineError,
    StoreState,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store that this server answers for: what it is, and where its partitions are."""

    definition: StoreDefinition
    placement: Placement

    @property
    def name(self) -> str:
        """The store's name."""
        return self.definition.name

    @property
    def partitions(self) -> range:
        """The partition numbers that there are."""
        return range(self.placement.partitions)


class Partitions:
    """The secondaries of one server process. For the event loop's thread only.

    `scratch` is an empty directory of this process for what RocksDB writes beside a secondary;
    `has_owner(task)` says whether a live worker has the task.
    """

    def __init__(self, directory: StateDirectory, scratch: Path, has_owner: Callable[[str], bool]) -> None:
        self._directory = directory
        self._scratch = scratch
        self._has_owner = has_owner
        self._readers: dict[tuple[str, str], SecondaryReader] = {}

    def ask(self, store: ServedStore, terms: Terms, queries: Mapping[int, Query]) -> dict[int, Outcome]:
        """What each of these partitions answers from its newest commit."""
        return {p: self._ask_one(store, p, query, terms) for p, query in queries.items()}

    def open(self, store: ServedStore, partition: int) -> SecondaryReader:
        """The reader of this partition, opened if need be.

        Raises `NotPresentError` when no owner has ever opened it here, or another `StatelineError`.
        """
        task_id = store.placement.task_id(partition)
        reader = self._readers.get((task_id, store.name))
        if reader is None:
            reader = self._readers[task_id, store.name] = self._new_reader(store.definition, task_id)
        return reader

    def check(self, store: ServedStore, partition: int) -> None:
        """Raise the `StatelineError` that a read of this partition would meet now; nothing when it would
        not.
        """
        try:
            self.open(store, partition).refresh()
        except NotPresentError:
            self._forget(store, partition)
            raise

    def status(self, store: ServedStore, partition: int, reader: SecondaryReader) -> CopyStatus:
        """What the notice says, unless no live worker has the task: then nobody keeps the copy up to date."""
        notice = reader.notice
        state = notice.state
        if state is StoreState.ACTIVE and not self._has_owner(store.placement.task_id(partition)):
            state = StoreState.CLOSED
        return CopyStatus(served_by(state), notice.staged_records, notice.staged_bytes, notice.committed_at_ms)

    def opened(self) -> Iterator[tuple[str, str, SecondaryReader]]:
        """(task, store, reader) of every secondary that is open."""
        for (task_id, store), reader in self._readers.items():
            yield task_id, store, reader

    def close(self) -> None:
        """Close every secondary."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _ask_one(self, store: ServedStore, partition: int, query: Query, terms: Terms) -> Outcome:
        try:
            reader = self.open(store, partition)
            reader.refresh()
            return execute(query, reader, partition, terms, self.status(store, partition, reader))
        except NotPresentError as error:
            self._forget(store, partition)  # deleted or moved: look the files up again at the next request
            return Failure(error)
        except StatelineError as error:
            return Failure(error)
        except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception; one partition's failure is its own
            _log.exception("A query of partition %d of %r failed", partition, store.name)
            self._forget(store, partition)
            return Failure(StatelineError(f"Reading partition {partition} of {store.name!r} failed: {error}"))

    def _forget(self, store: ServedStore, partition: int) -> None:
        reader = self._readers.pop((store.placement.task_id(partition), store.name), None)
        if reader is not None:
            reader.close()

    def _new_reader(self, definition: StoreDefinition, task_id: str) -> SecondaryReader:
        name, timestamped = definition.name, definition.timestamped
        return SecondaryReader(
            self._directory.store(task_id, name, timestamped=timestamped),
            self._directory.notice(task_id, name, timestamped=timestamped),
            self._scratch / task_id / name,
        )
