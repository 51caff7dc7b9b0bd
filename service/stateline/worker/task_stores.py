"""The stores of one task: opened, committed and closed together, their offsets kept where each store says.

Whether what is on disk can be gone on with is decided here when a store opens (KIP-892, and its later text on
`.checkpoint`); a store that cannot is deleted, it alone, and restored from its changelog:

| own offset | in `.checkpoint` | has rows | the store goes on from                                            |
|------------|------------------|----------|-------------------------------------------------------------------|
| yes        | any              | any      | its own offset                                                    |
| no         | an offset        | yes      | that offset, which it takes over if it manages its own            |
| no         | none             | yes      | the beginning, emptied: nobody knows what is in it; refused when  |
|            |                  |          | Stateline wrote it, without a changelog: it may be the only copy  |
| no         | any              | no       | the beginning                                                     |

A store that is not transactional writes before a commit. Under exactly-once what it holds after a crash may never have
been committed: its entry in `.checkpoint` is "unknown" while it is open, and found so, the store is emptied.

`.checkpoint` is written when the stores are open, when they close, and at a commit only if one of them is persistent
and does not manage its own offsets.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from stateline.model.store_definition import StoreDefinition
from stateline.model.task_id import TaskId
from stateline_store import (
    DamagedDataError,
    IsolationLevel,
    PoisonedError,
    Position,
    RetryLaterError,
    StatelineError,
    StateStore,
    StoreContext,
    StoreState,
    TopicPartition,
    TopologyError,
    TransactionalStore,
    store_path,
)
from stateline_store.directory import holds_database
from stateline_store.format_upgrade import (
    Files,
    UpgradeMode,
    check_plain_files,
    choose_files,
    has_plain_files,
    remove_plain_files,
    withdraw_plain_files,
)
from stateline_store.offset_checkpoint import (
    OFFSET_CHECKPOINT,
    OFFSET_UNKNOWN,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from stateline_store.steps import reached

logger = logging.getLogger(__name__)


class TaskStores:
    """One task's, on the worker's thread. Store by name in `by_name`; open between `open` and `close`."""

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
        """`changelogs` has the stores that can be rebuilt: a changelog's partition, or a table's source. `upgrade_mode`
        is None when `upgrade.from` is not set."""
        self.by_name: dict[str, StateStore] = {name: each.build() for name, each in definitions.items()}
        self._definitions = definitions
        self._upgrade_mode = upgrade_mode
        self._files: dict[str, Files] = {}
        self._outdated: dict[str, int] = {}  # how far plain files had come that timestamped ones replace
        self._task_id = task_id
        self._directory = directory
        self._changelogs = changelogs
        self._exactly_once = exactly_once
        self._sync = sync
        self._offsets: dict[TopicPartition, int] = {}  # of stores that do not manage their own

    @property
    def transactional(self) -> Iterator[tuple[str, TransactionalStore]]:
        """The stores of Stateline's own kinds."""
        for name, store in self.by_name.items():
            if isinstance(store, TransactionalStore):
                yield name, store

    def position(self, name: str, level: IsolationLevel) -> Position:
        """How far into its input this store has come; an empty one of a user's own, which does not say."""
        store = self.by_name[name]
        return store.position(level) if isinstance(store, TransactionalStore) else Position()

    def advance(self, name: str, position: Position) -> None:
        """The input up to here is staged in this store."""
        store = self.by_name[name]
        if isinstance(store, TransactionalStore):
            store.advance(position)

    def forget(self, name: str, topic: str) -> None:
        """Take a topic that was deleted out of this store's Position."""
        store = self.by_name[name]
        if isinstance(store, TransactionalStore):
            store.forget(topic)
            self._wipe_build(name)

    def open(self) -> None:
        """Open every store. Raises `DamagedDataError` for one that is damaged and that nothing can rebuild."""
        checkpoint = read_offset_checkpoint(self._path)
        try:
            for name in self.by_name:
                self._open_one(name, checkpoint)
            self._write_offset_checkpoint()
        except BaseException:
            for store in self.by_name.values():
                store.close()
            raise

    def to_build(self) -> list[str]:
        """The stores whose timestamped files are to be built beside the plain ones that serve."""
        return [name for name, files in self._files.items() if files is Files.PLAIN_AND_BUILD]

    def drop_plain_files(self) -> None:
        """The stores are restored: the plain files of those that have timestamped ones now are not needed any more."""
        for name in filter(self._is_outdated, self._files):
            if (self.committed_offset(name) or 0) < self._outdated.get(name, -1):
                logger.warning("Plain files of %s in task %s stay: they had more of the changelog", name, self._task_id)
                withdraw_plain_files(self._directory, name)  # what is asked is what the store has from now on
                continue
            logger.info("Store %s of task %s is upgraded: its plain files are deleted", name, self._task_id)
            try:
                remove_plain_files(self._directory, name)
            except RetryLaterError as error:
                logger.warning("Plain files are in nobody's way, and stay until the next start: %s", error)

    def rebuild(self, name: str) -> None:
        """Delete this store's data and open it empty: its changelog and its offset do not fit together."""
        self._wipe(name)
        self._wipe_build(name)
        self.by_name[name].init(self._context(name))

    def committed_offset(self, name: str) -> int | None:
        """The changelog offset that this store has applied last, as it or `.checkpoint` says; None for none."""
        store, changelog = self.by_name[name], self._changelogs.get(name)
        if changelog is None or not store.persistent:
            return None
        return store.committed_offset(changelog) if store.manages_offsets else self._offsets.get(changelog)

    def furthest_offset(self, name: str) -> int | None:
        """The changelog offset that this store has applied once: what it has now, or plain files that it replaces."""
        known = [each for each in (self.committed_offset(name), self._outdated.get(name, -1)) if each is not None]
        return max(known) if max(known, default=-1) >= 0 else None

    def commit(self, offsets: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Commit every store with its changelog offsets. Other processes see it with `announce`.

        Every store is tried even if one fails; the first failure is raised then.
        """
        failures: list[StatelineError] = []
        for name in self.by_name:
            try:
                self._commit_one(name, offsets.get(name, {}))
            except StatelineError as error:
                failures.append(error)
            reached("commit:store-committed")
        if failures:
            raise failures[0]
        if any(store.persistent and not store.manages_offsets for store in self.by_name.values()):
            self._write_offset_checkpoint()

    def commit_one(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit one store, while it is being restored or because nothing can rebuild it."""
        self._commit_one(name, offsets)
        if self.by_name[name].persistent and not self.by_name[name].manages_offsets:
            self._write_offset_checkpoint()

    def announce(self) -> None:
        """Let readers in other processes see the newest commits."""
        for _, store in self.transactional:
            store.announce_commit()

    def publish_staged(self) -> None:
        """Tell readers in other processes what is staged."""
        for _, store in self.transactional:
            store.publish_staged()

    def publish(self, state: StoreState) -> None:
        """Tell readers in other processes what the task is doing."""
        for _, store in self.transactional:
            store.set_state(state)

    def close(self, *, clean: bool) -> None:
        """Close every store, then say in `.checkpoint` where each stands. `clean`: nothing was put since the commit."""
        try:
            open_ = all(store.is_open for store in self.by_name.values())
            offsets = self._checkpointed(clean=clean) if open_ else None
        except PoisonedError:
            offsets = None  # where it stands is known after the next opening
        for store in self.by_name.values():
            store.close()
        if offsets is not None:
            write_offset_checkpoint(self._path, offsets)

    # ---- one store

    def _open_one(self, name: str, checkpoint: Mapping[TopicPartition, int]) -> None:
        store, changelog = self.by_name[name], self._changelogs.get(name)
        self._choose_files(name, can_be_rebuilt=changelog is not None)
        is_new = not isinstance(store, TransactionalStore) and not (self._directory / name).exists()
        try:
            store.init(self._context(name))
        except DamagedDataError as error:
            if changelog is None:
                raise
            logger.error(
                "Store %s of task %s is emptied and rebuilt from %s: %s", name, self._task_id, changelog, error
            )
            self.rebuild(name)
            return
        if changelog is not None and store.persistent and not is_new:
            self._settle_offset(name, store, changelog, checkpoint.get(changelog))

    def _choose_files(self, name: str, *, can_be_rebuilt: bool) -> None:
        timestamped = self._has_timestamps(name)
        self._files[name] = choose_files(self._directory, name, timestamped=timestamped, mode=self._upgrade_mode)
        if not timestamped and not can_be_rebuilt and self._has_only_timestamped_files(name):
            raise TopologyError(
                f"Store {name!r} of task {self._task_id} is on disk with timestamps, and has no changelog that plain "
                "files could be built from: declare it with timestamps, or under another name."
            )
        if not timestamped or not has_plain_files(self._directory, name):
            return
        if not can_be_rebuilt:
            raise TopologyError(
                f"Store {name!r} of task {self._task_id} is on disk without timestamps, and has no changelog that its "
                "timestamped files could be built from: declare it without timestamps, or under another name."
            )
        store = self.by_name[name]
        if self._is_outdated(name) and isinstance(store, TransactionalStore):
            changelog, types = self._changelogs[name], self._definitions[name].types
            outdated = check_plain_files(self._directory, name, store.layout, types, changelog)
            self._outdated[name] = outdated.offsets.get(changelog, -1)

    def _has_only_timestamped_files(self, name: str) -> bool:
        plain, timestamped = (store_path(self._directory, name, timestamped=each) for each in (False, True))
        return self.by_name[name].persistent and holds_database(timestamped) and not holds_database(plain)

    def _is_outdated(self, name: str) -> bool:
        """Whether there are plain files of a store that is on its timestamped ones."""
        is_on_declared = self._has_timestamps(name) and self._files[name] is Files.DECLARED
        return is_on_declared and has_plain_files(self._directory, name)

    def _has_timestamps(self, name: str) -> bool:
        """Whether the store writes timestamped files. It says so itself: one of a user's own can be one of these."""
        store = self.by_name[name]
        return isinstance(store, TransactionalStore) and store.timestamped and store.persistent

    def _settle_offset(self, name: str, store: StateStore, changelog: TopicPartition, noted: int | None) -> None:
        """The table above."""
        unclean = self._exactly_once and not store.transactional and noted == OFFSET_UNKNOWN
        own = store.committed_offset(changelog) if store.manages_offsets else None
        if own is not None and not unclean:
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
        elif store.manages_offsets:
            store.commit({changelog: noted})
            reached("checkpoint:offset-taken")
        else:
            self._offsets[changelog] = noted

    def _commit_one(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        store = self.by_name[name]
        if isinstance(store, TransactionalStore):
            store.commit(offsets, announce=False)
            return
        store.commit(offsets)
        if not store.manages_offsets:
            self._offsets.update(offsets)

    def _wipe(self, name: str) -> None:
        store = self.by_name[name]
        store.close()
        if isinstance(store, TransactionalStore):
            store.wipe()
        elif store.persistent:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self._directory / name)
        if (changelog := self._changelogs.get(name)) is not None:
            self._offsets.pop(changelog, None)

    def _wipe_build(self, name: str) -> None:
        """Delete the timestamped files that are built beside plain ones: they would keep what those do not."""
        if self._files[name] is Files.DECLARED or not store_path(self._directory, name, timestamped=True).exists():
            return
        store = self._definitions[name].build()
        assert isinstance(store, TransactionalStore), "only Stateline's own kinds have timestamped files"
        with contextlib.suppress(DamagedDataError):
            store.init(replace(self._context(name), plain_format=False))
        store.close()
        store.wipe()

    # ---- the checkpoint

    @property
    def _path(self) -> Path:
        return self._directory / OFFSET_CHECKPOINT

    def _write_offset_checkpoint(self) -> None:
        write_offset_checkpoint(self._path, self._checkpointed(clean=False))

    def _checkpointed(self, *, clean: bool) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for name, changelog in self._changelogs.items():
            offset = self.committed_offset(name)
            if self._exactly_once and not self.by_name[name].transactional and self.by_name[name].persistent:
                offset = offset if clean else OFFSET_UNKNOWN
            if offset is not None:
                found[changelog] = offset
        return found

    def _context(self, name: str) -> StoreContext:
        plain = self._files[name] is not Files.DECLARED
        types = self._definitions[name].types
        return StoreContext(str(self._task_id), self._directory, self._changelogs.get(name), self._sync, plain, types)
