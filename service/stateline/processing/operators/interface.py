"""What an operator is, and what it is given to work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from stateline.log.interface import Record
from stateline.processing.failures import FailureHandler
from stateline.processing.operators.rows import Changes, Rows
from stateline.processing.operators.stream_times import StreamTimes
from stateline.processing.processor_context import TaskContext
from stateline.processing.records import OutputRecord
from stateline_store import DamagedDataError, RetryLaterError, StateStore, TransactionalStore

Given = TypeVar("Given")


class Operator(Protocol):
    """One operator of one task, used on the worker's thread only."""

    def process(self, batch: Any) -> Rows | Changes | None:
        """Take a slice, of rows or of changes as its node was declared for, and give what follows from it, if anything.

        What it stages in stores, and writes with `OperatorContext.outputs`, is part of the task's next commit.
        """


class RecordSource(Protocol):
    """Where a topic's records come in."""

    def before(self, records: Sequence[Record]) -> None:
        """Called before the tables of the topic take these records."""

    def read(self, records: Sequence[Record]) -> Rows | Changes:
        """Called after it: the records as what follows takes them."""


@dataclass(slots=True)
class OperatorContext:
    """What operators of one task share. `outputs` collects what they write to topics; `every_store` has besides
    `stores` those that users have written.

    `exactly_once`: what a store's changelog holds was committed with all that was written for the same input.
    """

    stores: Mapping[str, TransactionalStore]
    every_store: Mapping[str, StateStore]
    task: TaskContext
    failures: FailureHandler
    max_record_bytes: int
    times: StreamTimes
    exactly_once: bool = False
    outputs: list[OutputRecord] = field(default_factory=list)

    def each(
        self, name: str, records: Iterable[Record], rows: Iterable[Given], function: Callable[[Given], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Call a user's function for each row: the row's place and what came back, without those that failed.

        What it raises is handled by ``processing.exception.handler``; what a store's disk or the log could not do is
        not the record's fault, and passes through.
        """
        for place, (record, row) in enumerate(zip(records, rows, strict=True)):
            try:
                result = function(row)
            except (RetryLaterError, DamagedDataError):
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code: the policy decides what follows
                self.failures.cannot_process(record, name, error)
            else:
                yield place, result
