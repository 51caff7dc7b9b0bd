"""Traces a worker's work (`processes.tracing`): span `work` from the first slice after a commit to the end of the next
commit, with a span for each slice and for the commit. Without tracing each call looks at one variable."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stateline.log.interface import Record
from stateline.processes.tracing import TRACEPARENT, links_of, tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class WorkTrace:
    def __init__(self) -> None:
        self._work: Span | None = None

    def processed(self, task: str, records: Sequence[Record], took_s: float) -> None:
        """A slice of records of one partition was processed just now."""
        if (making := tracer()) is None:
            return
        from opentelemetry.trace import set_span_in_context

        end_ns = time.time_ns()
        began_ns = end_ns - int(took_s * 1e9)
        if self._work is None:
            self._work = making.start_span("work", start_time=began_ns)
        first, last = records[0], records[-1]
        attributes: dict[str, str | int] = {
            "messaging.destination.name": first.topic, "messaging.destination.partition.id": str(first.partition),
            "stateline.records": len(records), "stateline.first_offset": first.offset, "stateline.offset": last.offset,
        }  # fmt: skip
        sent = (v.decode("latin-1") for record in records for name, v in record.headers if name == TRACEPARENT and v)
        context = set_span_in_context(self._work)
        making.start_span(
            f"process {task}", context, attributes=attributes, links=links_of(sent), start_time=began_ns
        ).end(end_ns)

    def drop(self) -> None:
        """End `work` without a commit: its records are read and processed again."""
        if self._work is not None:
            self._work.add_event("dropped")
            self._work.end()
            self._work = None

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Trace a commit, which ends `work`. A failure is noted on its span."""
        work, self._work = self._work, None
        making = tracer()
        if work is None or making is None:
            yield
            return
        from opentelemetry.trace import set_span_in_context

        try:
            with making.start_as_current_span("commit", set_span_in_context(work)):
                yield
        finally:
            work.end()
