"""Renews and releases leases of snapshots.

`pinned` does so for a block. A plain `format("stateline")` does not know when Spark stops using a DataFrame. The
planner therefore starts one process per snapshot. It renews the lease every third of its time while the driver's JVM
lives, then releases the snapshot. `shared_pin` has DataFrames of one driver share a snapshot.

    python -m stateline.spark.reading.lease     # reads `_LeaseTerms` as JSON on standard input

The process holds the abstract Unix socket `stateline-lease-<user>-<snapshot>`, so there is never a second one, and no
file is left behind. If it is killed, the lease expires.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateline.client.lean.client import PLANNING_S, LeanClient, LeanRequest
from stateline.deployment.unix_sockets import check_user
from stateline_store.errors import CallerError, CursorExpiredError, NotReadyError, StatelineError

if TYPE_CHECKING:
    from stateline.spark.reading.source_options import SourceOptions

_logger = logging.getLogger(__name__)

_RELEASE_S = 10.0  # then the lease ends by itself
_JVM = "java"


@dataclass(frozen=True, slots=True)
class _LeaseTerms:
    """The snapshot whose lease a process renews, and until when."""

    server: dict[str, Any]
    snapshot: str
    ttl_s: int
    driver: int
    """The driver's process id."""
    release: bool


def keep_while_driver_lives(options: SourceOptions, snapshot: Mapping[str, Any], *, is_own: bool) -> None:
    """Start a process that renews the snapshot's lease while the Spark driver above this process lives.

    Returns at once. If the snapshot is the DataFrame's (`is_own`), the process releases it at the end, unless others
    may share its pin. Another's snapshot is renewed only with the option `renew`. Does nothing without a driver, or if
    a process already renews the lease."""
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
        start_new_session=True,  # a stop of the driver's processes must not end it before the release
    )
    assert child.stdin is not None
    with child.stdin:
        child.stdin.write(json.dumps(asdict(kept)).encode())
    child.returncode = 0  # do not wait for it: this process ends first


def driver_above(pid: int) -> int | None:
    """Return the JVM among the ancestors of this process, or None."""
    while pid > 1:
        try:
            names, _, figures = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            return None
        if names.partition("(")[2] == _JVM:
            return pid
        pid = int(figures.split()[1])
    return None


def shared_pin(options: SourceOptions, loaded_at_s: float) -> str | None:
    """Return the pin of all DataFrames that this process's driver loads in one interval of `max_age_s` seconds, with
    equal leases. None if they share none, or without a driver. `loaded_at_s` is in seconds since the epoch.

    With ``lease=ttl`` no interval is longer than the lease. So no pin outlives its snapshot."""
    driver = driver_above(os.getpid()) if options.is_shared else None
    if driver is None:
        return None
    begun = Path(f"/proc/{driver}/stat").read_text().rpartition(")")[2].split()[19]  # a process id is used again
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()  # of this machine
    length_s = options.max_age_s if options.lease == "driver" else min(options.max_age_s, options.ttl_s)
    shared = (boot, driver, begun, loaded_at_s // length_s, length_s, options.ttl_s, options.lease)
    return hashlib.blake2b(repr(shared).encode(), digest_size=12).hexdigest()


def is_kept(snapshot: str) -> bool:
    """Return whether a process of this user renews this snapshot. Any user can take such an address, so the user is
    checked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_address(snapshot))
            check_user(asking, frozenset({os.geteuid()}))
        except OSError:
            return False
    return True


def renew(server: LeanClient, snapshot: str, ttl_s: int) -> None:
    """Let the lease end in `ttl_s` seconds, unless it already lasts longer by the server's clock."""
    path = f"/v1/snapshots/{snapshot}"
    found, now_ms = server.ask_when(LeanRequest("GET", path))
    if found["expires_at"] - now_ms < ttl_s * 1000:
        server.ask(LeanRequest("PATCH", path, {"ttl_s": ttl_s}))


def release(server: LeanClient, snapshot: str, *, patience_s: float = _RELEASE_S) -> None:
    """Delete the snapshot. An absent one is no error."""
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
        except OSError:  # the driver has ended
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
    """Listen at this address. Return False if another user has it. The lease is then kept without it."""
    lock.setblocking(False)
    try:
        lock.bind(address)
    except OSError:
        return False
    lock.listen()
    return True


def _ends_within(driver: int, lock: socket.socket, seconds: float) -> bool:
    """Return whether the driver ends within this time. Closes connections meanwhile: they only check for this
    process."""
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


@contextmanager
def pinned(server: LeanClient, stores: Sequence[str], ttl_s: int) -> Iterator[dict[str, Any]]:
    """Yield a snapshot of these stores, as the server describes it. Its lease of `ttl_s` seconds is renewed every third
    of it until the block ends, then the snapshot is released. Raises the server's refusals, and `NotReadyError` if it
    does not answer. A failed renewal is logged. Readers fail once the snapshot is gone."""
    pin = os.urandom(12).hex()  # so that an answer that is lost is asked for again
    members = {"stores": list(stores), "ttl_s": ttl_s, "pin": pin}
    snapshot = server.ask(LeanRequest("POST", "/v1/snapshots", members), patience_s=PLANNING_S)
    ended = threading.Event()
    thread = threading.Thread(
        target=_keep_on, args=(server, snapshot["id"], ttl_s, ended), name="stateline-lease", daemon=True
    )
    thread.start()
    try:
        yield snapshot
    finally:
        ended.set()
        thread.join()
        release(server, snapshot["id"])


def _keep_on(server: LeanClient, snapshot: str, ttl_s: int, ended: threading.Event) -> None:
    while not ended.wait(ttl_s / 3):
        try:
            renew(server, snapshot, ttl_s)
        except (CursorExpiredError, CallerError) as error:  # gone, or not ours
            _logger.warning("The lease of the snapshot %s is not renewed any more: %s", snapshot, error)
            return
        except StatelineError as error:  # out of reach: it may come back before the lease ends
            _logger.warning("The lease of the snapshot %s is not renewed: %s", snapshot, error)


if __name__ == "__main__":
    _keep(_LeaseTerms(**json.load(sys.stdin)))
