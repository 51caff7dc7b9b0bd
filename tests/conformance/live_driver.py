"""The application of the live conformance in the test driver, on the records that both sides have read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from conformance import live_app
from conformance.live import Rows, Sides
from conformance.live_input import PARTITIONS
from stateline.testing import Record, TestDriver
from support.processes.running_worker import read_all

CONFIG = {
    "processing.guarantee": "exactly_once_v2",
    "processing.exception.handler": "skip",
}


@contextmanager
def driver_of(sides: Sides) -> Iterator[TestDriver]:
    """A driver that has committed all of it. Topics that are joined are taken in order of time, as by a worker that
    finds all of them: what was processed as they were written, one after another, is aborted, and read again."""
    topics = sorted({place.topic for place in sides.given.ends})
    app = live_app.build("driven", sides.given.prefix)
    with TestDriver(app, partitions=PARTITIONS, config={**CONFIG, **sides.our_settings}, autocommit=False) as driver:
        for topic in topics:
            found = read_all(sides.log, topic, PARTITIONS)
            driver.pipe_all(
                topic, [Record(_text(r.key), _text(r.value), r.timestamp_ms, r.headers, r.partition) for r in found]
            )
        driver.abort()
        driver.commit()
        yield driver


def rows_in(driver: TestDriver, name: str, kind: str, keys: Sequence[str]) -> Rows:
    """The rows of a store of this plain kind, in the form of `Sides.our_rows`."""
    store = driver.store(name)
    match kind:
        case "window":
            return {(row.key, row.start): (row.value, row.timestamp, row.headers) for row in store.fetch_all()}
        case "session":
            return {(row.key, row.start, row.end): (row.value, None, row.headers) for row in store.fetch_all()}
        case "versioned":
            each = ((key, row) for key in keys for row in store.versions(key))
            return {(key, row.timestamp): (row.value, row.valid_to, None) for key, row in each}
        case _:
            return {row.key: (row.value, row.timestamp, row.headers) for row in store.all()}


def _text(data: bytes | None) -> Any:
    return None if data is None else data.decode()
