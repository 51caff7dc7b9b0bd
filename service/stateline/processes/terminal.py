"""Tell apart the two reasons of SIGHUP: a request for new code, and a closed terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def hangups_held() -> Iterator[None]:
    """Hold SIGHUP back during the block, or until `heed_hangups`: it would end a process that still loads. Main thread
    only."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def heed_hangups() -> None:
    """Accept SIGHUP from now on, including one that was held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])


class Terminal:
    """The terminal that started this process, if any."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):  # none under systemd or in a container
            self._descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)

    def is_gone(self) -> bool:
        """Whether there was one and it has hung up."""
        if self._descriptor is None:
            return False
        try:
            os.tcgetpgrp(self._descriptor)
        except OSError:
            return True
        return False

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
