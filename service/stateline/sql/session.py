"""One query process, and one statement in it, as the server sees them. Asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson

from stateline.problem_kinds import ERROR_CLASSES
from stateline.sql.known_lookups import KnownLookups
from stateline.sql.messages import (
    HEADER,
    MOST_BYTES,
    Kind,
    frame,
    read_prepared,
    statement_payload,
    tables_payload,
)
from stateline.sql.plan import Prepared
from stateline.sql.statement import check_text
from stateline.sql.tables import SqlTable
from stateline_store import (
    InvalidArgumentError,
    NotReadyError,
    SqlInvalidError,
    SqlTimeoutError,
    SqlTooLargeError,
)

Sources = Mapping[int, AsyncIterator[bytes] | bytes]

_START_S = 60.0
_KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "SYSTEMROOT", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
# One thread and one arena: each reserves memory that the limit of the process would count.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


class FrameTooLargeError(ConnectionError):
    """A frame of this kind has more bytes than are read."""

    def __init__(self, kind: int) -> None:
        self.kind = kind


class ServedProcess:
    """A running query process, and the server's end of its socket."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self.reader = reader
        self.writer = writer
        self.tables: Sequence[SqlTable] | None = None
        self.tables_payload = b"[]"
        self.statements = 0
        self.held: tuple[str, ...] = ()

    @classmethod
    async def start(cls, memory_bytes: int) -> ServedProcess:
        """Raises `NotReadyError` if it does not start."""
        ours, theirs = socket.socketpair()
        try:
            environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | _ENVIRONMENT
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "stateline.sql.process",
                str(theirs.fileno()),
                str(memory_bytes),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                env=environment,
            )
        finally:
            theirs.close()
        started = cls(process, *await asyncio.open_connection(sock=ours))
        try:
            async with asyncio.timeout(_START_S):
                _, _, payload = await started.receive()
        except BaseException as error:
            await started.end()
            if isinstance(error, TimeoutError | asyncio.IncompleteReadError | ConnectionError):
                raise NotReadyError("A query process did not start. Its error is in the server's log.") from error
            raise
        started.held = tuple(orjson.loads(payload))
        return started

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None and not self.reader.at_eof()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.writer.close()

    async def end(self) -> None:
        """Kill it and wait for its end: asyncio warns of a transport that is open when the server stops."""
        self.kill()
        await self.process.wait()

    async def write(self, *parts: bytes) -> None:
        self.writer.writelines(parts)
        await self.writer.drain()

    async def receive(self, result_bytes: int = 0) -> tuple[int, int, bytes]:
        """Return the next frame. Raises `FrameTooLargeError` before it reads a RESULT of more than this, or another one
        of more than `MOST_BYTES`."""
        length, kind, number = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        if length > (result_bytes if kind == Kind.RESULT else MOST_BYTES):
            raise FrameTooLargeError(kind)
        return kind, number, await self.reader.readexactly(length)


class QuerySession:
    """One statement in a query process: `prepare`, then `run`."""

    def __init__(self, process: ServedProcess, deadline_s: float, end: float, lookups: KnownLookups) -> None:
        self._process, self._lookups = process, lookups
        self._deadline_s, self.end_s = deadline_s, end
        self._timer = asyncio.get_running_loop().call_at(end, self._expire)
        self.is_expired = False
        self.is_clean = True  # the process waits for a statement
        self._is_planned = False
        self._lookup: bytes | None = None  # its plan is known, and the process does not have it yet
        self._most_bytes = self._left_bytes = 0  # of the result

    async def close(self) -> None:
        """Drop a statement that is planned and does not run."""
        self._timer.cancel()
        if self._is_planned and not self.is_expired:
            with contextlib.suppress(ConnectionError):
                await self._process.write(frame(Kind.DROP))
                self.is_clean = True

    async def prepare(
        self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None, tables: Sequence[SqlTable]
    ) -> Prepared:
        """Plan one SELECT over these tables. The process sees no others.

        Raises `InvalidArgumentError` for the statement, `SqlTooLargeError` for its memory, `SqlTimeoutError` at the
        deadline, `NotReadyError` if the process ended.
        """
        if known := self._lookups.prepared(sql, params, tables):
            self._lookup = statement_payload(sql, params, known.reads[0].table)
            self.is_clean = False
            await self._use_tables(tables)
            self.is_clean = True
            return known
        check_text(sql)
        payload = statement_payload(sql, params)
        self.is_clean = False
        await self._use_tables(tables)
        await self._send(Kind.PREPARE, payload)
        _, _, payload = await self._receive(Kind.PREPARED)
        self._is_planned = True
        prepared = read_prepared(payload, tables)
        self._lookups.note(sql, params, tables, prepared)
        return prepared

    async def run(self, sources: Sources, most_bytes: int) -> AsyncIterator[bytes]:
        """Yield the result as an Arrow IPC stream in parts, the schema first. `sources` give the Arrow IPC stream of
        each read. They are read as the engine needs them, one part ahead. Bytes are a whole stream, sent at once.

        Raises like `prepare`, what a source raises, and `SqlTooLargeError` for a result of more than `most_bytes`. The
        part that is too much is not read.
        """
        self._most_bytes = self._left_bytes = most_bytes
        whole = {number: source for number, source in sources.items() if isinstance(source, bytes)}
        feeds = {number: _Feed(source) for number, source in sources.items() if not isinstance(source, bytes)}
        try:
            self._is_planned = self.is_clean = False
            rows = (frame(Kind.ROWS, stream, number) for number, stream in whole.items())
            begin = Kind.RUN if self._lookup is None else Kind.LOOKUP
            await self._write(frame(begin, self._lookup or b"", len(whole)), *rows)
            while True:
                kind, number, payload = await self._receive(Kind.PULL, Kind.RESULT, Kind.DONE)
                if kind == Kind.PULL:
                    await self._feed(feeds, number)
                elif kind == Kind.RESULT:
                    self._left_bytes -= len(payload)
                    yield payload
                else:
                    self.is_clean = True
                    return
        finally:
            for feed in feeds.values():
                await feed.close()

    async def _use_tables(self, tables: Sequence[SqlTable]) -> None:
        if self._process.tables is tables:
            return
        payload = tables_payload(tables)
        if payload != self._process.tables_payload:  # schemas are equal to Arrow if only their SQL types differ
            await self._send(Kind.TABLES, payload)
        self._process.tables, self._process.tables_payload = tables, payload

    async def _feed(self, feeds: Mapping[int, _Feed], number: int) -> None:
        try:
            async with asyncio.timeout_at(self._timer.when()) as limit:
                part = await feeds[number].next()
        except Exception:
            if limit.expired():
                raise self.timeout() from None
            with contextlib.suppress(NotReadyError, InvalidArgumentError):
                await self._send(Kind.ROWS_FAILED, number=number)
                await self._receive(Kind.DONE)  # it fails, as it must
            raise
        await self._send(Kind.ROWS if part else Kind.ROWS_END, part, number)

    async def _send(self, kind: Kind, payload: bytes = b"", number: int = 0) -> None:
        await self._write(HEADER.pack(len(payload), kind, number), payload)

    async def _write(self, *parts: bytes) -> None:
        try:
            await self._process.write(*parts)
        except (ConnectionError, RuntimeError) as error:  # uvloop's for a transport that a kill has closed
            raise self._ended() from error

    async def _receive(self, *expected: Kind) -> tuple[int, int, bytes]:
        try:
            kind, number, payload = await self._process.receive(self._left_bytes)
        except FrameTooLargeError as error:
            if error.kind != Kind.RESULT:
                raise SqlTooLargeError("The plan of the statement is too large. Give shorter keys.") from None
            raise SqlTooLargeError(
                f"The result has more than {self._most_bytes:,} bytes (sql.max.bytes): select fewer columns, or add "
                "LIMIT."
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise self._ended() from error
        if kind in expected:
            return kind, number, payload
        if kind != Kind.FAILED:
            raise NotReadyError(f"The query process answered with a frame of kind {kind}. Try again.")
        failure = orjson.loads(payload)
        if failure["kind"] == SqlTooLargeError.__name__:
            raise SqlTooLargeError(failure["message"])  # and another process: this one may keep the memory
        self.is_clean = True
        raise ERROR_CLASSES.get(failure["kind"], SqlInvalidError)(failure["message"])

    def _expire(self) -> None:
        self.is_expired = True
        self._process.kill()

    def timeout(self) -> SqlTimeoutError:
        return SqlTimeoutError(
            f"The statement did not end within {self._deadline_s:g} s (timeout_ms). Read fewer rows, or give it more "
            "time, up to sql.timeout.ms."
        )

    def _ended(self) -> InvalidArgumentError | NotReadyError:
        if self.is_expired:
            return self.timeout()
        return NotReadyError("The process that ran the statement ended. Try again.")


class _Feed:
    """A source, read one part ahead."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._ahead: asyncio.Task[bytes] | None = None

    async def next(self) -> bytes:
        """The next part, empty at the end. Raises what the source raises."""
        part = await (self._ahead or self._part())
        self._ahead = asyncio.create_task(self._part()) if part else None
        return part

    async def close(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
        if (close := getattr(self._source, "aclose", None)) is not None:
            await close()

    async def _part(self) -> bytes:
        async for part in self._source:
            if part:
                return part
        return b""
