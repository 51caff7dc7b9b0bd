"""Reset an application: look, plan, print, ask, and execute the steps in the order of `plan`. Complete an interrupted
one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from stateline.cli.reset.found import checkpoint_place, look
from stateline.cli.reset.plan import plan_of
from stateline.cli.reset.running import (
    open_transactions,
    running_elsewhere,
    running_here,
    stopped_members,
    wait_for_sessions,
)
from stateline.cli.reset.scope import Asked, scope_of
from stateline.config.directory import make_state_directory
from stateline.config.extras import need_extra
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.deployment.pipelines.checkpoint_location import is_url
from stateline.deployment.pipelines.status import pipelines_directory
from stateline.deployment.stores.discarding import delete_checkpoint, discard, discarding
from stateline.deployment.stores.resets import (
    Reset,
    ResetWork,
    begun,
    done,
    followed_epoch,
    newest_reset,
    refuse_unfinished,
    say_followed,
    say_reset,
)
from stateline.dsl.app import App
from stateline.log.interface import Admin, Log
from stateline.model.topology import Topology
from stateline.processes.application import only_run
from stateline_store import DoesNotExistError, RetryLaterError, StateDirectory, TopicPartition
from stateline_store.steps import reached

Say = Callable[[str], object]
Steps = Callable[[Reset, ResetWork, Admin], None]


class Execution:
    """One reset of an application. `say` tells people what it waits for."""

    def __init__(self, config: Config, topology: Topology, log: Log, say: Callable[[str], object]) -> None:
        self._config, self._topology, self._log, self._say = config, topology, log, say
        self._directory = StateDirectory(config.state_dir, config.application_id)
        self._application_id = config.application_id

    def run(self, work: ResetWork, steps: Steps | None = None) -> None:
        """Do this, by other `steps` if given. Raises `RetryLaterError` while anything runs, and `ConfigurationError` if
        an earlier reset is not done, or Spark is missing to delete checkpoints at a URL. Nothing is changed then. An
        error of the log or the file system interrupts the reset, and `resume` completes it. A restore from a backup is
        completed by one of the same subtopologies or more, or by a reset of everything."""
        before = newest_reset(self._log, self._application_id)
        if not _completes(work, before):
            refuse_unfinished(before, self._application_id, self._topology.target)
        with self.alone(work) as admin:
            reset = begun(before, followed_epoch(self._directory.application), work)
            say_reset(self._log, self._application_id, before, reset)
            try:
                self._refuse_what_runs(work, admin)  # again: processes that start later see the reset
            except BaseException:
                say_reset(self._log, self._application_id, reset, before)
                raise
            reached("reset:begun")
            (steps or self._steps)(reset, work, admin)
            say_reset(self._log, self._application_id, reset, done(reset))

    def resume(self) -> ResetWork:
        """Complete the interrupted reset and return it. Raises like `run`, and `DoesNotExistError` if none was
        interrupted."""
        reset = newest_reset(self._log, self._application_id)
        if reset is None or reset.state == "done" or reset.work is None:
            raise DoesNotExistError(f"No reset of {self._application_id!r} was interrupted: nothing is to be resumed.")
        if reset.work.backup:
            refuse_unfinished(reset, self._application_id, self._topology.target)
        with self.alone(reset.work) as admin:
            self._steps(reset, reset.work, admin)
            say_reset(self._log, self._application_id, reset, done(reset))
        return reset.work

    def running(self, work: ResetWork) -> list[str]:
        """Names of the processes that forbid a reset now. Sessions of stopped processes of this machine are left out,
        because `run` waits for their end."""
        with closing(self._log.admin()) as admin:
            stopped = [] if running_here(self._config) else stopped_members(self._config, admin)
            found = self._what_runs(work, admin, holds_run_lock=False)
        return [each for each in found if each not in stopped]

    @contextmanager
    def alone(self, work: ResetWork) -> Iterator[Admin]:
        """Keep `stateline run` from starting here during the block. Raises `RetryLaterError` while anything runs."""
        if any(map(is_url, self._checkpoints(work))):
            need_extra("spark", "Checkpoints at a URL")
        make_state_directory(self._config)
        if here := running_here(self._config):
            raise self.refusal(here)
        with only_run(self._config), closing(self._log.admin()) as admin:
            wait_for_sessions(self._config, admin, self._say)
            self._refuse_what_runs(work, admin)
            yield admin

    def _refuse_what_runs(self, work: ResetWork, admin: Admin) -> None:
        if found := self._what_runs(work, admin, holds_run_lock=True):
            raise self.refusal(found)

    def _what_runs(self, work: ResetWork, admin: Admin, *, holds_run_lock: bool) -> list[str]:
        found = running_here(self._config, holds_run_lock=holds_run_lock)
        found += running_elsewhere(self._config, self._topology, self._log, admin)
        found += [f"a transaction in {topic}, which ends by itself" for topic in open_transactions(work, admin)]
        return list(dict.fromkeys(found))

    def refusal(self, found: list[str]) -> RetryLaterError:
        return RetryLaterError(
            f"Nothing was changed: {self._application_id!r} runs, or may run. Stop it everywhere, and try again. "
            f"Found: {'; '.join(found)}."
        )

    def _steps(self, reset: Reset, work: ResetWork, admin: Admin) -> None:
        admin.delete_topics(_existing(work.changelogs, admin))
        reached("reset:changelogs-deleted")
        self._set_offsets(work, admin)
        reached("reset:offsets-set")
        admin.delete_topics(_existing((*work.internal, *work.results), admin))
        reached("reset:topics-deleted")
        with discarding(self._directory):
            stale = reset.stale(
                followed_epoch(self._directory.application)
            )  # includes resets that this directory has missed
            discard(self._directory, pipelines_directory(self._config.state_dir, self._application_id), stale)
            reached("reset:state-deleted")
            self._delete_checkpoints(work)
            say_followed(self._directory.application, reset.epoch)
        reached("reset:checkpoints-deleted")

    def _set_offsets(self, work: ResetWork, admin: Admin) -> None:
        """Set the offsets of existing topics. An interrupted reset may have deleted the others."""
        there = admin.topics(work.offsets) if work.offsets else {}
        offsets = {
            TopicPartition(topic, int(partition)): offset
            for topic, of in work.offsets.items()
            for partition, offset in of.items()
            if topic in there and int(partition) < there[topic].partitions
        }
        if offsets:
            admin.alter_offsets(self._application_id, offsets)

    def _checkpoints(self, work: ResetWork) -> list[str]:
        """Checkpoints outside the state directory."""
        if self._config.pipeline_checkpoint_location is None:
            return []
        return [checkpoint_place(self._config, name) for name in work.pipelines]

    def _delete_checkpoints(self, work: ResetWork) -> None:
        places = self._checkpoints(work)
        for place in places:
            if not is_url(place):
                delete_checkpoint(Path(place))
        if urls := [place for place in places if is_url(place)]:
            from stateline.spark.sink.checkpoint_folder import delete_checkpoints

            delete_checkpoints(self._config, [f"{place}/checkpoint" for place in urls])


def _existing(names: tuple[str, ...], admin: Admin) -> list[str]:
    """An interrupted reset may have deleted some of these topics."""
    return sorted(admin.topics(names)) if names else []


def reset(
    app: App, config: Config, asked: Asked, *, dry_run: bool, agreed: Callable[[], bool], say: Say, warn: Say
) -> bool:
    """Plan the reset, print it, and do it after `agreed`. Returns whether it was done. `dry_run` only prints.

    Raises `RetryLaterError` while anything of the application runs, what `plan_of` and `Execution.run` raise, and
    `DoesNotExistError` if there is no log.
    """
    if not log_exists(config):
        raise DoesNotExistError(
            f"There is no log at {config.bootstrap_servers}, so there is nothing to start over. Is it another folder?"
        )
    topology = app.topology()
    scope = scope_of(topology, asked)
    with closing(configured_log(config)) as log:
        with closing(log.admin()) as admin:
            found = look(topology, scope, asked.to, config, admin)
        plan, execution = plan_of(topology, asked, found), Execution(config, topology, log, warn)
        if not dry_run and (here := running_here(config)):
            raise execution.refusal(here)
        for line in (*plan.steps, *(f"note: {note}" for note in plan.notes)):
            say(line)
        if dry_run:
            if running := execution.running(plan.work):
                warn(f"It would be refused now, because this runs or may run: {'; '.join(running)}.")
            return False
        if not agreed():
            return False
        execution.run(plan.work)
    return True


def resume(app: App, config: Config, *, say: Say, warn: Say) -> None:
    """Complete the interrupted reset. Raises like `Execution.resume`."""
    with closing(configured_log(config)) as log:
        work = Execution(config, app.topology(), log, warn).resume()
    parts = [*(f"store {name}" for name in work.stores), *(f"pipeline {name}" for name in work.pipelines)]
    say(f"Completed: {'the whole application' if work.everything else ', '.join(parts)} starts over.")


def _completes(work: ResetWork, before: Reset | None) -> bool:
    """Whether what came before is a restore, and this does all that it had to do."""
    if before is None or before.work is None or not before.work.backup:
        return False
    return work.everything or (bool(work.backup) and set(before.work.subtopologies) <= set(work.subtopologies))
