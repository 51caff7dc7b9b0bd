"""One worker as a process: signals in, exit out."""

from __future__ import annotations

import gc
import logging
import signal
from types import FrameType

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.processes.child import LEAVE, ReadySignal
from stateline.processes.machine import allow_many
from stateline.processes.tracing import traced
from stateline.worker.loop.worker import Worker

logger = logging.getLogger(__name__)

# Objects between two searches for cycles. At Python's default (700) they take a fifth of the worker's time. Records
# need none, because their reference counts free them.
_GC_THRESHOLD = 100_000


def run_worker(app: App, config: Config, *, instance: str) -> None:
    """Run one worker until SIGTERM or SIGINT. It then finishes its slice, commits and ends.

    `LEAVE` also hands its tasks over at once. The worker is a static member, named ``<node>-<instance>`` unless
    ``group.instance.id`` is set. So it keeps its tasks and its disk over a crash. Call it on the main thread. Raises
    like `Worker.run`."""
    readiness = ReadySignal()
    allow_many()
    gc.freeze()  # modules and classes live as long as the process
    gc.set_threshold(_GC_THRESHOLD)
    config = config.model_copy(update={"group_instance_id": config.member_name(instance)})
    log = configured_log(config)
    try:
        worker = Worker(app, config, log, instance=instance)
        worker.on_working = readiness.say

        def stop(number: int, frame: FrameType | None) -> None:
            del frame
            logger.info("%s: finishing the slice, committing, stopping", signal.Signals(number).name)
            worker.stop(for_good=number == LEAVE)

        for number in (signal.SIGTERM, signal.SIGINT, LEAVE):
            signal.signal(number, stop)
        with traced(config, instance):
            worker.run()
    finally:
        log.close()
