"""Why SIGHUP has come: somebody asks for new code, or the terminal is gone and with it whoever looks at this."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def hangups_held() -> Iterator[None]:
    """SIGHUP waits within the block, until `heed_hangups` or its end: a process that still loads has no answer to it,
    and would be ended. Main thread only."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def heed_hangups() -> None:
    """SIGHUP comes from now on, and one that has waited at once."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])


class Terminal:
    """The terminal that this process was started from, if any."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):  # started by systemd, in a container
            self._descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)

    def is_gone(self) -> bool:
        """Whether there was one, and it has hung up."""
        if self._descriptor is None:
            return False
        try:
            os.tcgetpgrp(self._descriptor)
        except OSError:
            return True
        return False

    def close(self) -> None:
        """Look at it no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
