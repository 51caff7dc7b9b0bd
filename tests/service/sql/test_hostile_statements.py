"""No statement reads or writes a file, opens a connection, changes a setting, or takes more than its limits.

Each one gets an error, or a result that has nothing of the machine, and the next statement is answered.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.sql.rows import TABLES
from service.sql.test_query_processes import DEADLINE_S, ask, pids, processes, takes_at_most
from stateline.sql.pool import QueryProcesses
from stateline_store import InvalidArgumentError
from support.run.length import long_or_short

SECRET = "a-secret-of-the-machine"
FILES = """
FROM read_text('{secret}')
FROM read_blob('{secret}')
FROM read_csv('{secret}')
FROM read_csv_auto('{secret}')
FROM read_json('{secret}')
FROM read_json_objects('{secret}')
FROM read_ndjson_auto('{secret}')
FROM read_parquet('{secret}')
FROM parquet_scan('{secret}')
FROM parquet_metadata('{secret}')
FROM parquet_schema('{secret}')
FROM sniff_csv('{secret}')
FROM glob('{folder}/*')
FROM glob('/etc/*')
FROM '{secret}'
FROM '{folder}/*.csv'
FROM 'secret.csv'
FROM './secret.csv'
FROM '.tmp/x.csv'
FROM '/etc/passwd'
FROM '/proc/self/environ'
FROM read_text('/proc/self/environ')
FROM read_text('/proc/self/maps')
FROM read_blob('/dev/zero')
FROM read_text('/dev/stdin')
FROM read_csv('/dev/fd/0')
FROM read_text(['{secret}', '/etc/passwd'])
FROM read_text('file://{secret}')
FROM read_csv('~/.ssh/id_rsa')
FROM delta_scan('{folder}')
FROM iceberg_scan('{folder}')
FROM sqlite_scan('{folder}/a.db', 'a')
FROM postgres_scan('host=127.0.0.1', 'public', 'a')
FROM mysql_query('host=127.0.0.1', 'SELECT 1')
FROM st_read('{secret}')
FROM read_xlsx('{folder}/a.xlsx')
FROM duckdb_file('{folder}/a.duckdb')
FROM 'https://127.0.0.1:1/a.csv'
FROM read_csv('http://127.0.0.1:1/a.csv')
FROM read_parquet('s3://bucket/a.parquet')
FROM read_text('gcs://bucket/a')
FROM read_json('hf://datasets/a/b.json')
SELECT http_get('http://127.0.0.1:1')
SELECT getenv('HOME')
SELECT * FROM query('COPY (SELECT 1) TO ''{folder}/out''')
SELECT * FROM query('ATTACH ''{folder}/a.db''')
SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')
SELECT * FROM query_table('{secret}')
SELECT (SELECT content FROM read_text('{secret}'))
WITH a AS (FROM read_text('{secret}')) FROM a
SELECT 1 WHERE EXISTS (FROM read_text('{secret}'))
EXPLAIN FROM read_text('{secret}')
DESCRIBE FROM read_csv('{secret}')
SUMMARIZE FROM read_csv('{secret}')
SHOW TABLES FROM '{secret}'
COPY texts TO '{folder}/out.csv'
COPY (SELECT 1) TO '{folder}/out.parquet'
COPY texts FROM '{secret}'
EXPORT DATABASE '{folder}/out'
IMPORT DATABASE '{folder}'
ATTACH '{folder}/a.db'
ATTACH ':memory:' AS other
DETACH memory
INSTALL httpfs
LOAD httpfs
LOAD '{folder}/a.duckdb_extension'
FORCE INSTALL sqlite FROM community
UPDATE EXTENSIONS
"""
STATE = """
SET memory_limit = '100GB'
SET GLOBAL threads = 64
SET lock_configuration = false
SET enable_external_access = true
SET temp_directory = '{folder}'
SET VARIABLE a = 1
RESET memory_limit
PRAGMA memory_limit = '100GB'
PRAGMA database_list
PRAGMA enable_profiling
PRAGMA enable_logging
CALL pragma_version()
CALL enable_logging()
FROM enable_logging()
FROM enable_profiling()
FROM set_config('threads', 64)
CREATE TABLE a (a INT)
CREATE TEMP TABLE a AS SELECT 1
CREATE VIEW a AS SELECT 1
CREATE MACRO a(x) AS x
CREATE SECRET (TYPE s3)
CREATE TYPE a AS ENUM ('a')
CREATE SEQUENCE a
CREATE SCHEMA a
DROP TABLE texts
ALTER TABLE texts ADD COLUMN a INT
INSERT INTO texts (key) VALUES ('a')
UPDATE texts SET key = 'a'
DELETE FROM texts
TRUNCATE texts
MERGE INTO texts USING texts a ON false WHEN NOT MATCHED THEN INSERT VALUES ('a')
WITH a AS (INSERT INTO texts (key) VALUES ('a') RETURNING *) FROM a
WITH a AS (DELETE FROM texts RETURNING *) FROM a
BEGIN
COMMIT
ROLLBACK
CHECKPOINT
VACUUM
ANALYZE
USE memory
PREPARE a AS SELECT 1
EXECUTE a
DEALLOCATE a
EXPLAIN ANALYZE SELECT 1
EXPLAIN INSERT INTO texts (key) VALUES ('a')
EXPLAIN SELECT 1; SELECT 2
SELECT 1; SELECT 2
SELECT 1; DROP TABLE texts
SELECT 1; ; INSTALL httpfs
PIVOT texts ON key USING count(*)
COMMENT ON TABLE texts IS 'a'
SELECT nextval('a')
FROM TABLES
FROM pool
FROM os
"""
# They have a result without anything of the machine.
HARMLESS = """
FROM duckdb_settings() WHERE name = 'secret_directory' AND value = '{folder}'
FROM duckdb_secrets()
FROM which_secret('s3://a', 's3')
FROM duckdb_extensions() WHERE install_path LIKE '%{folder}%'
FROM pragma_database_list()
FROM duckdb_temporary_files()
FROM duckdb_variables()
SELECT getvariable('secret')
SELECT setseed(0.5)
SELECT current_setting('lock_configuration')
FROM duckdb_logs
SELECT current_query()
FROM duckdb_prepared_statements()
FROM checkpoint()
"""
COSTLY = [
    "SELECT unnest(range(100000000))",
    "SELECT length(repeat('x', 1000000000)), length(repeat('y', 1000000000))",
    "SELECT string_agg(a.range::VARCHAR || repeat('z', 1000)) FROM range(10000000) a",
    "SELECT list(list_value(a.range, a.range)) FROM range(100000000) a",
    "WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
    "WITH RECURSIVE r AS (SELECT 'x' n UNION ALL SELECT n || n FROM r) SELECT max(length(n)) FROM r",
    "SELECT count(*) FROM range(100000000) a, range(100000000) b, range(100000000) c WHERE a.range + b.range = c.range",
    "SELECT * FROM range(100000) a, range(100000) b ORDER BY hash(a.range * b.range) OFFSET 5000000000",
    "SELECT regexp_matches(repeat('a', 10000000), '(a*)*(b*)*$') FROM range(100000)",
    "SELECT sum(x) FROM (SELECT unnest(generate_series(1, 1000000)) x FROM range(1000000))",
    "FROM " + ", ".join(f"range(2) t{n}" for n in range(600)),
]
NESTED = [
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT " + "[" * 5000 + "]" * 5000,
    "SELECT 1 IN (" + "1," * 5000 + "1)",
    "SELECT " + "NOT " * 4000 + "true",
    "SELECT " + "- " * 9000 + "1",
    "SELECT 1" + "+1" * 9000,
    "SELECT 1" + " UNION ALL SELECT 1" * 1000,
    "SELECT " + "CASE WHEN true THEN " * 500 + "1" + " END" * 500,
    "SELECT 'a' LIKE '" + "%a" * 5000 + "'",
]


def statements(text: str, folder: Path) -> list[str]:
    lines = text.strip().splitlines()
    return [line.format(secret=folder / "secret.csv", folder=folder) for line in lines]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the processes, with a file that no statement may read."""
    (tmp_path / "secret.csv").write_text(f"a,b\n1,{SECRET}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def outcome(pool: QueryProcesses, sql: str, deadline_s: float = DEADLINE_S) -> tuple[bool, str]:
    """Return whether a statement has a result, and the result or the error."""
    try:
        return True, repr((await ask(pool, sql, deadline_s))[:100])
    except InvalidArgumentError as error:
        return False, str(error)


def test_files_the_network_and_state_are_refused_with_an_error(folder: Path) -> None:
    async def main() -> None:
        async with processes() as pool:
            before = pids(pool)
            for sql in statements(FILES + STATE, folder):
                has_result, text = await outcome(pool, sql)
                assert not has_result, (sql, text)
                assert SECRET not in text
                assert "Error:" not in text
            await ask(pool, f"SELECT '{SECRET}' AS a")  # of another caller: no log or setting keeps it
            for sql in statements(HARMLESS, folder):
                has_result, text = await outcome(pool, sql)
                assert SECRET not in text, sql
                assert not has_result or str(folder) not in text, sql
            assert len(await ask(pool, "SHOW TABLES")) == len(TABLES)
            assert (pids(pool), pool.killed) == (before, 0)

    asyncio.run(main())
    assert [path.name for path in folder.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize("hostile", [long_or_short(COSTLY, COSTLY[1::3]), NESTED], ids=["costly", "nested"])
def test_a_costly_statement_ends_at_its_limits_and_the_next_is_answered(hostile: list[str], folder: Path) -> None:
    async def main() -> None:
        async with processes(memory_bytes=1 << 27) as pool:
            for sql in hostile:
                (served,) = pool._idle
                with takes_at_most(served, 1.7):
                    _, text = await outcome(pool, sql, deadline_s=0.7)
                assert "Error:" not in text
                assert await ask(pool, "SELECT 1 AS a") == [{"a": 1}]

    asyncio.run(main())
    assert [path.name for path in folder.iterdir()] == ["secret.csv"]
