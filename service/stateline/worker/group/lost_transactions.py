"""`LostTransactions`: open transactions of workers that were lost in a commit."""

from __future__ import annotations

import logging
from contextlib import closing

from stateline.worker.commit.commit_order import needs_producer, transactional_id
from stateline.worker.context import WorkerContext
from stateline_store import StatelineError

# How long it tries to abort transactions of lost workers. The rest end by their timeout.
_ABORTED_WITHIN_S = 5.0

_log = logging.getLogger(__name__)


class LostTransactions:
    """Aborts open transactions of workers that were lost in a commit (`docs/design/rebalances.md`). Workers without
    transactions, or without a static name in their group, abort nothing."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        config = context.config
        writes = needs_producer(context.topology, config.dead_letter_topic, exactly_once=config.exactly_once)
        self._own = config.group_instance_id if config.exactly_once and writes else None
        self._seen: set[str] = set()

    def abort(self) -> None:
        """Abort the open transactions of members that have left since the last call. Raises nothing."""
        if self._own is None or self._context.log.embedded_file is not None:
            return
        with self._context.log.patience.for_all(_ABORTED_WITHIN_S):
            try:
                members = self._context.admin.members(self._context.group)
                now = {member.instance_id for member in members if member.instance_id is not None}
                if self._own not in now:  # the group is about to assign again
                    return
                lost, self._seen = self._seen - now, now
                for name in sorted(lost):
                    with closing(self._context.log.producer(transactional_id(self._context.group, name))) as producer:
                        producer.init_transactions()
                    _log.info("The open transaction of %s, which is lost, is aborted", name)
            except StatelineError as error:
                _log.warning("Open transactions of lost workers end after transaction.timeout.ms: %s", error)
