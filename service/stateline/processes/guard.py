"""Ends a supervisor's children when the supervisor is gone, even after `kill -9`. Standard library only.

Arguments: the seconds between SIGTERM and SIGKILL, and the children that run already. Standard input has
lines: ``+PID`` a child (the leader of its process group) was started, ``-PID`` it has ended. The kernel closes
the pipe with the supervisor, whatever killed that. What is left gets SIGTERM, then SIGKILL for its whole group.
"""

import os
import signal
import sys
import time
from contextlib import suppress


def main() -> None:
    """Follow standard input to its end, then end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it goes with its supervisor, not before
    children = {int(pid) for pid in sys.argv[2:]}
    for line in sys.stdin:
        (children.add if line[0] == "+" else children.discard)(int(line[1:]))
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + float(sys.argv[1])
    while any(map(_lives, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in children:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
