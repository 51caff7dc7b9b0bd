"""Read the stores' committed state, through one RocksDB secondary per store partition.

Secondaries are opened at their first use (or by `StoreWatch`), kept, and closed together. A read refreshes a secondary,
then queries it. Only `refresh` moves a secondary, and there is no await in between. So data and Position fit together.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stateline.deployment.pipelines.epoch_marker import LOADING
from stateline.deployment.stores.topology_file import GLOBAL_TABLES, unreadable
from stateline.model.store_definition import StoreDefinition
from stateline.processes.seldom import seldom
from stateline.query.execution import execute
from stateline.query.values import CopyStatus, Failure, Outcome, PartitionAnswer, ServedBy, Terms, served_by
from stateline.rows.ranges import store_schema
from stateline.server.state.ownership import Ownership
from stateline.server.state.served_stores import ServedStore
from stateline.server.state.still import Still
from stateline_store import (
    Layout,
    NotPresentError,
    NotReadyError,
    Position,
    Query,
    Reader,
    RetryLaterError,
    SecondaryReader,
    StateDirectory,
    StatelineError,
    StoreSchema,
    StoreState,
    TopicPartition,
    TopologyError,
)
from stateline_store.files.commit_notice import NoticeStatus
from stateline_store.files.directory import global_task, holds_database
from stateline_store.reads.plain_values import PlainValuesReader
from stateline_store.task_id import TaskId

# The most looks at a partition for one answer. A second look is needed only if a commit falls between two steps.
_LOOKS = 5

_log = seldom(__name__)


@dataclass(slots=True)
class _Open:
    """A secondary of the files at `place` (a name for `StateDirectory.task`). Queries read `shown`, which adds
    timestamps to `plain` files. `schema` fits `layout`."""

    reader: SecondaryReader
    place: str
    plain: bool
    shown: Reader
    layout: Layout
    schema: StoreSchema
    status: tuple[NoticeStatus, bool, CopyStatus] | None = None
    """The last seen notice, whether there was an owner, and the status that follows from both."""
    asked_s: float = -math.inf
    """The time of the last query (`time.monotonic`)."""
    commit_s: float = math.inf
    """The last duration of catching up with one commit."""

    def takes_s(self) -> float:
        """Return the estimated seconds to catch up; 0 if it is not behind."""
        reader = self.reader
        return max(1, reader.notice.commit_number - reader.shown_number) * self.commit_s if reader.is_behind else 0.0


class Partitions:
    """The secondaries of one server process. For the event loop's thread only.

    - `scratch` is an empty directory of this process. RocksDB writes there beside a secondary.
    - `ownership` decides the role of a copy, and whether it may answer.
    - `upgrading`: the workers serve plain files (`upgrade.from` is set). Otherwise plain files mean that the
    timestamped
      ones are still being restored. A worker deletes plain files when the others are complete.
    - `epochs` is `Topology.epoch_numbers`.
    - `scans_much`: nearly all reads are large scans.
    - `by_clock`: see `StoreSchema.read_by_clock`.
    """

    def __init__(
        self,
        directory: StateDirectory,
        scratch: Path,
        ownership: Ownership,
        *,
        upgrading: bool = False,
        epochs: Mapping[str, tuple[TopicPartition, ...]] = MappingProxyType({}),
        scans_much: bool = False,
        by_clock: bool = False,
    ) -> None:
        self._directory = directory
        self._by_clock = by_clock
        self._upgrading = upgrading
        self._scratch = scratch
        self._scans_much = scans_much
        self._ownership = ownership
        self._epochs = epochs
        self.readers: dict[tuple[str, str], _Open] = {}  # by task and store
        self.opened_count = 0
        """The number of secondaries opened so far."""
        self.catch_ups = 0
        """How often an open secondary caught up with its owner."""

    def ask(self, store: ServedStore, terms: Terms, partition: int, query: Query[Any]) -> Outcome:
        """Return this partition's answer from its newest commit."""
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
            except RetryLaterError:  # the reader fell behind its owner and closed: open it again, once
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

    def still(self, store: ServedStore, partition: int, answer: PartitionAnswer) -> Still | None:
        """Return the partition's state in this new answer. None if each answer needs its own look at the notice."""
        place = (store.placement.task_id(partition), store.name)
        found = self.readers.get(place)
        if found is None or found.plain or store.name in self._epochs or store.is_global:
            return None
        still = Still(found, place[0], answer.copy, self._ownership)
        return still if answer.copy.served_by == "active" and still.position is answer.position else None

    def open(self, store: ServedStore, partition: int) -> SecondaryReader:
        """Return the reader of this partition. Open it if necessary.

        Raises `NotPresentError` if no owner has ever opened it here, or another `StatelineError`.
        """
        return self._opened(store, store.placement.task_id(partition)).reader

    def check(self, store: ServedStore, partition: int) -> None:
        """Raise the `StatelineError` that a read of this partition would raise now, if any."""
        try:
            self._up_to_date(store, store.placement.task_id(partition))
        except (NotPresentError, NotReadyError):
            self._forget(store, partition)
            raise

    def status(self, store: ServedStore, partition: int) -> CopyStatus:
        """Return the status of this copy. If no live worker has the task, first read the newest commit. Raises like
        `open`."""
        task_id = store.placement.task_id(partition)
        found = self._opened(store, task_id)
        if not self._ownership.is_owned(task_id):
            self._refresh(found)  # there will be no later commit here
        return self._status(store, partition, found, found.reader.notice.status)

    def served_by(self, store: ServedStore, partition: int) -> ServedBy:
        """Return the role of the copy on this node. An unreadable copy is a standby."""
        if not store.definition.persistent:
            return self._ownership.role(store.placement.task_id(partition))
        try:
            return self.status(store, partition).served_by
        except StatelineError:
            return "standby"

    def shown(self, store: ServedStore, partition: int) -> tuple[SecondaryReader, int, int] | None:
        """Return the partition's reader, and the generation and number of its shown commit. Equal ones are of one
        state. None if it is not open, or unreadable."""
        found = self.readers.get((store.placement.task_id(partition), store.name))
        try:
            return None if found is None else (found.reader, found.reader.generation, found.reader.commit_number)
        except StatelineError:
            return None

    def opened(self) -> Iterator[tuple[str, str, SecondaryReader]]:
        """Yield (task, store, reader) of every open secondary."""
        for (task_id, store), found in self.readers.items():
            yield task_id, store, found.reader

    def rows_at_least(self, store: ServedStore) -> int:
        """Return how many rows the partitions that are here have for certain."""
        found = 0
        for partition in store.partitions:
            with contextlib.suppress(StatelineError):  # it is elsewhere, or a query reports it
                found += self.open(store, partition).rows_at_least()
        return found

    def is_plain(self, store: ServedStore, partition: int) -> bool:
        """Whether this partition of a store declared with timestamps still has plain files here."""
        if not store.definition.timestamped or not store.definition.persistent or store.is_global:
            return False
        task_id = store.placement.task_id(partition)
        found = self.readers.get((task_id, store.name))
        if found is None:
            return holds_database(self._directory.store(task_id, store.name, timestamped=False))
        if found.plain:
            try:
                found.reader.refresh()
            except NotPresentError:  # deleted, because the timestamped files are complete; the next query opens those
                self._forget(store, partition)
                return False
            except StatelineError as error:
                _log.debug("Plain files of %s: %s", task_id, error)
        return found.plain

    def catch_up(self) -> None:
        """Refresh every secondary, and release files that its owner has replaced."""
        for found in list(self.readers.values()):
            with contextlib.suppress(StatelineError, OSError):  # a query reports it
                found.reader.refresh(files=True)

    def close_idle(self, idle_s: float) -> None:
        """Close those that nobody asked for so long. Scans that have begun keep what they read."""
        now_s = time.monotonic()
        for place in [place for place, found in self.readers.items() if now_s - found.asked_s > idle_s]:
            self.readers.pop(place).reader.close()

    def follow(self, asked_within_s: float, most_s: float) -> Iterator[None]:
        """Refresh the secondaries that were queried within `asked_within_s`, and those that need more than `most_s` to
        catch up. Yields after each, so that others can run."""
        for place in list(self.readers):
            if (found := self.readers.get(place)) is None:
                continue  # others had their turn
            takes_s = found.takes_s()
            if takes_s > most_s or (takes_s and time.monotonic() - found.asked_s <= asked_within_s):
                with contextlib.suppress(StatelineError, OSError):  # a query reports it
                    self._refresh(found)
                yield

    def committed(self, stores: Container[str]) -> Iterator[tuple[str, str, Position]]:
        """Yield task, store and the newest committed Position of each open copy of these stores, one per step. Copies
        that are unreadable or restoring are left out."""
        for place in list(self.readers):
            found = self.readers.get(place)
            if found is None or place[1] not in stores or found.reader.notice.state is StoreState.RESTORING:
                continue
            try:
                self._refresh(found)
                position = found.reader.position
            except (StatelineError, OSError):  # a query reports it
                continue
            yield *place, position

    @property
    def open_count(self) -> int:
        """The number of open secondaries."""
        return len(self.readers)

    def close(self) -> None:
        """Close every secondary."""
        for found in self.readers.values():
            found.reader.close()
        self.readers.clear()

    def _execute(self, store: ServedStore, partition: int, query: Query[Any], terms: Terms) -> Outcome:
        task_id = store.placement.task_id(partition)
        found, notice = self._looked_at(store, task_id)
        found.asked_s = time.monotonic()
        copy = self._status(store, partition, found, notice)
        if copy.served_by != "active":
            given_back, is_whole = notice.state is StoreState.STANDBY, notice.restore_remaining == 0
            why = self._ownership.refusal(task_id, terms, partition, copy, given_back=given_back, is_whole=is_whole)
            if why is not None:
                return Failure(why, found.shown.position)
        outcome = execute(query, found.shown, found.schema, partition, terms, copy, has_all_partitions=store.is_global)
        if store.name in self._epochs and isinstance(outcome, PartitionAnswer):
            outcome.epochs = self._whole_epochs(store.name, partition, found.reader)
            outcome.worker = self._ownership.worker(task_id)
        return outcome

    def _looked_at(self, store: ServedStore, task_id: str) -> tuple[_Open, NoticeStatus]:
        """Return the store at its owner's newest commit, and the notice of this commit. If a restore ended in between,
        a later notice would hide that the rows are beyond the Position."""
        was: tuple[int, StoreState] | None = None
        for _ in range(_LOOKS):
            found = self._up_to_date(store, task_id)
            notice = found.reader.notice.status
            # Read last: an owner commits, and then writes what is left. An unchanged active owner restores nothing.
            says = found.reader.generation, notice.state
            if not found.reader.is_behind or (says == was and notice.state is StoreState.ACTIVE):
                return found, notice
            was = says
        raise NotReadyError(f"Store {store.name!r} of task {task_id} changes faster than it can be read: ask again.")

    def _up_to_date(self, store: ServedStore, task_id: str) -> _Open:
        """Return the store at its owner's newest commit. Raises like `open`."""
        found = self._opened(store, task_id)
        try:
            self._refresh(found)
        except NotPresentError as error:
            raise self._absent(store, task_id) from error
        if found.reader.layout is not found.layout:  # the store was opened again
            timestamped = store.definition.timestamped and not found.plain
            path = self._directory.store(found.place, store.name, timestamped=timestamped)
            _check_declared(store.definition, found.reader, path)
            found.layout = found.reader.layout
            found.schema = self._schema(store.definition, found.layout)
        return found

    def _whole_epochs(self, store: str, partition: int, reader: SecondaryReader) -> tuple[int, ...]:
        numbers = tuple(reader.offsets.get(place, LOADING) for place in self._epochs[store])
        if LOADING in numbers:
            raise NotReadyError(
                f"Partition {partition} of {store!r} is being loaded, and is to be seen in whole micro-batches: ask "
                "again in a moment."
            )
        return numbers

    def _status(self, store: ServedStore, partition: int, found: _Open, notice: NoticeStatus) -> CopyStatus:
        was, generation = found.status, found.reader.generation
        copy = self._known_status(store.placement.task_id(partition), found, notice)
        if was is not None and was[2].served_by == "active" != copy.served_by:
            self._ownership.left(store.definition, partition, generation, copy.committed_at_ms)
        return self._ownership.with_lag(copy, store.definition, partition, generation, found.reader.offsets)

    def _known_status(self, task_id: str, found: _Open, notice: NoticeStatus) -> CopyStatus:
        known = found.status
        owned = self._ownership.is_active(task_id)
        if notice.state == StoreState.RESTORING:
            owned = self._ownership.is_owned(task_id)
        if known is not None and known[0] == notice and known[1] is owned:
            return known[2]
        state = notice.state
        if state is StoreState.ACTIVE and not owned:
            state = StoreState.CLOSED
        if state is StoreState.RESTORING and not owned:
            state = StoreState.CLOSED  # the worker was killed
        if found.plain and not self._upgrading:
            state = StoreState.RESTORING
        status = CopyStatus(served_by(state), notice.staged_records, notice.staged_bytes, notice.committed_at_ms)
        found.status = notice, owned, status
        return status

    def _refresh(self, found: _Open) -> None:
        reader = found.reader
        if reader.is_behind:
            before, began_s = reader.shown_number, time.perf_counter()
            with _reading(self._directory.application):
                reader.refresh()
            found.commit_s = (time.perf_counter() - began_s) / max(1, reader.shown_number - before)
            self.catch_ups += 1

    def _forget(self, store: ServedStore, partition: int) -> None:
        found = self.readers.pop((store.placement.task_id(partition), store.name), None)
        if found is not None:
            found.reader.close()

    def _shows_plain(self, store: ServedStore, partition: int) -> bool:
        found = self.readers.get((store.placement.task_id(partition), store.name))
        return found is not None and found.plain

    def _opened(self, store: ServedStore, task_id: str) -> _Open:
        found = self.readers.get((task_id, store.name))
        place = self._place(task_id, found)
        if found is not None and found.place != place:  # another worker's copy is the one to read now
            found.reader.close()
            found = None
        if found is None:
            try:
                found = self.readers[task_id, store.name] = self._open_now(store.definition, place)
            except NotPresentError as error:
                raise self._absent(store, task_id) from error
        return found

    def _place(self, task_id: str, found: _Open | None) -> str:
        """Return the place of this task's files. For global tables it is the live worker's, else the last read one,
        else any."""
        if task_id != GLOBAL_TABLES:
            return task_id
        if (owner := self._ownership.worker(task_id)) is not None:
            return global_task(owner)
        return found.place if found is not None else next(iter(self._directory.global_tasks()), global_task("none"))

    def _absent(self, store: ServedStore, task_id: str) -> NotPresentError:
        """Return the error to raise instead of one that names a missing file."""
        which, place = f"Global table {store.name!r}", self._ownership.place
        if not store.is_global:
            which = f"Partition {TaskId.parse(task_id).partition} of {store.name!r}"
        if self._ownership.is_owned(task_id):
            return NotPresentError(f"{which} is just being opened {place}: ask again in a moment (wait_ms waits).")
        return NotPresentError(f"{which} is not {place}: no worker of it has opened it. Ask again in a moment.")

    def _open_now(self, definition: StoreDefinition, place: str) -> _Open:
        plain_files = self._directory.store(place, definition.name, timestamped=False)
        if definition.timestamped and holds_database(plain_files):
            with contextlib.suppress(NotPresentError):  # being deleted just now
                plain = self._new_reader(place, definition, timestamped=False)
                return self._shown(plain, place, definition, plain=True)
        reader = self._new_reader(place, definition, timestamped=definition.timestamped)
        return self._shown(reader, place, definition, plain=False)

    def _new_reader(self, place: str, definition: StoreDefinition, *, timestamped: bool) -> SecondaryReader:
        store = self._directory.store(place, definition.name, timestamped=timestamped)
        notice = self._directory.notice(place, definition.name, timestamped=timestamped)
        with _reading(store, self._scratch):
            scratch = self._scratch / place / definition.name
            reader = SecondaryReader(store, notice, scratch, scans_much=self._scans_much)
        self.opened_count += 1
        try:
            _check_declared(definition, reader, store)
        except NotReadyError:
            reader.close()
            raise
        return reader

    def _shown(self, reader: SecondaryReader, place: str, definition: StoreDefinition, *, plain: bool) -> _Open:
        shown = PlainValuesReader(reader, headers=definition.headers) if plain else reader
        return _Open(reader, place, plain, shown, reader.layout, self._schema(definition, reader.layout))

    def _schema(self, definition: StoreDefinition, layout: Layout) -> StoreSchema:
        schema = store_schema(definition, layout)
        return schema.read_by_clock() if self._by_clock else schema


def _check_declared(definition: StoreDefinition, reader: SecondaryReader, path: Path) -> None:
    """Raise `NotReadyError` if the files have another kind of store, or other types, than declared."""
    declared, found = definition.plain_kind, reader.layout.kind
    if found != declared:
        raise NotReadyError(
            f"{path} holds a {found} store, but the application declares a {declared} store of that name: give it "
            "another name, and start the workers again."
        )
    if reader.layout.timestamped and reader.layout.form != definition.form:
        raise NotReadyError(
            f"{path} holds a {reader.layout.form} store, and it is declared as {definition.form}: run its workers and "
            "this server with the same declaration."
        )
    if reader.types is not None:
        try:
            definition.types.check(reader.types, path)
        except TopologyError as error:
            raise NotReadyError(str(error)) from error


@contextlib.contextmanager
def _reading(path: Path, scratch: Path | None = None) -> Iterator[None]:
    """Turn temporary errors of the file system and RocksDB into `NotReadyError`. Narrower errors stay."""
    try:
        yield
    except OSError as error:
        if scratch is not None and str(error.filename).startswith(str(scratch)):
            raise NotReadyError(
                f"{error.filename} cannot be written ({error.strerror}). The server keeps links to the files of stores "
                "there: make room, or set the environment variable TMPDIR to a directory that it can write to."
            ) from error
        raise unreadable(path, error) from error
    except RetryLaterError as error:
        if type(error) is not RetryLaterError:
            raise
        raise NotReadyError(str(error)) from error
