"""Limits and memory of this process's machine, and whether Spark started the process."""

from __future__ import annotations

import logging
import os
import resource
from contextlib import suppress
from pathlib import Path

# Enough for any server. Some libraries visit every possible descriptor, which is slow with millions.
_WANTED = 65_536

_log = logging.getLogger(__name__)


def allow_many() -> None:
    """Raise the soft limit as far as the system allows. A shell's 1024 are too few for a server's idle connections, or
    for the files of a worker's stores."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS has another limit below `hard`
        _log.info("At most %d files and connections can be open: %s", soft, error)


def free_bytes() -> int | None:
    """Memory that is available without swapping; None if the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def is_submitted() -> bool:
    """Whether ``spark-submit`` has started this process, and with it the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
