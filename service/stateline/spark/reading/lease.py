"""Who renews the lease of a snapshot that a plain `format("stateline")` has made, and releases it.

Nothing tells a data source that a job is over, or that a DataFrame is not used any more. So a process of its own does,
one per snapshot: started by the planner, beside Spark's driver, it renews the lease every third of it for as long as
the driver's JVM lives, and releases the snapshot when that is gone. `stateline.spark.cut` is exact instead.

    python -m stateline.spark.reading.lease     # what to keep comes as JSON (`_LeaseTerms`) on standard input

It holds the abstract Unix socket `stateline-lease-<user>-<snapshot>`, so there is never a second one, and no file is
left behind. Killed, it leaves a lease that ends by itself.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateline.client.lean.client import LeanClient, LeanRequest
from stateline.deployment.unix_sockets import check_user
from stateline_store.errors import CallerError, CursorExpiredError, NotReadyError, StatelineError

if TYPE_CHECKING:
    from stateline.spark.reading.source_options import SourceOptions

_RELEASE_S = 10.0  # for how long the release is tried: then the lease ends by itself
_JVM = "java"


@dataclass(frozen=True, slots=True)
class _LeaseTerms:
    """The snapshot whose lease a renewing process renews, and until when."""

    server: dict[str, Any]
    snapshot: str
    ttl_s: int
    driver: int
    """The driver's process id."""
    release: bool


def keep_while_driver_lives(options: SourceOptions, snapshot: Mapping[str, Any], *, is_own: bool) -> None:
    """Have this snapshot's lease renewed while the Spark driver that this process works for lives. Returns at once.

    One's own (`is_own`) is released then, unless others may share its pin; one that somebody else has made is only
    renewed, and only if the options say so. Does nothing if that is being done, or if there is no driver.
    """
    wanted = options.lease == "driver" if is_own else options.renew
    driver = driver_above(os.getpid()) if wanted else None
    if driver is None or is_kept(snapshot["id"]):
        return
    kept = _LeaseTerms(
        asdict(options.server), snapshot["id"], options.ttl_s, driver, release=is_own and options.pin is None
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen(
        [sys.executable, "-m", "stateline.spark.reading.lease"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
        start_new_session=True,  # what stops the driver's processes is not meant for it: it has a snapshot to release
    )
    assert child.stdin is not None
    with child.stdin:
        child.stdin.write(json.dumps(asdict(kept)).encode())
    child.returncode = 0  # its end is not waited for: this process ends first


def driver_above(pid: int) -> int | None:
    """The JVM among the processes that this one was started by; None when there is none."""
    while pid > 1:
        if _name(pid) == _JVM:
            return pid
        pid = _parent(pid)
    return None


def is_kept(snapshot: str) -> bool:
    """Whether a process of this user on this machine renews this snapshot. Any user can take such an address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_address(snapshot))
            check_user(asking, frozenset({os.geteuid()}))
        except OSError:
            return False
    return True


def renew(server: LeanClient, snapshot: str, ttl_s: int) -> None:
    """Let the lease end in `ttl_s` seconds, unless it lasts for longer anyway, by the server's clock: a renewal could
    make it shorter."""
    path = f"/v1/snapshots/{snapshot}"
    found, now_ms = server.ask_when(LeanRequest("GET", path))
    if found["expires_at"] - now_ms < ttl_s * 1000:
        server.ask(LeanRequest("PATCH", path, {"ttl_s": ttl_s}))


def release(server: LeanClient, snapshot: str, *, patience_s: float = _RELEASE_S) -> None:
    """Let the snapshot go; one that is gone already is no error."""
    try:
        server.ask(LeanRequest("DELETE", f"/v1/snapshots/{snapshot}"), patience_s=patience_s)
    except (CursorExpiredError, CallerError):
        return  # gone, or another's by now: its lease ends by itself


def _keep(kept: _LeaseTerms) -> None:
    server = LeanClient(**{**kept.server, "urls": tuple(kept.server["urls"])})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        if not _took(lock, _address(kept.snapshot)) and is_kept(kept.snapshot):
            return
        try:
            driver = os.pidfd_open(kept.driver)
        except OSError:  # it is gone, and with it whoever would read
            return
        try:
            while not _ends_within(driver, lock, kept.ttl_s / 3):
                with suppress(NotReadyError):  # out of reach: it may come back before the lease ends
                    renew(server, kept.snapshot, kept.ttl_s)
        except StatelineError:
            return  # gone, or not ours to renew: readers say so themselves
        finally:
            os.close(driver)
        if kept.release:
            release(server, kept.snapshot)


def _took(lock: socket.socket, address: bytes) -> bool:
    """Whether the socket listens at this address now. Where another user has it, the lease is kept without it."""
    lock.setblocking(False)
    try:
        lock.bind(address)
    except OSError:
        return False
    lock.listen()
    return True


def _ends_within(driver: int, lock: socket.socket, seconds: float) -> bool:
    """Whether the driver ends within this time. Meanwhile connections are closed: who makes one only looks whether
    a process renews the snapshot."""
    until_s = time.monotonic() + seconds
    watched = [driver, *([lock.fileno()] if lock.getsockname() else ())]
    while (left_s := until_s - time.monotonic()) > 0:
        ready, _, _ = select.select(watched, [], [], left_s)
        if driver in ready:
            return True
        with suppress(OSError):
            lock.accept()[0].close()
    return False


def _address(snapshot: str) -> bytes:
    return b"\0stateline-lease-%d-%s" % (os.getuid(), snapshot.encode())


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


if __name__ == "__main__":
    _keep(_LeaseTerms(**json.load(sys.stdin)))
