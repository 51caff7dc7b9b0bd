"""Makes a driver wait for the leases of its pipelines, and end when it loses one."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress

from stateline.config.settings import Config
from stateline.deployment.pipelines.lease import PipelineLease
from stateline.deployment.pipelines.status import status_path
from stateline.deployment.workers.instance_file import pipeline_drain_path
from stateline.log import Log
from stateline.model.pipeline import Pipeline
from stateline.spark.drivers.one_pipeline import pipeline_directory
from stateline.spark.drivers.process import LOOK_INTERVAL_S, Stopping, kill_descendants, pipeline_lock
from stateline_store import LockedError
from stateline_store.files.directory import make_directory

_PATIENCE_SESSIONS = 2  # how long `available_now` waits for a killed driver's lease
_logger = logging.getLogger(__name__)


@contextmanager
def leased(
    pipelines: Sequence[Pipeline], config: Config, log: Log, stopping: Stopping, *, available_now: bool
) -> Iterator[Callable[[], bool]]:
    """Run the block once this node has the lease of each pipeline, or `stopping` is set. It gets a function that says
    whether all leases still hold. Pipelines that cannot move need no lease. If a lease is lost, the driver ends with
    its JVM. With `available_now`, raises `LockedError` if another node runs one of them. Raises errors of the log that
    do not pass."""
    if not config.pipelines_move:
        yield lambda: True
        return
    leases: list[PipelineLease] = []
    with ExitStack() as held:
        for name in sorted(pipeline.name for pipeline in pipelines):  # sorted: no two drivers wait for each other
            drain = pipeline_drain_path(pipeline_directory(config, name))
            lease = PipelineLease(log, config, name, lost=_end_driver, is_drained=drain.exists, give_up=stopping.set)
            leases.append(held.enter_context(closing(lease)))
            _wait(lease, config, name, stopping, available_now=available_now)
        yield lambda: all(lease.holds for lease in leases)


def begin_anew(pipelines: Sequence[Pipeline], config: Config) -> None:
    """Delete the drain requests of these pipelines: a started driver takes part again."""
    for pipeline in pipelines:
        directory = pipeline_directory(config, pipeline.name)
        make_directory(directory)
        pipeline_drain_path(directory).unlink(missing_ok=True)


def _wait(lease: PipelineLease, config: Config, name: str, stopping: Stopping, *, available_now: bool) -> None:
    deadline_s = time.monotonic() + _PATIENCE_SESSIONS * config.session_timeout_ms / 1000
    told = False
    while not lease.holds and not stopping.wait(LOOK_INTERVAL_S):
        if lease.failure is not None:
            raise lease.failure
        if not told and lease.owner not in (None, config.node):
            told = True
            drained = pipeline_drain_path(pipeline_directory(config, name)).exists()
            then = "takes no part until its driver restarts" if drained else "takes over when that is lost"
            _logger.info("pipeline %s runs on node %r; this one %s", name, lease.owner, then)
            _forget_status(config, name)
        if available_now and time.monotonic() > deadline_s:
            raise LockedError(f"Pipeline {name!r} runs on node {lease.owner!r}: stop it there first.")


def _forget_status(config: Config, name: str) -> None:
    """Delete the status of an earlier driver. The node that runs the pipeline reports it."""
    directory = pipeline_directory(config, name)
    with suppress(LockedError):
        lock = pipeline_lock(directory)
        status_path(directory).unlink(missing_ok=True)
        lock.release()


def _end_driver(why: str) -> None:
    """End the driver at once, without an orderly stop: its JVM must write no more. A ``spark-submit`` JVM, which
    started this process, ends with it. Its writes until then are fenced."""
    kill_descendants()
    _logger.error("%s The driver ends, and waits for its turn when it is started again.", why)
    os._exit(1)
