"""Sends encoded rows of a micro-batch from executors to the driver, as they are computed.

Spark's own way needs a task's whole result in the driver's JVM, and fails beyond ``spark.driver.maxResultSize``. Here
each task writes its rows to the driver's `RowReceiver` in batches, and waits while the driver does. Spark gets one row
per task, `Sent`. A repeated task sends its rows again: those of the tasks that Spark names at the end count.

One TCP connection per task, on which the driver listens. The task writes the micro-batch's token (32 bytes) and its own
name (16 bytes), and waits for a welcome byte. It writes its rows as an Arrow stream of `ENCODED`, ends its side, and
waits for another byte, which says that all rows are kept.
"""

from __future__ import annotations

import itertools
import socket
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from stateline import serdes
from stateline.model.pipeline import Pipeline
from stateline.model.topic import Topic
from stateline.spark.sink.encoding import encoded_rows
from stateline.spark.sink.result_records import ENCODED
from stateline_store import RetryLaterError

TOKEN_BYTES, NAME_BYTES = 32, 16
WELCOME, KEPT = b"\x02", b"\x01"
_CONNECT_TIMEOUT_S = 30.0
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}  # silent for 90 s: lost
SENT = pa.schema(
    [
        ("name", pa.binary()),
        ("rows", pa.int64()),
        ("tombstones", pa.int64()),
        ("size_bytes", pa.int64()),
        ("is_ordered", pa.bool_()),
        ("bad", pa.string()),
    ]
)


class Sent(NamedTuple):
    """A task's report: the name of its rows, their number, the tombstones among them, their size in memory, whether any
    has an order, and the error of the first bad row, or None."""

    name: bytes
    rows: int
    tombstones: int
    size_bytes: int
    is_ordered: bool
    bad: str | None


class SendRows:
    """For Spark's `mapInArrow`: takes result rows, returns one `Sent`. It is pickled to the executors."""

    def __init__(self, address: tuple[str, int], token: bytes, pipeline: Pipeline) -> None:
        self._address = address
        self._token = token
        self._pipeline = for_executors(pipeline)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent = Sent(uuid.uuid4().bytes, 0, 0, 0, False, None)
        first = next(batches, None)
        if first is not None:
            with socket.create_connection(self._address, _CONNECT_TIMEOUT_S) as connection:
                keep_alive(connection)
                connection.sendall(self._token + sent.name)
                self._expect(connection, WELCOME)
                connection.settimeout(None)  # the driver may have to wait for its disk
                with connection.makefile("wb") as out, pa.ipc.new_stream(out, ENCODED) as stream:
                    for batch in itertools.chain([first], batches):
                        rows = encoded_rows(batch, self._pipeline)
                        stream.write_batch(rows)
                        sent = _counted(sent, rows)
                connection.shutdown(socket.SHUT_WR)
                self._expect(connection, KEPT)
        yield pa.RecordBatch.from_pylist([sent._asdict()], SENT)

    def _expect(self, connection: socket.socket, answer: bytes) -> None:
        if connection.recv(1) != answer:
            raise RetryLaterError(
                f"The driver at {self._address[0]}:{self._address[1]} did not take a micro-batch's rows: it says why."
            )


def for_executors(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline without functions and input serdes, which may not be picklable."""
    reads, tables = _plain(pipeline.reads), _plain(pipeline.tables)
    return replace(pipeline, function=_no_function, reads=reads, tables=tables, static=())


def _plain(topics: tuple[Topic, ...]) -> tuple[Topic, ...]:
    return tuple(Topic(topic.name, serdes.bytes, serdes.bytes) for topic in topics)


def _no_function(*_frames: object) -> None:
    """Stand in for the function of a pipeline on executors."""


def keep_alive(connection: socket.socket) -> None:
    """Have the system check, while nothing is sent, that the other machine is there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _counted(sent: Sent, rows: pa.RecordBatch) -> Sent:
    bad = rows.column("bad").drop_null()
    return Sent(
        sent.name,
        sent.rows + len(rows),
        sent.tombstones + rows.column("value").null_count,
        sent.size_bytes + rows.nbytes,
        sent.is_ordered or rows.column("order").null_count < len(rows),
        sent.bad if sent.bad is not None or not len(bad) else bad[0].as_py(),
    )
