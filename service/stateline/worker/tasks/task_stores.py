"""The stores of one task: opened, committed and closed together.

When a store opens, its own offset and `.checkpoint` decide where it continues (KIP-892, and its later text on
`.checkpoint`). If they do not fit, this store alone is deleted and restored from its changelog:

| own offset | in `.checkpoint` | has rows | the store continues from                                          |
|------------|------------------|----------|-------------------------------------------------------------------|
| yes        | any              | any      | its own offset                                                    |
| no         | an offset        | yes      | that offset, which it takes over if it manages its own            |
| no         | none             | yes      | the beginning, emptied: its content is unknown. Refused if        |
|            |                  |          | Stateline wrote it without a changelog: it may be the only copy   |
| no         | any              | no       | the beginning                                                     |

A store that is not transactional is emptied if its entry is "unknown" (`changelog_offsets`), whatever its own offset.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from stateline.deployment.workers.figures import StoreFigures
from stateline.model.reset_command import of_store
from stateline.model.store_definition import StoreDefinition
from stateline.worker.files.figures import StoreCommits
from stateline.worker.tasks.changelog_offsets import ChangelogOffsets
from stateline.worker.tasks.readable_stores import refuse_unreadable
from stateline.worker.tasks.store_formats import StoreFormats
from stateline.worker.tasks.write_stall import WriteStall
from stateline_store import IsolationLevel, Position, StateStore, StoreState, TopicPartition, TransactionalStore
from stateline_store.errors import DamagedDataError, PoisonedError, StatelineError, TopologyError
from stateline_store.files.offset_checkpoint import OFFSET_UNKNOWN
from stateline_store.inspection.format_upgrade import UpgradeMode
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

logger = logging.getLogger(__name__)


class TaskStores:
    """`by_name` has the stores, open between `open` and `close`, `offsets` their changelog offsets, `formats` their
    files."""

    def __init__(
        self,
        task_id: TaskId,
        directory: Path,
        definitions: Mapping[str, StoreDefinition],
        changelogs: Mapping[str, TopicPartition],
        *,
        exactly_once: bool,
        sync: bool,
        upgrade_mode: UpgradeMode | None = None,
    ) -> None:
        """`changelogs` has the stores that can be rebuilt. `upgrade_mode` is None when `upgrade.from` is not set."""
        self.by_name: dict[str, StateStore] = {name: each.build() for name, each in definitions.items()}
        self.offsets = ChangelogOffsets(directory, self.by_name, changelogs, exactly_once=exactly_once)
        self.formats = StoreFormats(task_id, directory, self.by_name, definitions, changelogs, sync, upgrade_mode)
        self._stall = WriteStall()
        self._commits = {name: StoreCommits(time.monotonic()) for name in self.by_name}
        self._task_id = task_id
        self._directory = directory
        self._definitions = definitions
        self._changelogs = changelogs

    @property
    def transactional(self) -> Iterator[tuple[str, TransactionalStore]]:
        for name, store in self.by_name.items():
            if isinstance(store, TransactionalStore):
                yield name, store

    @property
    def will_stall(self) -> bool:
        return any(self._stall.is_long(store.staged_records) for _, store in self.transactional)

    @property
    def close_on_any_thread(self) -> bool:
        """Whether all stores are of Stateline's own kinds. Others must close on the thread that opened them."""
        return all(definition.factory is None for definition in self._definitions.values())

    def position(self, name: str, level: IsolationLevel) -> Position:
        store = self.by_name[name]
        return store.position(level) if isinstance(store, TransactionalStore) else Position()

    def advance(self, name: str, position: Position) -> None:
        store = self.by_name[name]
        if isinstance(store, TransactionalStore):
            store.advance(position)

    def forget(self, name: str, topic: str) -> None:
        store = self.by_name[name]
        if isinstance(store, TransactionalStore):
            store.forget(topic)
            self.formats.wipe_build(name)

    def open(self, *, is_standby: bool = False) -> None:
        """Open every store. Raises `DamagedDataError` if nothing can rebuild a damaged store, `TopologyError` for other
        types."""
        noted = self.offsets.read_checkpoint()
        try:
            for name in self.by_name:
                with of_store(name):
                    self._open_one(name, noted, is_standby=is_standby)
            self.offsets.write_checkpoint()
        except BaseException:
            for store in self.by_name.values():
                store.close()
            raise

    def rebuild(self, name: str) -> None:
        """Delete this store's data and open it empty: its changelog and its offset do not fit together."""
        self.wipe(name)
        self.formats.wipe_build(name)
        self.by_name[name].init(self.formats.context(name))

    def furthest_offset(self, name: str) -> int | None:
        """Return the largest changelog offset of this store or of the plain files that it replaces."""
        committed = self.offsets.committed(name)
        furthest = max(-1 if committed is None else committed, self.formats.outdated_offset(name))
        return furthest if furthest >= 0 else None

    def commit(self, offsets: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Commit every store with its changelog offsets. Other processes see it after `announce`. A failure does not
        keep the others from their commit. The first failure is raised."""
        failures: list[StatelineError] = []
        for name, store in self.by_name.items():
            rows = store.staged_records if isinstance(store, TransactionalStore) else 0
            try:
                self._stall.learn(rows, self._commit(name, offsets.get(name, {})))
            except StatelineError as error:
                failures.append(error)
            reached("commit:store-committed")
        if failures:
            raise failures[0]
        if any(map(self.offsets.needs_checkpoint, self.by_name)):
            self.offsets.write_checkpoint()

    def commit_one(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit one store: while it is restored, or because nothing can rebuild it."""
        self._commit(name, offsets)
        if self.offsets.needs_checkpoint(name):
            self.offsets.write_checkpoint()

    def figures(self, now_s: float) -> dict[str, StoreFigures]:
        return {
            name: self._commits[name].sample(now_s, store.approximate_num_uncommitted_bytes)
            for name, store in self.by_name.items()
        }

    def announce(self) -> None:
        for _, store in self.transactional:
            store.announce_commit()

    def publish_staged(self) -> None:
        for _, store in self.transactional:
            store.publish_staged()

    def publish(self, state: StoreState) -> None:
        for _, store in self.transactional:
            store.set_state(state)

    def close(self, *, clean: bool) -> None:
        """Close every store, then write `.checkpoint`. `clean`: nothing was put since the last commit."""
        try:
            open_ = all(store.is_open for store in self.by_name.values())
            offsets = self.offsets.checkpoint_entries(clean=clean) if open_ else None
        except PoisonedError:
            offsets = None  # the next opening finds them
        for store in self.by_name.values():
            store.close()
        if offsets is not None:
            self.offsets.write_checkpoint(offsets)

    def _commit(self, name: str, offsets: Mapping[TopicPartition, int]) -> float:
        began_s = time.perf_counter()
        self.offsets.commit(name, offsets)
        took_s = time.perf_counter() - began_s
        self._commits[name].committed(took_s)
        return took_s

    def _open_one(self, name: str, noted: Mapping[TopicPartition, int], *, is_standby: bool) -> None:
        store, changelog = self.by_name[name], self._changelogs.get(name)
        if not store.persistent:
            self.offsets.forget(name)
        self.formats.choose(name, is_standby=is_standby)
        is_new = not isinstance(store, TransactionalStore) and not (self._directory / name).exists()
        try:
            store.init(self.formats.context(name))
        except DamagedDataError as error:
            if changelog is None:
                raise
            logger.error(
                "Store %s of task %s is emptied and rebuilt from %s: %s", name, self._task_id, changelog, error
            )
            self.rebuild(name)
            return
        if changelog is not None and store.persistent and not is_new:
            self._settle_offset(name, store, changelog, noted.get(changelog))
        if isinstance(store, TransactionalStore) and not is_standby:
            refuse_unreadable(self._definitions[name], store, f"task {self._task_id}")

    def _settle_offset(self, name: str, store: StateStore, changelog: TopicPartition, noted: int | None) -> None:
        """Decide by the table at the top of this module."""
        own = store.committed_offset(changelog) if store.manages_offsets else None
        if own is not None and not self.offsets.is_unclean(store, noted):
            return
        if own is None and isinstance(store, TransactionalStore) and store.is_empty():
            return
        if own is None and isinstance(store, TransactionalStore) and noted is None and store.commit_number > 0:
            raise TopologyError(
                f"Store {name!r} of task {self._task_id} has records that {changelog} has not: it had no changelog "
                "when they were put. Declare it with logged=False as before; or give it another name; or delete it."
            )
        if noted is None or noted == OFFSET_UNKNOWN:
            logger.warning(
                "Store %s of task %s does not say how much of %s it has: it is emptied and restored",
                name, self._task_id, changelog,
            )  # fmt: skip
            self.rebuild(name)
        elif self.offsets.take_over(name, changelog, noted):
            reached("checkpoint:offset-taken")

    def wipe(self, name: str) -> None:
        store = self.by_name[name]
        store.close()
        if isinstance(store, TransactionalStore):
            store.wipe()
        elif store.persistent:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self._directory / name)
        self.offsets.forget(name)
