"""Ends processes that carry a mark in their environment. Standard library only.

As a program it waits until the process of its first argument has ended, however that was, and then ends every process
whose environment has its second argument, ``NAME=value``, in it: children, and what they have started, in whatever
session or process group it is by then.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

OWNER = "PYTEST_STATELINE_OWNER"  # the test, or fixture of several tests, that started a process
_PASSES_S = 20.0


def marked(mark: str) -> list[int]:
    """Processes other than this one whose environment, as it was when they started, has this ``NAME=value``."""
    found, wanted = [], b"\0" + mark.encode() + b"\0"
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # it ended, or is another user's
                if wanted in b"\0" + file.read():
                    found.append(int(name))
    return found


def end_marked(mark: str) -> int:
    """Kill them until none is left, also of those that they start meanwhile. How many there were."""
    until_s, count = time.monotonic() + _PASSES_S, 0
    while (found := marked(mark)) and time.monotonic() < until_s:
        count += len(found)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return count


def main(pid: int, mark: str) -> None:
    """Wait for this process to end, then end what carries the mark."""
    with suppress(ProcessLookupError):
        ended = select.poll()
        ended.register(os.pidfd_open(pid), select.POLLIN)
        ended.poll()
    end_marked(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
