"""Bounds how long calls wait for a log, logs that they wait, and gives up calls that do not return."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_logger = logging.getLogger(__name__)
_SHORTEST_S = 0.05  # of a call after the limit: clients take less for no timeout
_SAY_AFTER_S = 1.0


class Patience(threading.local):
    """The time limit of one log and its clients. Each thread has its own."""

    _until_s = math.inf

    def of(self, timeout_s: float) -> float:
        """Return the seconds that a call may take that would take up to `timeout_s`."""
        return max(_SHORTEST_S, min(timeout_s, self._until_s - time.monotonic()))

    @contextmanager
    def for_all(self, seconds: float) -> Iterator[None]:
        """Let all calls inside the block wait this long together."""
        before, self._until_s = self._until_s, min(self._until_s, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._until_s = before


@contextmanager
def waiting_is_said(bootstrap_servers: str, timeout_s: float) -> Iterator[None]:
    """Log one line if the block takes longer than 1 s. `timeout_s` is when it gives up. Costs a thread, about 0.1 ms:
    not for calls per record."""
    text = "Waiting for Kafka at %s (bootstrap.servers), up to %.0f s"
    timer = threading.Timer(_SAY_AFTER_S, _logger.warning, (text, bootstrap_servers, timeout_s))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def within(timeout_s: float, name: str, work: Callable[[], T], late: Callable[[], object] | None = None) -> T:
    """Return or raise what `work` does, for librdkafka calls that ignore timeouts. `work` runs on its own thread,
    called `name`. That costs about 0.1 ms. Raises `TimeoutError` after `timeout_s`. `work` then continues, its result
    is dropped, and its thread calls `late`. No other thread may use its client from then on."""
    returned: list[T] = []
    raised: list[BaseException] = []
    over = threading.Lock()  # held while either thread decides whether `work` returned in time
    came_back, given_up = threading.Event(), threading.Event()

    def run() -> None:
        try:
            returned.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            raised.append(error)
        with over:
            came_back.set()
        if given_up.is_set() and late is not None:
            late()

    threading.Thread(target=run, name=name, daemon=True).start()
    if not came_back.wait(timeout_s):
        with over:
            if not came_back.is_set():
                given_up.set()
                raise TimeoutError(f"{name} has not come back after {timeout_s:.0f} seconds.")
    if raised:
        raise raised[0]
    return returned[0]
