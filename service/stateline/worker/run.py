"""One worker as a process: signals in, exit out."""

from __future__ import annotations

import logging
import signal
from types import FrameType

from stateline.app import App
from stateline.config import Config
from stateline.configured_log import configured_log
from stateline.worker.worker import Worker

logger = logging.getLogger(__name__)


def run_worker(app: App, config: Config, *, instance: str) -> None:
    """Run one worker until SIGTERM or SIGINT, which let it finish its slice, commit and leave. Main thread only.

    Raises what `Worker.run` raises; nothing that was committed is lost by it.
    """
    log = configured_log(config)
    try:
        worker = Worker(app, config, log, instance=instance)

        def stop(number: int, frame: FrameType | None) -> None:
            del frame
            logger.info("%s: finishing the slice, committing, leaving", signal.Signals(number).name)
            worker.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        worker.run()
    finally:
        log.close()
