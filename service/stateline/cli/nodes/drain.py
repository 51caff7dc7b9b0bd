"""`stateline node drain`: a node hands over the tasks of its workers, and pipelines that other nodes can run."""

from __future__ import annotations

import time
from collections.abc import Callable

from stateline.config.settings import Config
from stateline.deployment.pipelines.status import lock_path as pipeline_lock_path
from stateline.deployment.pipelines.status import pipelines_directory
from stateline.deployment.workers.instance_file import ask_pipeline_to_drain, ask_to_drain, lock_path, read_instances
from stateline_store import DoesNotExistError, RetryLaterError, StateDirectory
from stateline_store.inspection.inspection import may_be_held

_LOOK_INTERVAL_S = 0.1


def drain_node(config: Config, told: Callable[[str], object], timeout_s: float) -> None:
    """Ask every worker and pipeline of this state directory to hand over, and wait for them. `told` gets each name.
    Pipelines stay if no other node can reach their checkpoints.

    Raises `DoesNotExistError` if none runs here, and `RetryLaterError` at the timeout: they continue then.
    """
    application = StateDirectory(config.state_dir, config.application_id).application
    waiting = {name for name in read_instances(application) if may_be_held(lock_path(application, name))}
    found = pipelines_directory(config.state_dir, config.application_id).glob("*/")
    pipelines = list(found) if config.pipelines_move else []
    running = [path for path in pipelines if may_be_held(pipeline_lock_path(path))]
    if not waiting and not running:
        raise DoesNotExistError(
            f"No worker of {config.application_id} runs on {application}, and no pipeline that may move: nothing is to "
            "be drained."
        )
    for name in waiting:
        ask_to_drain(application, name)
    for path in pipelines:
        ask_pipeline_to_drain(path)  # also one that waits for its lease
    deadline_s = time.monotonic() + timeout_s
    while True:
        stopped = [path for path in running if not may_be_held(pipeline_lock_path(path))]
        for path in stopped:
            told(f"pipeline {path.name}")
        running = [path for path in running if path not in stopped]
        told_of = read_instances(application)
        done = {
            n for n in waiting if n not in told_of or told_of[n].drained or not may_be_held(lock_path(application, n))
        }
        for name in sorted(done):
            told(name)
        waiting -= done
        left = [*sorted(waiting), *(f"pipeline {path.name}" for path in running)]
        if not left:
            return
        if time.monotonic() > deadline_s:
            raise RetryLaterError(
                f"{', '.join(left)} has not handed over within {timeout_s:g} s, and continues. Run the "
                "command again, or read the worker's log."
            )
        time.sleep(_LOOK_INTERVAL_S)
