"""Which files each store of a task uses, plain or timestamped, while an application moves to timestamps (KIP-258).

`stateline_store.inspection.format_upgrade` says what each combination of files on disk and ``upgrade.from`` means. This
module refuses a store whose rows cannot come into the declared files.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stateline.model.store_definition import StoreDefinition
from stateline_store import StateStore, StoreContext, TopicPartition, TransactionalStore, store_path
from stateline_store.errors import DamagedDataError, RetryLaterError, TopologyError
from stateline_store.files.directory import holds_database
from stateline_store.inspection.format_upgrade import (
    Files,
    UpgradeMode,
    check_plain_files,
    choose_files,
    has_plain_files,
    remove_plain_files,
    withdraw_plain_files,
)
from stateline_store.task_id import TaskId

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class StoreFormats:
    """`upgrade_mode` is None when `upgrade.from` is not set."""

    _task_id: TaskId
    _directory: Path
    _stores: Mapping[str, StateStore]
    _definitions: Mapping[str, StoreDefinition]
    _changelogs: Mapping[str, TopicPartition]
    _sync: bool
    _upgrade_mode: UpgradeMode | None
    _files: dict[str, Files] = field(default_factory=dict)
    _outdated: dict[str, int] = field(default_factory=dict)  # changelog offsets of plain files that others replace
    has_replaced: bool = False
    """Whether plain files were deleted here, since timestamped ones replace them."""

    def choose(self, name: str, *, is_standby: bool = False) -> None:
        """Choose the files of this store. Raises `TopologyError` if its rows cannot come there."""
        timestamped, can_be_rebuilt = self._has_timestamps(name), name in self._changelogs
        self._files[name] = choose_files(
            self._directory, name, timestamped=timestamped, mode=self._upgrade_mode, is_standby=is_standby
        )
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
        store = self._stores[name]
        if self._is_outdated(name) and isinstance(store, TransactionalStore):
            changelog, types = self._changelogs[name], self._definitions[name].types
            outdated = check_plain_files(self._directory, name, store.layout, types, changelog)
            self._outdated[name] = outdated.offsets.get(changelog, -1)

    def context(self, name: str) -> StoreContext:
        return self._context(name, plain=self._files[name] is not Files.DECLARED)

    def to_build(self) -> list[str]:
        return [name for name, files in self._files.items() if files is Files.PLAIN_AND_BUILD]

    @property
    def has_plain(self) -> bool:
        """Whether a store that is declared with timestamps uses plain files, or has not replaced them yet."""
        return any(files is not Files.DECLARED for files in self._files.values()) or any(
            map(self._is_outdated, self._files)
        )

    @property
    def may_serve_plain(self) -> bool:
        return self._upgrade_mode is not None

    def outdated_offset(self, name: str) -> int:
        """Return the changelog offset of the plain files that this store replaces; -1 for none."""
        return self._outdated.get(name, -1)

    def drop_plain(self, committed: Callable[[str], int | None]) -> None:
        """The stores are restored up to their `committed` offsets. Delete plain files that timestamped ones replace."""
        for name in filter(self._is_outdated, self._files):
            if (committed(name) or 0) < self.outdated_offset(name):
                logger.warning("Plain files of %s in task %s stay: they had more of the changelog", name, self._task_id)
                withdraw_plain_files(self._directory, name)  # queries read the timestamped files from now on
                continue
            logger.info("Store %s of task %s is upgraded: its plain files are deleted", name, self._task_id)
            self.has_replaced = True
            try:
                remove_plain_files(self._directory, name)
            except RetryLaterError as error:
                logger.warning("Plain files are in nobody's way, and stay until the next start: %s", error)

    def wipe_build(self, name: str) -> None:
        """Delete the timestamped files that are built beside plain ones: they would keep rows that those have not."""
        if self._files[name] is Files.DECLARED or not store_path(self._directory, name, timestamped=True).exists():
            return
        store = self._definitions[name].build()
        assert isinstance(store, TransactionalStore), "only Stateline's own kinds have timestamped files"
        with contextlib.suppress(DamagedDataError):
            store.init(self._context(name, plain=False))
        store.close()
        store.wipe()

    def _context(self, name: str, *, plain: bool) -> StoreContext:
        types = self._definitions[name].types
        return StoreContext(str(self._task_id), self._directory, self._changelogs.get(name), self._sync, plain, types)

    def _has_only_timestamped_files(self, name: str) -> bool:
        plain, timestamped = (store_path(self._directory, name, timestamped=each) for each in (False, True))
        return self._stores[name].persistent and holds_database(timestamped) and not holds_database(plain)

    def _is_outdated(self, name: str) -> bool:
        is_on_declared = self._has_timestamps(name) and self._files[name] is Files.DECLARED
        return is_on_declared and has_plain_files(self._directory, name)

    def _has_timestamps(self, name: str) -> bool:
        """Return whether the store writes timestamped files. The store knows: it may be of a user's own kind."""
        store = self._stores[name]
        return isinstance(store, TransactionalStore) and store.timestamped and store.persistent
