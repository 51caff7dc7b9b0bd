"""Delete state that is older than the newest reset (`deployment.stores.resets`), before anything opens it.

A reset empties the state directory in which it runs. It cannot reach directories of other machines, whose stores would
continue at offsets that are no longer valid. So each process that starts compares the directory's epoch with that of
the newest reset, and deletes older state. It writes the new epoch after the deletion. After a crash in between, the
next start deletes again. No new state is lost, because no process opens a store before.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.deployment.pipelines.status import pipelines_directory, status_path
from stateline.deployment.stores.resets import (
    Reset,
    Stale,
    followed_epoch,
    newest_reset,
    refuse_unfinished,
    say_followed,
)
from stateline.deployment.stores.topology_file import publish_unrefused
from stateline.log.interface import Log
from stateline_store import CallerError, LockedError, RetryLaterError, StateDirectory, TaskLock
from stateline_store.files.directory import make_directory
from stateline_store.files.durable_files import refused
from stateline_store.files.relocation_journal import journal_path
from stateline_store.steps import reached

_LOCK = ".reset.lock"  # on disk: never change
_PATIENCE_S = 60.0
_LOG_PATIENCE_S = 5.0
_LOOK_INTERVAL_S = 0.05
_OLD = ".deleted-checkpoint"  # on disk: never change

_logger = logging.getLogger(__name__)


def settle_resets(config: Config, log: Log, target: str) -> Reset | None:
    """Delete state here that is older than the newest reset. Returns that reset, None if there was none. `target` is
    how commands name the application.

    Raises `ConfigurationError` with the command if a reset is not complete. Raises `LockedError` if another process
    deletes here for a minute, `RetryLaterError` with what cannot be deleted, and what the log raises.
    """
    return _settle(config, newest_reset(log, config.application_id), target)


def settle_if_known(config: Config, target: str) -> None:
    """Run `settle_resets` for a server. A server answers from disk also while the log is away or unreadable. Then a
    worker deletes later."""
    if not log_exists(config):
        return
    try:
        with closing(configured_log(config)) as log, log.patience.for_all(_LOG_PATIENCE_S):
            reset = newest_reset(log, config.application_id)
    except (RetryLaterError, CallerError) as error:
        _logger.warning("Whether the state here is older than a reset is not known now: %s", error)
        return
    _settle(config, reset, target)


def _settle(config: Config, reset: Reset | None, target: str) -> Reset | None:
    directory = StateDirectory(config.state_dir, config.application_id)
    refuse_unfinished(reset, config.application_id, target)
    if reset is None or followed_epoch(directory.application) >= reset.epoch:
        return reset
    with discarding(directory):
        stale = reset.stale(followed_epoch(directory.application))
        found = discard(directory, pipelines_directory(config.state_dir, config.application_id), stale)
        if found:
            _logger.warning(
                "%s has state from before %s was started over: %s deleted", directory.application,
                config.application_id, ", ".join(found),
            )  # fmt: skip
        say_followed(directory.application, reset.epoch)
    return reset


@contextmanager
def discarding(directory: StateDirectory) -> Iterator[None]:
    """Be the only process that deletes in this directory. Raises `LockedError` after a minute."""
    make_directory(directory.application)
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            lock = TaskLock(directory.application / _LOCK)
            break
        except LockedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(_LOOK_INTERVAL_S)
    try:
        yield
    finally:
        lock.release()


def discard(directory: StateDirectory, pipelines: Path, stale: Stale) -> list[str]:
    """Delete stale state under `discarding`. Returns its names for people. `pipelines` is the directory of this
    machine's.

    Raises `LockedError` if a process still has a task, `RetryLaterError` with what cannot be deleted.
    """
    if not stale or not directory.application.exists():
        return []
    found = _everything(directory) if stale.everything else _stores(directory, stale)
    publish_unrefused(directory.application)
    reached("reset:stores-deleted")
    names = {path.name for path in pipelines.glob("*/")} if stale.everything else stale.pipelines
    return found + [f"pipeline {name}" for name in sorted(names) if delete_checkpoint(pipelines / name)]


def stored(directory: StateDirectory, stale: Stale) -> list[str]:
    """The stores that `discard` would delete, as ``0_3`` or ``totals of 0_3``. Changes nothing."""
    if not directory.application.exists():
        return []
    tasks = [task for task in directory.all_tasks() if _holds_anything(directory.task(task))]
    if stale.everything:
        return tasks
    return [f"{store} of {task}" for task in tasks for store in sorted(stale.stores) if _has(directory, task, store)]


def has_checkpoint(pipeline: Path) -> bool:
    """Whether a pipeline's directory has a checkpoint, or the rest of one whose deletion was interrupted."""
    return (pipeline / "checkpoint").exists() or (pipeline / _OLD).exists()


def delete_checkpoint(pipeline: Path) -> bool:
    """Delete the checkpoint of a pipeline's directory, atomically for readers. Returns whether there was one. Raises
    `RetryLaterError` if that is refused."""
    checkpoint, old = pipeline / "checkpoint", pipeline / _OLD
    there = has_checkpoint(pipeline)
    try:
        if old.exists():
            shutil.rmtree(old)
        if checkpoint.exists():
            checkpoint.rename(old)
            shutil.rmtree(old)
        status_path(pipeline).unlink(missing_ok=True)
    except OSError as error:
        raise refused(checkpoint, "deleted", error) from error
    return there


def _everything(directory: StateDirectory) -> list[str]:
    found = []
    for task in directory.all_tasks():
        if _holds_anything(directory.task(task)):
            with directory.lock_task(task) as lock:
                directory.delete_task(lock)
            found.append(f"task {task}")
    try:
        journal_path(directory).unlink(missing_ok=True)  # its stores are deleted
        # It has partition counts for stores, and no store is left.
        (directory.application / "topology.json").unlink(missing_ok=True)
        _delete_copies(directory)
    except OSError as error:
        raise refused(directory.application, "emptied", error) from error
    return found


def _stores(directory: StateDirectory, stale: Stale) -> list[str]:
    found = []
    for task in directory.all_tasks():
        names = [name for name in sorted(stale.stores) if _has(directory, task, name)]
        if names:
            with directory.lock_task(task) as lock:
                found += [f"{name} of task {task}" for name in names if directory.delete_store(lock, name)]
    try:
        if stale.stores:
            _delete_copies(directory)  # copies contain the stores too
    except OSError as error:
        raise refused(directory.application, "emptied", error) from error
    return found


def _delete_copies(directory: StateDirectory) -> None:
    copies = directory.application / "copies"
    if copies.exists():
        shutil.rmtree(copies)


def store_places(directory: StateDirectory, task: str, store: str) -> list[Path]:
    """All paths at which a task may have files of this store."""
    databases = [directory.store(task, store, timestamped=timestamped) for timestamped in (False, True)]
    return [directory.task(task) / store, *databases]


def _has(directory: StateDirectory, task: str, store: str) -> bool:
    return any(path.exists() for path in store_places(directory, task, store))


def _holds_anything(task: Path) -> bool:
    return any(path.name != ".lock" for path in task.iterdir())
