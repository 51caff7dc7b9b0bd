"""A log whose commits can be in doubt."""

from __future__ import annotations

from pathlib import Path

from stateline.log.embedded import EmbeddedLog
from stateline.log.embedded_producer import EmbeddedProducer
from stateline_store import InDoubtError


class DoubtfulLog(EmbeddedLog):
    """Says of its commit number `doubted`, counted from 0, that the outcome is unknown, after doing it or not.

    `doubts` is how often it has said so.
    """

    def __init__(self, path: Path, *, committed: bool, doubted: int = 0) -> None:
        super().__init__(path)
        self.doubts = 0
        self._until_doubt = doubted
        self._committed = committed

    def producer(
        self, transactional_id: str | None = None, *, transaction_timeout_ms: int | None = None
    ) -> EmbeddedProducer:
        producer = super().producer(transactional_id, transaction_timeout_ms=transaction_timeout_ms)
        commit = producer.commit_transaction

        def doubtful_commit() -> None:
            self._until_doubt -= 1
            doubtful = self._until_doubt == -1
            if self._committed or not doubtful:
                commit()
            if doubtful:
                self.doubts += 1
                raise InDoubtError("the outcome is unknown")

        producer.commit_transaction = doubtful_commit  # type: ignore[method-assign]  # the fault under test
        return producer
