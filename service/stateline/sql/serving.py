"""Answer the server's statements over a socket. It runs in a query process."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from collections.abc import Iterable, Iterator

import orjson
import pyarrow as pa

from stateline.sql.engine import SqlEngine
from stateline.sql.messages import HEADER, Kind, frame, prepared_payload, read_tables
from stateline.sql.tables import SqlTable
from stateline_store import InvalidArgumentError

_SENT_BYTES = 64 * 1024  # of a result, at a time


class _SourceError(Exception):
    """The server could not read a table. It knows why."""


class QueryProcess:
    """Both ends of the socket block: the process does one thing at a time."""

    def __init__(self, connection: socket.socket, memory_bytes: int) -> None:
        self._socket = connection
        self._engine = SqlEngine(memory_bytes)
        self._given: dict[int, bytes | bytearray] = {}

    def warm_up(self) -> None:
        """Run a statement, so that everything it imports is imported."""
        schema = pa.schema([pa.field("key", pa.utf8(), metadata={"stateline.sql": "VARCHAR"})])
        self._engine.use_tables([SqlTable("warm", schema, "key_value")])
        rows = pa.RecordBatch.from_pydict({"key": ["a"]}, schema)
        for sql in ("SELECT key, now() FROM warm WHERE key = 'a'", "SELECT count(*) FROM warm"):
            self._engine.prepare(sql, None)
            for part in _ipc_stream(self._engine.run(lambda number: [rows])):
                del part
            self._engine.end()
        self._engine.use_tables([])

    def serve(self) -> None:
        """Answer until the socket closes."""
        while (message := self._receive()) is not None:
            kind, number, payload = message
            if kind == Kind.TABLES:
                self._engine.use_tables(read_tables(payload))
            elif kind in (Kind.PREPARE, Kind.LOOKUP):
                self._answer(payload, number, is_known=kind == Kind.LOOKUP)

    def _answer(self, payload: bytes | bytearray, whole: int, *, is_known: bool) -> None:
        """`whole` reads follow a lookup whose plan `is_known`. RUN says how many follow another statement."""
        try:
            given = json.loads(payload)
            if is_known:
                self._engine.prepare_lookup(given["sql"], given["params"], given["table"])
            else:
                prepared = self._engine.prepare(given["sql"], given["params"])
                self._send(Kind.PREPARED, prepared_payload(prepared))
                if (message := self._receive()) is None or message[0] != Kind.RUN:
                    return
                whole = message[1]
            self._given = {}
            for _ in range(whole):
                if (rows := self._receive()) is None:
                    return
                self._given[rows[1]] = rows[2]
            frames = bytearray()
            for part in _ipc_stream(self._engine.run(self._rows)):
                frames += frame(Kind.RESULT, part)
                if len(frames) > _SENT_BYTES:
                    self._socket.sendall(frames)
                    frames.clear()
            self._socket.sendall(frames + frame(Kind.DONE))
        except (InvalidArgumentError, _SourceError) as error:
            self._send(Kind.FAILED, orjson.dumps({"kind": type(error).__name__, "message": str(error)}))
        except MemoryError:
            self._send(Kind.FAILED, b'{"kind":"SqlTooLargeError","message":"The statement needs too much memory."}')
        finally:
            self._engine.end()

    def _rows(self, number: int) -> Iterable[pa.RecordBatch]:
        batches: Iterable[pa.RecordBatch] = pa.ipc.open_stream(_Source(self, number))
        return batches

    def pull(self, number: int) -> bytes | bytearray:
        """Return the next bytes of a read, none at its end. Bytes that came with RUN are all of it."""
        if (given := self._given.get(number)) is not None:
            self._given[number] = b""
            return given
        self._send(Kind.PULL, number=number)
        if (message := self._receive()) is None:
            os._exit(0)
        kind, _, payload = message
        if kind == Kind.ROWS_FAILED:
            raise _SourceError("The server could not read a table.")
        return payload

    def _send(self, kind: Kind, payload: bytes = b"", number: int = 0) -> None:
        self._socket.sendall(frame(kind, payload, number))

    def _receive(self) -> tuple[int, int, bytes | bytearray] | None:
        if (header := self._read(HEADER.size)) is None:
            return None
        length, kind, number = HEADER.unpack(header)
        payload = self._read(length)
        return None if payload is None else (kind, number, payload)

    def _read(self, length: int) -> bytearray | None:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            if not (count := self._socket.recv_into(view)):
                return None
            view = view[count:]
        return data


class _Source(io.RawIOBase):
    """The Arrow stream of a read, as a file."""

    def __init__(self, process: QueryProcess, number: int) -> None:
        self._process = process
        self._number = number
        self._rest = memoryview(b"")
        self._is_over = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes | memoryview:  # of buffers, pyarrow makes no copy
        """Return the next bytes, without a copy if they are of one part."""
        if 0 <= size <= len(self._rest):
            part, self._rest = self._rest[:size], self._rest[size:]
            return part
        parts: list[bytes | memoryview] = []
        missing = size if size >= 0 else sys.maxsize
        while missing and not self._is_over:
            if not self._rest:
                self._rest = memoryview(self._process.pull(self._number))
                self._is_over = not self._rest
            part, self._rest = self._rest[:missing], self._rest[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def _ipc_stream(result: Iterator[pa.RecordBatch | pa.Schema]) -> Iterator[bytes]:
    """Yield an Arrow IPC stream: the schema, then each batch with its dictionaries, then the end."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, next(result)) as writer:
        for batch in result:
            writer.write_batch(batch)
            yield _taken(sink)
    yield _taken(sink)


def _taken(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
