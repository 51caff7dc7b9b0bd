"""`stateline reset`, put together: look, plan, print, ask, do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from stateline.cli.reset.execution import Execution
from stateline.cli.reset.found import look
from stateline.cli.reset.plan import Plan, plan_of
from stateline.cli.reset.running import running_here
from stateline.cli.reset.scope import Asked, scope_of
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.dsl.app import App
from stateline_store import DoesNotExistError

Say = Callable[[str], object]


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
        _say(plan, say)
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


def _say(plan: Plan, say: Say) -> None:
    for step in plan.steps:
        say(step)
    for note in plan.notes:
        say(f"note: {note}")
