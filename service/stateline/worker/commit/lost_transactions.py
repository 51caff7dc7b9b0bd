"""`LostTransactions`: what workers leave open that are lost in the middle of a commit.

Nobody reads past an open transaction, so its tasks' new owners would wait for it until ``transaction.timeout.ms`` is
over, and for the broker to notice. Kafka aborts it at once for whoever begins in the name of the one that is lost
(`init_transactions`). Nothing is lost by that: the one whose session is over may commit no offsets any more, and if it
lives it begins anew.
"""

from __future__ import annotations

import logging
from contextlib import closing

from stateline.log.interface import Admin, Log
from stateline.worker.commit.commit_order import transactional_id
from stateline_store import StatelineError

_log = logging.getLogger(__name__)

# For all that are lost at once. What is not aborted then is waited for.
_PATIENCE_S = 5.0


class LostTransactions:
    """One worker's, on its thread. `own` is its name in the group, as which others would find it; None where it has no
    static one."""

    def __init__(self, log: Log, admin: Admin, application_id: str, own: str | None) -> None:
        self._log = log
        self._admin = admin
        self._application_id = application_id
        self._own = own
        self._seen: set[str] = set()

    def abort(self) -> None:
        """The group has decided anew who has what: abort what those have left open who were in it the last time, and
        are not now. Raises nothing: what cannot be aborted ends by itself."""
        if self._own is None or self._log.embedded_file is not None:
            return
        with self._log.patience.for_all(_PATIENCE_S):
            try:
                members = self._admin.members(self._application_id)
                now = {member.instance_id for member in members if member.instance_id is not None}
                if self._own not in now:  # the group has others by now, and says so soon
                    return
                lost, self._seen = self._seen - now, now
                for name in sorted(lost):
                    with closing(self._log.producer(transactional_id(self._application_id, name))) as producer:
                        producer.init_transactions()
                    _log.info("The open transaction of %s, which is lost, is aborted", name)
            except StatelineError as error:
                _log.warning("Open transactions of lost workers end after transaction.timeout.ms: %s", error)
