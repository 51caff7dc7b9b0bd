"""Which cores processes may use, whether they run at all, so that what is measured in turns does not disturb, and what
they have taken, of time and of memory."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

CORES = tuple(sorted(os.sched_getaffinity(0)))
_TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for parent in found:  # grows meanwhile
        for task in _threads(parent):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, Path(f"/proc/{parent}/task/{task}/children").read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """Processor seconds that this process has taken. Raises `FileNotFoundError` when it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS  # utime, stime: proc(5)


def family_cpu_s(pid: int) -> float:
    """Processor seconds that this process and its descendants have taken, those that have ended among them."""
    found = 0.0
    for member in family(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            found += sum(map(int, fields[11:15])) / _TICKS  # utime, stime, and both of children that were waited for
    return found


def memory_mb(pid: int, figure: str = "VmHWM") -> float:
    """A figure of /proc/<pid>/status in MB of 10^6 bytes, by default resident memory at its peak. Raises `OSError` when
    the process is gone."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{figure}:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:  # it has ended, and nobody has asked how
        raise ProcessLookupError(f"Process {pid} has no {figure}.")
    return int(found[1]) * 1024 / 1e6


def pin(pids: Iterable[int], cores: Iterable[int]) -> None:
    """Let these processes and their descendants run on these cores only; threads that they start later as well."""
    allowed = set(cores)
    for pid in pids:
        for member in family(pid):
            for task in _threads(member):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(task, allowed)


@contextmanager
def awake(pids: Iterable[int]) -> Iterator[None]:
    """Processes that stand still (`stand_still`) run, and then stand still again."""
    known = list(pids)
    _signal(known, signal.SIGCONT)
    try:
        yield
    finally:
        stand_still(known)


def stand_still(pids: Iterable[int]) -> None:
    """Stop these processes and their descendants until `go_on`, which has to come before they are told to end."""
    _signal(pids, signal.SIGSTOP)


def go_on(pids: Iterable[int]) -> None:
    """Let them run again."""
    _signal(pids, signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        for member in family(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, number)


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []
