"""Query processes answer one statement at a time, end at their deadline, and are replaced."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.sql.rows import BY_NAME, TABLES, batch, key_value, stream, table_of
from stateline import serdes
from stateline.sql.places import Places
from stateline.sql.pool import QueryProcesses
from stateline.sql.session import QuerySession, ServedProcess
from stateline.sql.tables import tables_of
from stateline_store import (
    DamagedDataError,
    InvalidArgumentError,
    NotReadyError,
    SqlTimeoutError,
    SqlTooLargeError,
    TooManyRequestsError,
)
from support.run.length import long_only

TEXTS = [{"key": key, "value": '{"n": 1}', "timestamp": n} for n, key in enumerate("abcd")]
DEADLINE_S = 120.0
MOST_BYTES = 1 << 28
ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE (a.range * b.range) % 7 = 3"


@asynccontextmanager
async def processes(most: int = 1, memory_bytes: int = 1 << 28) -> AsyncIterator[QueryProcesses]:
    pool = QueryProcesses(Places(most, most), memory_bytes)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


async def result(session: QuerySession, sql: str, params: Any = None, times: int = 1) -> list[dict[str, Any]]:
    prepared = await session.prepare(sql, params, TABLES)
    sources = {read.number: stream(batch(BY_NAME["texts"], TEXTS, read.columns), times) for read in prepared.reads}
    return table_of([part async for part in session.run(sources, MOST_BYTES)])


async def ask(pool: QueryProcesses, sql: str, deadline_s: float = DEADLINE_S, times: int = 1) -> list[dict[str, Any]]:
    async with pool.session(deadline_s) as session:
        return await result(session, sql, times=times)


async def ask_source(pool: QueryProcesses, sql: str, source: AsyncIterator[bytes], deadline_s: float) -> list[bytes]:
    async with pool.session(deadline_s) as session:
        await session.prepare(sql, None, TABLES)
        return [part async for part in session.run({0: source}, MOST_BYTES)]


def run(scene: Callable[[QueryProcesses], Awaitable[None]], **settings: int) -> None:
    async def main() -> None:
        async with processes(**settings) as pool:
            await scene(pool)

    asyncio.run(main())


def pids(pool: QueryProcesses) -> Sequence[int]:
    return [process.process.pid for process in pool._idle]


def test_a_process_answers_one_statement_after_the_other() -> None:
    async def scene(pool: QueryProcesses) -> None:
        before = pids(pool)
        assert await ask(pool, "SELECT key FROM texts WHERE key = 'b'") == [{"key": k} for k in "b"]
        assert await ask(pool, "SELECT count(*) n FROM texts", times=1000) == [{"n": 4000}]
        assert await ask(pool, "SELECT 'x'::ENUM('x', 'y') e FROM texts") == [{"e": "x"}] * 4
        with pytest.raises(InvalidArgumentError, match="Did you mean"):
            await ask(pool, "FROM text")
        async with pool.session(DEADLINE_S) as session:
            assert pool.running == 1
            assert (await session.prepare("EXPLAIN FROM texts", None, TABLES)).is_explain
        assert (pool.running, pool.killed, pids(pool)) == (0, 0, before)
        assert await ask(pool, "SHOW TABLES")

    run(scene)


def test_tables_of_another_caller_are_not_there() -> None:
    async def scene(pool: QueryProcesses) -> None:
        assert len(await ask(pool, "SHOW TABLES")) == len(TABLES)
        async with pool.session(DEADLINE_S) as session:
            with pytest.raises(InvalidArgumentError, match="texts does not exist"):
                await session.prepare("FROM texts", None, [BY_NAME["numbers"]])

    run(scene)


def test_a_type_that_changes_in_sql_alone_is_another_table() -> None:
    async def scene(pool: QueryProcesses) -> None:
        for serde, kind in ((serdes.string, "VARCHAR"), (serdes.json, "JSON")):
            async with pool.session(DEADLINE_S) as session:
                tables = tables_of([key_value("typed", serdes.string, serde)])
                await session.prepare("SELECT column_type FROM (DESCRIBE typed)", None, tables)
                parts = [part async for part in session.run({}, MOST_BYTES)]
                assert pa.ipc.open_stream(b"".join(parts)).read_all().to_pylist()[1] == {"column_type": kind}

    run(scene)


def test_a_source_is_read_as_far_as_the_result_needs_it() -> None:
    given = 0

    async def endless(columns: Sequence[str]) -> AsyncIterator[bytes]:
        nonlocal given
        rows = batch(BY_NAME["texts"], TEXTS * 1000, columns)
        yield rows.schema.serialize().to_pybytes()
        while True:
            given += 1
            yield rows.serialize().to_pybytes()

    async def scene(pool: QueryProcesses) -> None:
        async with pool.session(DEADLINE_S) as session:
            prepared = await session.prepare("FROM texts LIMIT 5", None, TABLES)
            parts = [part async for part in session.run({0: endless(prepared.reads[0].columns)}, MOST_BYTES)]
        assert pa.ipc.open_stream(b"".join(parts)).read_all().num_rows == 5
        async with pool.session(DEADLINE_S) as session:  # the caller leaves a long result early
            prepared = await session.prepare("FROM texts", None, TABLES)
            async for _ in session.run({0: endless(prepared.reads[0].columns)}, MOST_BYTES):
                break
        assert given < 100
        assert pool.killed == 1

    run(scene)


def test_an_error_of_a_source_is_raised_and_the_process_stays() -> None:
    async def damaged() -> AsyncIterator[bytes]:
        yield batch(BY_NAME["texts"], TEXTS, ["key"]).schema.serialize().to_pybytes()
        raise DamagedDataError("row 7")

    async def scene(pool: QueryProcesses) -> None:
        for sql in ("SELECT count(*) FROM texts", "SELECT key FROM texts WHERE key = 'a'"):
            with pytest.raises(DamagedDataError, match="row 7"):
                await ask_source(pool, sql, damaged(), DEADLINE_S)
        assert pool.killed == 0
        assert await ask(pool, "SELECT 1 AS a") == [{"a": 1}]

    run(scene)


@pytest.mark.parametrize(
    "sql",
    [
        ENDLESS,
        pytest.param(
            "SELECT max(length(repeat('x', 10))) FROM range(1e15::BIGINT)",
            marks=long_only("test_hostile_statements.py has more of them"),
        ),
    ],
)
def test_a_process_is_killed_at_the_deadline_and_replaced(sql: str) -> None:
    async def scene(pool: QueryProcesses) -> None:
        with pytest.raises(SqlTimeoutError, match="within 1 s"):
            await ask(pool, sql, deadline_s=1)
        assert pool.killed == 1
        assert await ask(pool, "SELECT 1 AS a") == [{"a": 1}]

    run(scene)


def test_a_source_that_hangs_ends_at_the_deadline() -> None:
    async def hanging() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def scene(pool: QueryProcesses) -> None:
        with pytest.raises(SqlTimeoutError):
            await ask_source(pool, "FROM texts", hanging(), 2)

    run(scene)


def test_a_process_that_dies_is_replaced_and_its_statement_can_be_sent_again() -> None:
    async def scene(pool: QueryProcesses) -> None:
        (pid,) = pids(pool)
        asking = asyncio.create_task(ask(pool, ENDLESS))
        while not pool.running:
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(NotReadyError, match="Try again"):
            await asking
        assert await ask(pool, "SELECT 1 AS a") == [{"a": 1}]

    run(scene)


def test_an_idle_process_that_dies_is_not_used() -> None:
    async def scene(pool: QueryProcesses) -> None:
        (process,) = pool._idle
        os.kill(process.process.pid, signal.SIGKILL)
        await process.process.wait()
        assert await ask(pool, "SELECT 1 AS a") == [{"a": 1}]

    run(scene)


def test_no_more_statements_run_than_may_and_a_spare_starts_before_it_is_needed() -> None:
    async def scene(pool: QueryProcesses) -> None:
        async with pool.session(DEADLINE_S), pool.session(DEADLINE_S):
            assert pool.running == 2
            with pytest.raises(TooManyRequestsError, match="2 statements"):
                await ask(pool, "SELECT 1", deadline_s=0.2)
        assert len(pids(pool)) == 2

    run(scene, most=2)


def test_a_process_is_replaced_after_so_many_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.sql.pool._MOST_STATEMENTS", 3)

    async def scene(pool: QueryProcesses) -> None:
        used = []
        for _ in range(4):
            used.append(pids(pool)[-1])
            assert await ask(pool, "SELECT 1 AS a") == [{"a": 1}]
            while not pids(pool):
                await asyncio.sleep(0.01)
        assert used[0] == used[1] == used[2] != used[3]
        assert pool.killed == 0

    run(scene)


def test_memory_is_bounded_and_its_process_replaced() -> None:
    async def scene(pool: QueryProcesses) -> None:
        (pid,) = pids(pool)
        with pytest.raises(SqlTooLargeError, match="more memory"):
            await ask(pool, "SELECT unnest(range(100000000))")
        assert pids(pool) != [pid]
        assert await ask(pool, "SELECT 1 AS a") == [{"a": 1}]

    run(scene)


def test_what_is_too_much_of_a_result_is_not_read_from_the_process() -> None:
    async def scene(pool: QueryProcesses) -> None:
        (process,) = pool._idle
        lengths, read = [], process.reader.readexactly

        def counted(length: int) -> Awaitable[bytes]:
            lengths.append(length)
            return read(length)

        process.reader.readexactly = counted  # type: ignore[method-assign, assignment]
        for sql, answered in (("SELECT repeat('x', 900000)", True), ("SELECT repeat('x', 3000000)", False)):
            async with pool.session(DEADLINE_S) as session:
                await session.prepare(sql, None, TABLES)
                with nullcontext() if answered else pytest.raises(SqlTooLargeError, match=r"1,000,000 bytes \(sql"):
                    assert [part async for part in session.run({}, 1_000_000)]
        assert 900_000 < max(lengths) < 1_000_000

    run(scene)


def test_a_process_ends_with_its_server() -> None:
    async def scene(pool: QueryProcesses) -> None:
        (process,) = pool._idle
        process.writer.close()
        async with asyncio.timeout(DEADLINE_S):
            assert await process.process.wait() == 0

    run(scene)


def test_parameters_that_json_does_not_have_are_refused() -> None:
    async def scene(pool: QueryProcesses) -> None:
        async with pool.session(DEADLINE_S) as session:
            with pytest.raises(InvalidArgumentError, match="JSON values"):
                await session.prepare("SELECT $1", [object()], TABLES)
            assert await result(session, "SELECT $a AS a", {"a": 2**100}) == [{"a": 2**100}]

    run(scene)


@long_only("test_hostile_statements.py measures it")
def test_a_process_is_killed_within_a_second_of_its_deadline() -> None:
    async def scene(pool: QueryProcesses) -> None:
        (served,) = pool._idle
        with takes_at_most(served, 3):
            with pytest.raises(SqlTimeoutError):
                await ask(pool, ENDLESS, deadline_s=2)
            assert served.process.returncode == -signal.SIGKILL

    run(scene)


@contextmanager
def takes_at_most(served: ServedProcess, most_s: float) -> Iterator[None]:
    """Check the processor time that a process takes, also if it is killed. An endless statement takes all that there
    is, so a slow machine changes nothing."""
    begun_s, ended_s = processor_s(served.process.pid), of_ended_s()
    yield
    if served.process.returncode is None:
        took_s = processor_s(served.process.pid) - begun_s
    else:
        took_s = of_ended_s() - ended_s - begun_s
    assert took_s < most_s


def of_ended_s() -> float:
    """Processor time of child processes that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_process_whose_start_is_given_up_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> int | None:
        starting = asyncio.get_running_loop().create_future()

        async def receive(served: ServedProcess, result_bytes: int = 0) -> tuple[int, int, bytes]:
            starting.set_result(served)
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(ServedProcess, "receive", receive)
        start = asyncio.create_task(ServedProcess.start(1 << 28))
        served: ServedProcess = await starting
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        return served.process.returncode

    assert asyncio.run(begin()) == -signal.SIGKILL
