"""The application of the tests that start over: what it keeps tells how often each record was counted.

Topic `in` is counted by key (`counts`), kept as a table (`newest`), and sent on by its value to a repartition topic,
which is counted by a second subtopology (`by_value`); `alone` is a table that nothing else reads. `COUNTING_ID` is the
application id of a process.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from stateline import InputRecord, Output, StoreView, serdes, stores
from stateline.dsl.app import App
from support.processes.running_worker import Stores

PARTITIONS = 2


def counting(application_id: str, *, more: bool = False, as_text: bool = False) -> App:
    """With `more`, the first subtopology has one more store, `again`; with `as_text`, `counts` has texts."""
    app = App(application_id)
    source = app.topic(f"{application_id}-in", key=serdes.string, value=serdes.string)
    app.table(source, store="newest")
    number = serdes.string if as_text else serdes.int64
    counts = app.store(stores.key_value("counts", key=serdes.string, value=number))
    by_value = app.store(stores.key_value("by_value", key=serdes.string, value=serdes.int64))
    sent_on = app.repartition("values", key=serdes.string, value=serdes.string)
    app.table(app.topic(f"{application_id}-alone", key=serdes.string, value=serdes.string), store="alone")

    @app.process(source, stores=[counts], forwards=[sent_on])
    def count(record: InputRecord, counts: StoreView, values: Output) -> None:
        counted = int(counts.get(record.key) or 0) + 1
        counts.put(record.key, str(counted) if as_text else counted)
        values.forward(record.value, record.key)

    @app.process(sent_on, stores=[by_value])
    def count_values(record: InputRecord, by_value: StoreView) -> None:
        by_value.put(record.key, (by_value.get(record.key) or 0) + 1)

    if more:
        again = app.store(stores.key_value("again", key=serdes.string, value=serdes.int64))

        @app.process(source, stores=[again])
        def count_again(record: InputRecord, again: StoreView) -> None:
            again.put(record.key, (again.get(record.key) or 0) + 1)

    return app


def expected(
    records: Iterable[tuple[bytes, bytes, int]], whole: Iterable[tuple[bytes, bytes, int]]
) -> dict[str, object]:
    """What the stores have when these records were counted, and the table is of the `whole` topic."""
    read = list(records)
    return {
        "counts": dict(Counter(key for key, _, _ in read)),
        "by_value": dict(Counter(value for _, value, _ in read)),
        "newest": {key: value for key, value, _ in whole},
    }


def kept(stored: Stores) -> dict[str, object]:
    """What the stores have now."""
    return {
        "counts": {key: int.from_bytes(n) for key, n in stored.rows("counts", PARTITIONS).items()},
        "by_value": {key: int.from_bytes(n) for key, n in stored.rows("by_value", PARTITIONS).items()},
        "newest": stored.rows("newest", PARTITIONS),
    }


if "COUNTING_ID" in os.environ:
    app = counting(os.environ["COUNTING_ID"])
