"""`LostTransactions`: open transactions of workers that were lost in a commit.

Nobody reads past an open transaction. So the new owners of its tasks would wait until ``transaction.timeout.ms`` is
over and the broker notices. Kafka aborts the transaction at once when another worker calls `init_transactions` with its
``transactional.id``. That loses nothing: a worker whose session is over may not commit offsets any more, and starts
over if it lives.
"""

from __future__ import annotations

import logging
from contextlib import closing

from stateline.worker.commit.commit_order import needs_producer, transactional_id
from stateline.worker.context import WorkerContext
from stateline_store import StatelineError

_log = logging.getLogger(__name__)

# For all lost workers together. Transactions that are not aborted by then end by their timeout.
_PATIENCE_S = 5.0


class LostTransactions:
    """One worker's, on its thread. Workers without transactions, or without a static name in their group, abort
    nothing."""

    def __init__(self, context: WorkerContext) -> None:
        self._log = context.log
        self._admin = context.admin
        self._application_id = context.group
        config = context.config
        writes = needs_producer(context.topology, config.dead_letter_topic, exactly_once=config.exactly_once)
        self._own = config.group_instance_id if config.exactly_once and writes else None
        self._seen: set[str] = set()

    def abort(self) -> None:
        """Abort the open transactions of members that have left the group since the last call. Raises nothing: a
        transaction that cannot be aborted ends by its timeout."""
        if self._own is None or self._log.embedded_file is not None:
            return
        with self._log.patience.for_all(_PATIENCE_S):
            try:
                members = self._admin.members(self._application_id)
                now = {member.instance_id for member in members if member.instance_id is not None}
                if self._own not in now:  # the group is about to assign again
                    return
                lost, self._seen = self._seen - now, now
                for name in sorted(lost):
                    with closing(self._log.producer(transactional_id(self._application_id, name))) as producer:
                        producer.init_transactions()
                    _log.info("The open transaction of %s, which is lost, is aborted", name)
            except StatelineError as error:
                _log.warning("Open transactions of lost workers end after transaction.timeout.ms: %s", error)
