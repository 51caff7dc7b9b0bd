"""A process tells its supervisor when it does its work: by a pipe, which also tells when the process has ended before.

Only a process that is waited for has one. The supervisor tells it, too, whether it takes the place of another one.
"""

from __future__ import annotations

import os
import select

# No setting is called so.
_VARIABLE = "SUPERVISOR_READY_FD"
_TAKES_OVER = "SUPERVISOR_TAKES_OVER"


class ReadyPipe:
    """The supervisor's end. One thread owns it."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()

    def environment(self, *, takes_over: bool) -> dict[str, str]:
        """What tells the process of it; `write_end` has to be passed on to it, under the same number."""
        return {_VARIABLE: str(self.write_end), _TAKES_OVER: str(int(takes_over))}

    def started(self) -> None:
        """The process has its end: the supervisor's copy of that would keep the pipe open."""
        os.close(self.write_end)

    def is_said(self) -> bool:
        """Whether the process has said it. False for good when it ended before."""
        readable, _, _ = select.select([self._read_end], [], [], 0)
        return bool(readable) and os.read(self._read_end, 1) != b""

    def close(self) -> None:
        """Wait no more."""
        os.close(self._read_end)


class ReadySignal:
    """The process's end. Made once, before it starts others: these are not to take the pipe for theirs."""

    def __init__(self) -> None:
        descriptor = os.environ.pop(_VARIABLE, None)
        self._descriptor = None if descriptor is None else int(descriptor)
        self.takes_over = os.environ.pop(_TAKES_OVER, "0") == "1"
        """Whether a process that this one replaces still runs, or has just ended."""

    @property
    def is_awaited(self) -> bool:
        """Whether a supervisor waits to be told."""
        return self._descriptor is not None

    def say(self) -> None:
        """The work is done here now. Nothing when nobody waits, or it was said."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.write(descriptor, b"1")
            except BrokenPipeError:  # the supervisor waits no more
                pass
            finally:
                os.close(descriptor)
