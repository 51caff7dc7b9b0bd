"""`Partitions`: the stores' committed state, as this process reads it: one RocksDB secondary per store
partition.

Secondaries are opened when they are first needed (or by the keeper of `serving`), kept, and closed together.
A read is refresh, then query, without anything in between: data and position belong together because only
`refresh` moves a secondary, and all of this runs on the event loop's thread without an await.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stateline.query import CopyStatus, Failure, Outcome, Query, Terms, served_by
from stateline.query_reads import execute
from stateline.server.deployment import Placement, unreadable
from stateline.store_definition import StoreDefinition
from stateline_store import (
    Layout,
    NotPresentError,
    NotReadyError,
    Reader,
    RetryLaterError,
    SecondaryReader,
    Segments,
    StateDirectory,
    StatelineError,
    StoreSchema,
    StoreState,
)
from stateline_store.plain_values import PlainValuesReader

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
    `has_owner(task)` says whether a live worker has the task. Plain files of a timestamped store are read where there
    are any, for a worker deletes them when its timestamped files are complete; `upgrading` says that the workers serve
    them (they have `upgrade.from` set), and are not restoring the others just now.
    """

    def __init__(
        self,
        directory: StateDirectory,
        scratch: Path,
        has_owner: Callable[[str], bool],
        *,
        upgrading: bool = False,
    ) -> None:
        self._directory = directory
        self._upgrading = upgrading
        self._scratch = scratch
        self._has_owner = has_owner
        self._readers: dict[tuple[str, str], SecondaryReader] = {}
        self._shown: dict[tuple[str, str], Reader] = {}  # what queries see of each
        self.opened_count = 0
        """Secondaries that were opened so far."""
        self.catch_ups = 0
        """How often one that was open was brought up to its owner's newest commit."""

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
            reader = self._new_reader(store.definition, task_id)
        return reader

    def check(self, store: ServedStore, partition: int) -> None:
        """Raise the `StatelineError` that a read of this partition would meet now; nothing when it would
        not.
        """
        try:
            self._refresh(self.open(store, partition))
        except (NotPresentError, NotReadyError):
            self._forget(store, partition)
            raise

    def status(self, store: ServedStore, partition: int, reader: SecondaryReader) -> CopyStatus:
        """What the notice says, unless no live worker has the task: then nobody keeps the copy up to date."""
        notice = reader.notice
        state = notice.state
        if state is StoreState.ACTIVE and not self._has_owner(store.placement.task_id(partition)):
            state = StoreState.CLOSED
        if not self._upgrading and self._shows_plain(store, partition):
            state = StoreState.RESTORING
        return CopyStatus(served_by(state), notice.staged_records, notice.staged_bytes, notice.committed_at_ms)

    def opened(self) -> Iterator[tuple[str, str, SecondaryReader]]:
        """(task, store, reader) of every secondary that is open."""
        for (task_id, store), reader in self._readers.items():
            yield task_id, store, reader

    @property
    def open_count(self) -> int:
        """Secondaries that are open."""
        return len(self._readers)

    def close(self) -> None:
        """Close every secondary."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._shown.clear()

    def _ask_one(self, store: ServedStore, partition: int, query: Query, terms: Terms) -> Outcome:
        try:
            try:
                return self._execute(store, partition, query, terms)
            except NotPresentError:
                if not self._shows_plain(store, partition):
                    raise
                self._forget(store, partition)  # the timestamped files have taken their place
                return self._execute(store, partition, query, terms)
            except NotReadyError:
                raise
            except RetryLaterError:  # the owner was quicker than the reader, which has let go: open it anew, once
                return self._execute(store, partition, query, terms)
        except (NotPresentError, NotReadyError) as error:
            self._forget(store, partition)  # deleted or moved: look the files up again at the next request
            return Failure(error)
        except StatelineError as error:
            return Failure(error)
        except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception; one partition's failure is its own
            _log.exception("A query of partition %d of %r failed", partition, store.name)
            self._forget(store, partition)
            return Failure(StatelineError(f"Reading partition {partition} of {store.name!r} failed: {error}"))

    def _execute(self, store: ServedStore, partition: int, query: Query, terms: Terms) -> Outcome:
        reader = self.open(store, partition)
        self._refresh(reader)
        shown = self._shown[store.placement.task_id(partition), store.name]
        schema, copy = schema_of(store.definition, reader.layout), self.status(store, partition, reader)
        return execute(query, shown, schema, partition, terms, copy)

    def _refresh(self, reader: SecondaryReader) -> None:
        if reader.is_behind:
            with _reading(self._directory.application):
                reader.refresh()
            self.catch_ups += 1

    def _forget(self, store: ServedStore, partition: int) -> None:
        key = (store.placement.task_id(partition), store.name)
        self._shown.pop(key, None)
        reader = self._readers.pop(key, None)
        if reader is not None:
            reader.close()

    def _shows_plain(self, store: ServedStore, partition: int) -> bool:
        return isinstance(self._shown.get((store.placement.task_id(partition), store.name)), PlainValuesReader)

    def _new_reader(self, definition: StoreDefinition, task_id: str) -> SecondaryReader:
        name = definition.name
        if definition.timestamped and self._directory.store(task_id, name, timestamped=False).exists():
            with contextlib.suppress(NotPresentError):  # being deleted just now
                plain = self._opened(task_id, definition, timestamped=False)
                self._readers[task_id, name], self._shown[task_id, name] = plain, PlainValuesReader(plain)
                return plain
        reader = self._opened(task_id, definition, timestamped=definition.timestamped)
        self._readers[task_id, name] = self._shown[task_id, name] = reader
        return reader

    def _opened(self, task_id: str, definition: StoreDefinition, *, timestamped: bool) -> SecondaryReader:
        store = self._directory.store(task_id, definition.name, timestamped=timestamped)
        notice = self._directory.notice(task_id, definition.name, timestamped=timestamped)
        with _reading(store):
            reader = SecondaryReader(store, notice, self._scratch / task_id / definition.name)
        self.opened_count += 1
        try:
            _check_kind(definition, reader, store)
        except NotReadyError:
            reader.close()
            raise
        return reader


def schema_of(definition: StoreDefinition, layout: Layout) -> StoreSchema:
    """What queries must know of a store, as it is declared and as its database is written."""
    interval_ms = layout.segment_interval_ms
    segments = None if interval_ms is None else Segments(definition.retention_ms, interval_ms)
    return StoreSchema(layout.kind, layout.timestamped, segments, definition.window_size_ms, layout.retain_duplicates)


def _check_kind(definition: StoreDefinition, reader: SecondaryReader, path: Path) -> None:
    """Raise `NotReadyError` when the files are of another kind of store than the application declares."""
    declared, found = definition.plain_kind, reader.layout.kind
    if found != declared:
        raise NotReadyError(
            f"{path} holds a {found} store, but the application declares a {declared} store of that name: give it "
            "another name, and start the workers again."
        )


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What the file system or RocksDB refuses for the time being is `NotReadyError`; narrower errors stay."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from error
    except RetryLaterError as error:
        if type(error) is not RetryLaterError:
            raise
        raise NotReadyError(str(error)) from error
