"""A process that takes another one's place tells its supervisor when it does the work: by a pipe, which also tells when
the process has ended before.

Only who is waited for has one: a process that starts where nothing ran need not say so.
"""

from __future__ import annotations

import os
import select

_VARIABLE = "SUPERVISOR_READY_FD"  # no setting is called so


class ReadyPipe:
    """The supervisor's end. One thread owns it."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()

    @property
    def environment(self) -> dict[str, str]:
        """What tells the process of it; `write_end` has to be passed on to it, under the same number."""
        return {_VARIABLE: str(self.write_end)}

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


class Readiness:
    """The process's end. Made once, before it starts others: these are not to take the pipe for theirs."""

    def __init__(self) -> None:
        descriptor = os.environ.pop(_VARIABLE, None)
        self._descriptor = None if descriptor is None else int(descriptor)

    @property
    def is_awaited(self) -> bool:
        """Whether a supervisor waits, because what this one is to take over from still runs, or has just ended."""
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
