"""A sweep and a writer at one location: a sweep never deletes a piece that a manifest names later.

A sweep deletes pieces that were old when it listed them. A writer may write such a piece again meanwhile. So the sweep
has a lease from before its listing until it has deleted. A writer, after its pieces and before its manifest, waits for
the sweeps that it finds, and then writes again what they deleted. A later sweep lists these pieces as new, and leaves
them alone.

A sweep renews its lease before each request. The lease of a killed one ends by itself, so no backup waits for it long.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from stateline.backup.location import BackupLocation
from stateline_store import RetryLaterError

LEFT_ALONE_S = 3 * 24 * 60 * 60
"""How long pieces without a manifest stay: a backup that is being written names them last."""
_ID = "sweep"  # on disk: never change
_RENEWED_AFTER_S = 30.0
# A request of obstore takes at most 210 s with its retries. So none that began with a valid lease outlives it.
ENDS_AFTER_S = 300.0
_LONGEST_WAIT_S = 360.0
_ASKED_EACH_S = 1.0


class SweepLease:
    """For one thread. `now_s` is the location's time at its beginning, in seconds since the epoch."""

    def __init__(self, location: BackupLocation) -> None:
        self._location, self._name = location, f"{_ID}/{secrets.token_hex(8)}"
        self._renewed_at_s = time.monotonic()
        self.now_s = location.write_lease(self._name)

    def renew(self) -> None:
        """Keep the lease. Raises `RetryLaterError` if it has ended: writers wait no longer, so nothing may be deleted
        by what was listed before."""
        at_s = time.monotonic()
        if at_s > self._renewed_at_s + _RENEWED_AFTER_S:
            self._location.write_lease(self._name)
            if time.monotonic() > self._renewed_at_s + ENDS_AFTER_S:
                raise RetryLaterError(f"{self._location.url} was too slow for this sweep: the next one continues.")
            self._renewed_at_s = at_s

    def end(self) -> None:
        self._location.end_lease(self._name)


@contextmanager
def sweep_lease(location: BackupLocation) -> Iterator[SweepLease]:
    """Yield the lease of a sweep. Raises as the location."""
    lease = SweepLease(location)
    try:
        yield lease
    finally:
        lease.end()


def wait_for_sweeps(location: BackupLocation, backup_id: str, stopped: Event) -> None:
    """Wait until the sweeps that run now have ended. Raises `RetryLaterError` after 6 minutes, and when `stopped` is
    set."""
    began_s, running = time.monotonic(), _running(location, backup_id)
    while running:
        if time.monotonic() > began_s + _LONGEST_WAIT_S or stopped.wait(_ASKED_EACH_S):
            raise RetryLaterError(f"The backup {backup_id} ends, because a sweep runs: the next one is whole again.")
        running &= _running(location, backup_id)


def _running(location: BackupLocation, backup_id: str) -> set[str]:
    with location.lease(backup_id) as now_s:
        return {name for id_, name, at_s in location.leases() if id_ == _ID and at_s + ENDS_AFTER_S > now_s}
