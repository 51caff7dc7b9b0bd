"""Tell a supervisor by a pipe that a process is ready. The pipe also tells if the process ended before.

Only awaited processes have a pipe. The supervisor also tells the process whether it replaces another one.
"""

from __future__ import annotations

import os
import select

# No setting has these names.
_VARIABLE = "SUPERVISOR_READY_FD"
_TAKES_OVER = "SUPERVISOR_TAKES_OVER"


class ReadyPipe:
    """The supervisor's end. One thread owns it."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()

    def environment(self, *, takes_over: bool) -> dict[str, str]:
        """Variables for the process. It has to inherit `write_end` under the same number."""
        return {_VARIABLE: str(self.write_end), _TAKES_OVER: str(int(takes_over))}

    def started(self) -> None:
        """Close the supervisor's copy of the process's end, which would keep the pipe open."""
        os.close(self.write_end)

    def is_said(self) -> bool:
        """Whether the process is ready. Stays False if it ended before."""
        readable, _, _ = select.select([self._read_end], [], [], 0)
        return bool(readable) and os.read(self._read_end, 1) != b""

    def close(self) -> None:
        os.close(self._read_end)


class ReadySignal:
    """The process's end. Make it once, before the process starts others, which must not inherit the pipe."""

    def __init__(self) -> None:
        descriptor = os.environ.pop(_VARIABLE, None)
        self._descriptor = None if descriptor is None else int(descriptor)
        self.takes_over = os.environ.pop(_TAKES_OVER, "0") == "1"
        """Whether a process that this one replaces still runs, or has just ended."""

    @property
    def is_awaited(self) -> bool:
        """Whether a supervisor waits for readiness."""
        return self._descriptor is not None

    def say(self) -> None:
        """Report readiness, once. Does nothing if nobody waits."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.write(descriptor, b"1")
            except BrokenPipeError:  # the supervisor waits no more
                pass
            finally:
                os.close(descriptor)
