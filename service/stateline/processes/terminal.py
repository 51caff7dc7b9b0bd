"""Why SIGHUP has come: somebody asks for new code, or the terminal is gone and with it whoever looks at this."""

from __future__ import annotations

import os
from contextlib import suppress


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
