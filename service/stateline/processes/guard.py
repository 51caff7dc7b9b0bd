"""End a supervisor's children when the supervisor has ended, even by `kill -9`. Standard library only.

Arguments: the seconds between SIGTERM and SIGKILL, and the process ids of running children. Lines of standard input:
``+PID`` for a started child (the leader of its process group), ``-PID`` for an ended one. The kernel closes the pipe
when the supervisor ends. The remaining children get SIGTERM, then their groups get SIGKILL.
"""

import os
import signal
import sys
import time
from contextlib import suppress


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its supervisor, not before
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
