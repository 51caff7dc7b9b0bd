"""Requests of a stream of changes, and its options.

`stateline.client.lean` handles connections, tokens and retries. Temporary failures raise one of `LOST`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from stateline.client.lean.arrow_body import ArrowBody
from stateline.client.lean.client import ARROW, LOST, Failover, LeanClient, LeanRequest, PassingError, segment
from stateline.spark.reading.change_offsets import OffsetSpan, TopicEnds
from stateline.spark.reading.source_options import read_server, spelled
from stateline_store import CursorExpiredError, InvalidArgumentError

OPTIONS = (
    *("url", "token", "token_file", "ca_file", "timeout_s", "retry_s"),
    *("store", "changes", "from", "columns", "maxChangesPerTrigger"),
)
"""Case and underscores do not count."""


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """The options of a stream of changes. Picklable. Its `repr` shows no token."""

    server: LeanClient
    store: str
    begin: str
    """earliest, latest, or a position as JSON."""
    columns: tuple[str, ...] | None
    max_changes: int | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> ChangeOptions:
        """Read Spark's options. Raises `InvalidArgumentError`."""
        given = spelled(options, OPTIONS)
        for name in given:
            if name not in OPTIONS:
                raise InvalidArgumentError(
                    f"There is no option {name[:60]!r} of a stream of changes: there are {', '.join(OPTIONS)}."
                )
        if given.get("changes", "").lower() != "true":
            raise InvalidArgumentError(
                'A stream has the changes of a store: say so with .option("changes", "true"), and with .option("from", '
                "…) where it begins."
            )
        if not (store := given.get("store", "").strip()):
            raise InvalidArgumentError('The option store is missing: name one, as in .option("store", "orders").')
        columns = given.get("columns")
        chosen = None if columns is None else tuple(name.strip() for name in columns.split(","))
        return cls(read_server(given, os.environ), store, given.get("from", "earliest"), chosen, _most(given))


def offsets(options: ChangeOptions, begin: str | None = None, *, patience_s: float | None = None) -> TopicEnds:
    """Return the committed ends, and the place of `begin`. Waits for `patience_s` seconds, by default the option
    `retry_s`. Raises the server's refusals, and `NotReadyError` after that time."""
    return _topic_ends(options, options.server.ask(_asked(options, begin), patience_s=patience_s))


def offsets_now(options: ChangeOptions) -> TopicEnds:
    """Return the committed ends, asking each server once. Raises one of `LOST` if none answers."""
    failed: Exception = PassingError("nobody was asked")
    for url in options.server.urls:
        try:
            with options.server.opened(url, _asked(options, None)) as response:
                return _topic_ends(options, json.loads(response.read()))
        except LOST as error:
            failed = error
        except ValueError as error:
            failed = PassingError(f"{url} does not answer as a Stateline server: {error}")
    raise failed


def batches(
    options: ChangeOptions, span: OffsetSpan, columns: tuple[str, ...]
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the changes of this span with these columns, `offset` among them. A broken stream resumes after its last
    batch. Raises `CursorExpiredError` if the log has lost some of them or is another one, and `NotReadyError` if
    nothing arrives for the option `retry_s`."""
    failover, first = Failover(options.server, options.server.retry_s), span.first
    while True:
        try:
            with closing(_attempt(options, failover.url, span, first, columns)) as found:
                for batch in found:
                    yield batch
                    first = batch.column("offset")[batch.num_rows - 1].as_py() + 1
                    failover.progressed()  # however long Spark took for the batch
            return
        except CursorExpiredError as error:
            raise CursorExpiredError(
                f"The changes that this query reads next are gone: {error} Start over with a new checkpoint."
            ) from error
        except (*LOST, pa.ArrowInvalid) as error:
            failover.pause(error)


def _attempt(
    options: ChangeOptions, url: str, span: OffsetSpan, first: int, columns: tuple[str, ...]
) -> Generator[pa.RecordBatch, None, None]:
    between = {"partition": span.partition, "begin": first, "end": span.end, "topic_id": span.topic_id}
    target = f"{_path(options)}/rows?{urlencode({**between, 'columns': ','.join(columns)})}"
    with options.server.opened(url, LeanRequest("GET", target, accept=ARROW)) as response:
        body = ArrowBody(response)
        with pa.ipc.open_stream(body) as stream:
            yield from stream
        body.check_end()


def _topic_ends(options: ChangeOptions, document: Any) -> TopicEnds:
    try:
        return TopicEnds.of(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        url = options.server.urls[0]
        raise InvalidArgumentError(f"{url} answers, but not as a Stateline server: is the option url right?") from error


def _asked(options: ChangeOptions, begin: str | None) -> LeanRequest:
    query = "" if begin is None else f"?{urlencode({'from': begin})}"
    return LeanRequest("GET", f"{_path(options)}/offsets{query}")


def _path(options: ChangeOptions) -> str:
    return f"/v1/stores/{segment(options.store)}/changes"


def _most(given: Mapping[str, str]) -> int | None:
    text = given.get("maxChangesPerTrigger")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 18 and int(text) > 0):
        raise InvalidArgumentError(f"maxChangesPerTrigger={text[:60]!r}: a number of changes from 1 on is accepted.")
    return int(text)
