"""Says that a call waits for Kafka, before the user takes it for stuck."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

SAY_AFTER_S = 1.0


@contextmanager
def waiting_is_said(bootstrap_servers: str, timeout_s: float) -> Iterator[None]:
    """Logs one line when the block is still at it after a second; `timeout_s` is when it gives up.

    Costs a thread, about 0.1 ms: not for what is called per record.
    """
    text = "Waiting for Kafka at %s (bootstrap.servers), up to %.0f s"
    timer = threading.Timer(SAY_AFTER_S, logger.warning, (text, bootstrap_servers, timeout_s))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
