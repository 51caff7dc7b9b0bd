"""The demo's own directory and port: claimed before anything starts, and begun afresh.

A directory is wiped only if it is empty or has the file ``demo.lock`` in it, which the running demo holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stateline_store import ConfigurationError, LockedError

_LOCK = "demo.lock"
_CACHE = ".cache"  # Spark's class archive: the next demo starts sooner


@contextmanager
def fresh_directory(path: Path) -> Iterator[None]:
    """Wipe the directory of an earlier demo but for its cache, or make a new one, and hold it while the block runs.

    Raises `LockedError` while another demo holds it, `ConfigurationError` when it has something else in it.
    """
    try:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be made ({error.strerror}): name another one (--state-dir)."
        ) from error
    if any(path.iterdir()) and not (path / _LOCK).exists():
        raise ConfigurationError(
            f"{path} is not the directory of a demo, and a demo wipes its directory: name a new one (--state-dir)."
        )
    with (path / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise LockedError(
                f"A demo is running in {path} already (process {lock.read().strip() or 'unknown'}): stop it, or "
                "give this one another directory (--state-dir) and port (--port)."
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        _wipe(path)
        yield


def _wipe(path: Path) -> None:
    for entry in path.iterdir():
        if entry.name == _CACHE:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()


def free_port(host: str, port: int) -> int:
    """The port itself, or a free one for 0. Raises `ConfigurationError` when it cannot be listened on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: TIME_WAIT is no obstacle
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            why = "something listens there already" if taken else str(error)
            raise ConfigurationError(
                f"The demo's server cannot listen on {host}:{port}: {why}. Choose another port "
                "(--port 8080, or make demo PORT=8080)."
            ) from error
        return int(probe.getsockname()[1])
