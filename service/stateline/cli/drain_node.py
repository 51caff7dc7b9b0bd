"""`stateline node drain`: a node's workers leave their group, and others have its tasks at once."""

from __future__ import annotations

import time
from collections.abc import Callable

from stateline.config.settings import Config
from stateline.deployment.drain_request import ask_to_drain
from stateline.deployment.instance_file import Instance, lock_path, read_instances
from stateline_store import DoesNotExistError, RetryLaterError, StateDirectory
from stateline_store.inspection import lock_holder

_LOOK_INTERVAL_S = 0.1


def drain_node(config: Config, told: Callable[[str], object], timeout_s: float) -> None:
    """Have every worker of this state directory hand over what it has, and wait until they have; `told` hears of each.

    Raises `DoesNotExistError` when none runs here, `RetryLaterError` when they have not in this time: they go on with
    it.
    """
    application = StateDirectory(config.state_dir, config.application_id).application
    waiting = {name for name in read_instances(application) if _lives(config, name)}
    if not waiting:
        raise DoesNotExistError(
            f"No worker of {config.application_id} runs on {application}: nothing is to be drained."
        )
    for name in waiting:
        ask_to_drain(application, name)
    deadline_s = time.monotonic() + timeout_s
    while waiting:
        found = read_instances(application)
        done = {name for name in waiting if name not in found or _has_left(found[name]) or not _lives(config, name)}
        for name in sorted(done):
            told(name)
        waiting -= done
        if waiting and time.monotonic() > deadline_s:
            raise RetryLaterError(
                f"{', '.join(sorted(waiting))} has not handed over within {timeout_s:g} s, and goes on with it: ask "
                "again, or look at its log."
            )
        time.sleep(_LOOK_INTERVAL_S if waiting else 0.0)


def _lives(config: Config, instance: str) -> bool:
    application = StateDirectory(config.state_dir, config.application_id).application
    return lock_holder(lock_path(application, instance))[0] is not False


def _has_left(instance: Instance) -> bool:
    return instance.member_id is None and not instance.tasks
