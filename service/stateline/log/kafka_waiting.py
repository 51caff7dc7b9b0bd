"""Calls that wait for Kafka: said before the user takes them for stuck, and given up when they do not come back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

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


def within(timeout_s: float, name: str, work: Callable[[], T], late: Callable[[], object] | None = None) -> T:
    """What `work` returns or raises, for calls of librdkafka that take no timeout, or do not keep it.

    `work` runs on a thread of its own, which is called `name`; about 0.1 ms. Raises `TimeoutError` when it has not
    come back after `timeout_s`. It goes on then, what comes of it is dropped, and `late` is called behind it, on its
    thread: nobody else may use its client from then on.
    """
    returned: list[T] = []
    raised: list[BaseException] = []
    over = threading.Lock()  # held by whoever decides whether it came back in time
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
