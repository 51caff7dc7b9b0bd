"""The application of the tests that kill pipelines: a pipeline of each kind, their results in stores.

An entry of the journal is `amount` for an account and a book. Accounts, minutes and visits come and go with time: a
result that is lost is not made good by a later one. The books stay; what is counted of them counts every row, so that
one that is written twice or lost shows for ever.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.model.pipeline import Windowing
from stateline.processing.store_views import StoreView
from stateline.spark import session_aggregate
from stateline.worker import InputRecord

NAME = "ledger"
PARTITIONS = 3
MINUTE_MS = 60_000
GAP_MS = 3_000  # entries of one visit are at most so far apart
KEPT_REST = 3  # an account is in `uneven` unless its total divides by this
VISITOR = slice(2, 3)  # of a book's name
_LONG = timedelta(days=400)
_WATERMARK_DELAY = timedelta(minutes=5)  # entries are seconds late; what is late for Spark would be dropped

app = App(NAME)
journal = app.topic(
    "journal", key=serdes.string, value=serdes.json, schema="account string, book string, amount long, at timestamp"
)
app.table("uneven", key=serdes.string, value=serdes.json)
app.table("minutes", windowed=timedelta(minutes=1), retention=_LONG, key=serdes.string, value=serdes.json)
app.table("visits", sessions=True, retention=_LONG, key=serdes.string, value=serdes.json)
entries = app.topic("entries", key=serdes.string, value=serdes.json)
books = app.store(stores.key_value("books", key=serdes.string, value=serdes.json))


@app.pipeline(reads=journal, writes="uneven", key="account", output_mode="complete")
def keep_uneven(journal: DataFrame) -> DataFrame:
    """Complete mode, with rows that disappear: accounts whose sum does not divide by three."""
    return _summed(journal, "account").where(F.col("total") % KEPT_REST != 0)


@app.pipeline(reads=journal, writes="minutes", key="book", windowing=Windowing("window", "minute", MINUTE_MS))
def by_minute(journal: DataFrame) -> DataFrame:
    """Update mode, windows: entries and sum of each book and minute."""
    return _summed(journal, F.window("at", "1 minute").alias("minute"), "book")


@app.pipeline(reads=journal, writes="visits", key="visitor", windowing=Windowing("session", "session", GAP_MS))
def by_visit(journal: DataFrame) -> DataFrame:
    """Sessions that grow, and become one when a late entry comes between them."""
    return session_aggregate(
        journal.select(_part("book", VISITOR).alias("visitor"), "amount", "at", "_offset"), "visitor", time="at",
        gap=timedelta(milliseconds=GAP_MS), delay=_WATERMARK_DELAY, initial={"n": 0, "total": 0},
        add=lambda sums, entry: {"n": sums["n"] + 1, "total": sums["total"] + entry["amount"]},
        merge=lambda one, other: {name: one[name] + other[name] for name in one},
        schema="n bigint, total bigint",
    )  # fmt: skip


@app.pipeline(
    reads=journal, writes=entries, key="book", output_mode="append", result="stream", whole_epochs=True,
    partitions=PARTITIONS,
)  # fmt: skip
def pass_on(journal: DataFrame) -> DataFrame:
    """Whole epochs: every entry, under its book."""
    return journal.select("book", "amount")


@app.process(entries, stores=[books])
def count(record: InputRecord, books: StoreView) -> None:
    """Entries and sum of each book, row by row."""
    n, total = books.get(record.key) or (0, 0)
    books.put(record.key, [n + 1, total + record.value["amount"]])


def _part(column: str, part: slice) -> Column:
    start = part.start or 0
    return F.substring(column, start + 1, part.stop - start)


def _summed(frame: DataFrame, *by: Column | str) -> DataFrame:
    return frame.groupBy(*by).agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
