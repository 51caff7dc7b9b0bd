"""The operators' interface, and the context that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from stateline.log.interface import Headers, Record
from stateline.model.record_size import refuse_too_large
from stateline.processing.failures import FailureHandler
from stateline.processing.operators.rows import Changes, Rows, SideRows
from stateline.processing.operators.stream_times import StreamTimes
from stateline.processing.processor_context import TaskContext
from stateline.processing.records import OutputRecord
from stateline_store import DamagedDataError, RetryLaterError, StateStore, TransactionalStore

Given = TypeVar("Given")


class Operator(Protocol):
    """One operator of one task, on the worker's thread."""

    def process(self, batch: Any) -> Rows | SideRows | Changes | None:
        """Take a slice of rows or changes, as the node was declared, and return what follows from it. Staged rows and
        `OperatorContext.outputs` are part of the task's next commit."""


class RecordSource(Protocol):
    """Where a topic's records come in."""

    def before(self, records: Sequence[Record]) -> None:
        """Look at records before the topic's tables take them."""

    def read(self, records: Sequence[Record]) -> Rows | Changes:
        """Return the same records afterwards, as rows or changes."""


@dataclass(slots=True)
class OperatorContext:
    """Shared by the operators of one task. `outputs` collects what they write to topics. `every_store` adds the
    application's own stores to `stores`. `exactly_once`: a store's changelog was committed with all output of the same
    input. `repeats`: input comes again whose effect the stores have already. `has_readers`: other operators take what
    the present one returns, so that it must return it. `title` is the name that the application gives to the present
    one, empty for none. `partitions_of`: the partition count of a topic, None if there
    is no such topic."""

    stores: Mapping[str, TransactionalStore]
    every_store: Mapping[str, StateStore]
    task: TaskContext
    failures: FailureHandler
    max_record_bytes: int
    times: StreamTimes
    exactly_once: bool = False
    repeats: bool = False
    has_readers: bool = True
    title: str = ""
    partitions_of: Callable[[str], int | None] = lambda topic: None
    outputs: list[OutputRecord] = field(default_factory=list)
    _headers: Headers = ()

    def time_so_far(self, store: str, newest_ms: int) -> int:
        """Return the stream time at which the operator of this store begins, -1 for none. `newest_ms` is the largest
        timestamp of the store's rows. Exactly once, it counts: they may come from a changelog. Otherwise their input
        may come again, and must not be late because of later rows."""
        now_ms = -1 if self.repeats else self.times.observed(store)
        return max(now_ms, newest_ms) if self.exactly_once else now_ms

    def each(
        self, name: str, records: Iterable[Record], rows: Iterable[Given], function: Callable[[Given], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Call a function for each row. Yields the place and the result of each row that did not fail.
        ``processing.exception.handler`` handles errors. Errors of a store's disk or the log are raised: they are not
        the record's fault."""
        for place, (record, row) in enumerate(zip(records, rows, strict=True)):
            self._headers = record.headers
            try:
                result = function(row)
            except (RetryLaterError, DamagedDataError):
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code: the policy decides what follows
                self.failures.cannot_process(record, self.title or name, error)
            else:
                yield place, result

    def of_before(self, function: Callable[[], Given | None]) -> Given | None:
        """Return the result for a value that came before, None if the function fails for it: then it failed when the
        value came, which went no further. Raises the error under the policy fail."""
        try:
            return function()
        except (RetryLaterError, DamagedDataError):
            raise
        except (Exception, SystemExit):
            if not self.failures.undoes_writes:
                raise
            return None

    def refuse_too_large(self, key: bytes, value: bytes | None, store: TransactionalStore) -> None:
        """Raise `InvalidArgumentError` for a change that the store's changelog would refuse. A store with headers adds
        those of the record that `each` is at."""
        refuse_too_large(key, value, self.max_record_bytes, self._headers if store.headers else ())
