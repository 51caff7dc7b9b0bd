"""A snapshot for as long as a block lasts."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from stateline.client.lean.client import PLANNING_S, LeanClient, LeanRequest
from stateline.spark.reading.lease import release, renew
from stateline_store.errors import CallerError, CursorExpiredError, StatelineError

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def pinned(server: LeanClient, stores: Sequence[str], ttl_s: int) -> Iterator[dict[str, Any]]:
    """A snapshot of these stores, as the server describes it. Its lease of `ttl_s` seconds is renewed every third of
    it until the block ends, and it is released then.

    Raises what the server refuses, and `NotReadyError` when it does not answer. That a lease is not renewed is logged;
    whoever reads is told when the snapshot is gone.
    """
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
