"""The upgrade of a store's files from plain (v1) to timestamped (v2) values (KIP-258), of one task's stores.

The directory's name alone gives the format, and bytes are never guessed. A store that the application declares as
timestamped is opened like this:

| `upgrade.from` | `upgrade.mode` | plain files | the store is                                            |
|----------------|----------------|-------------|---------------------------------------------------------|
| unset          |                | none        | its timestamped files                                   |
| unset          |                | there       | the same, restored; the plain files go after that       |
| v1             | in_place       | there       | the plain files, while timestamped ones are built       |
| v1             | roll_over      | there       | the plain files; standbys elsewhere build others        |
| v1             | any            | none        | its timestamped files                                   |
| any            |                | there, of a | the timestamped files, which follow; the plain ones go  |
|                |                | standby     | when these have all that they have                      |

A standby may build because nobody needs it to serve: its task's owner has everything. A standby that takes its task
over before it is done, while `upgrade.from` is set, is opened on its plain files again.

Without `upgrade.from` on the first start with new code, the second row is the offline upgrade. A crash loses nothing:
plain files are deleted only when the timestamped store has been restored, and a start finds the rest by itself. Until
then, they hold the earlier commits, and readers in other processes may read them.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from stateline_store.engines.engine import Commit
from stateline_store.errors import DamagedDataError, RetryLaterError
from stateline_store.files.commit_notice import CommitNotice
from stateline_store.files.directory import holds_database, notice_path, store_path
from stateline_store.layout import Layout, StoreTypes
from stateline_store.position import TopicPartition
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.steps import reached

UpgradeMode: TypeAlias = Literal["in_place", "roll_over"]
_log = logging.getLogger(__name__)


class Files(enum.Enum):
    """The files that a store is opened on."""

    DECLARED = "declared"  # those of the format that the application declares
    PLAIN = "plain"  # the plain ones of a store that is declared as timestamped
    PLAIN_AND_BUILD = "plain and build"  # the plain ones, while the timestamped ones are built


def choose_files(
    task: Path, store: str, *, timestamped: bool, mode: UpgradeMode | None, is_standby: bool = False
) -> Files:
    """Choose the files by the table above. `mode` is None if `upgrade.from` is not set. A store that is not
    `timestamped` stays plain."""
    if not timestamped or mode is None or is_standby or not holds_database(store_path(task, store, timestamped=False)):
        return Files.DECLARED
    return Files.PLAIN_AND_BUILD if mode == "in_place" else Files.PLAIN


def has_plain_files(task: Path, store: str) -> bool:
    """Return whether there are plain files of this store, or the rest of an interrupted removal."""
    return holds_database(store_path(task, store, timestamped=False)) or _trash(task, store).exists()


def check_plain_files(
    task: Path,
    store: str,
    declared: Layout,
    types: StoreTypes | None = None,
    restored_from: TopicPartition | None = None,
) -> Commit:
    """Check that the plain files are of the store that the application declares, now with timestamps. Returns their
    last commit, an empty one if they cannot be read. `restored_from` can bring the commit again.

    Raises `TopologyError` if they hold another kind of store, other types, or values with timestamps, because they
    would be deleted in the end. Raises `NewerFormatError` for a newer format. Damaged files pass: the store is rebuilt
    from its changelog. The caller holds the task's lock.
    """
    path = store_path(task, store, timestamped=False)
    if not holds_database(path):
        return Commit()
    try:
        plain = replace(declared, timestamped=False, headers=False)
        engine = RocksDBEngine(path, layout=plain, types=types, restored_from=restored_from)
    except DamagedDataError as error:
        _log.warning("Plain files that an upgrade replaces cannot be used themselves: %s", error)
        return Commit()
    try:
        return engine.last_commit()
    finally:
        engine.close()


def withdraw_plain_files(task: Path, store: str) -> None:
    """Tell readers in other processes not to use the plain files, which may stay. Raises `RetryLaterError` when the
    file system refuses. The caller holds the task's lock."""
    notice = notice_path(task, store, timestamped=False)
    if notice.exists():
        CommitNotice(notice).withdraw()


def remove_plain_files(task: Path, store: str) -> None:
    """Delete the plain files of a store whose timestamped ones are complete, also after a crash on the way.

    Readers in other processes are told first. The caller holds the task's lock. Raises `RetryLaterError` when the file
    system refuses. The next start tries again.
    """
    notice, files, trash = (
        notice_path(task, store, timestamped=False),
        store_path(task, store, timestamped=False),
        _trash(task, store),
    )
    try:
        withdraw_plain_files(task, store)
        reached("upgrade:plain-withdrawn")
        with contextlib.suppress(FileNotFoundError):
            os.rename(files, trash)  # in one step: half a database could be taken for a whole one
        reached("upgrade:plain-moved")
        notice.unlink(missing_ok=True)
        reached("upgrade:notice-removed")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(trash)  # last: while it exists, the next start repeats all of this
        reached("upgrade:plain-deleted")
    except OSError as error:
        raise RetryLaterError(
            f"{files} cannot be removed: {error.strerror}. Nothing is lost; it is tried again."
        ) from error


def _trash(task: Path, store: str) -> Path:
    return task / f".wiped-{store}"
