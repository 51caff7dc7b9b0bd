"""Stores as tables of Spark SQL: `CREATE TABLE … USING stateline OPTIONS (…)`, then `SELECT`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from service.spark.source.scenes import KEY_VALUE, STORES, Kinds, as_counted, reader, rows
from stateline.spark.reading.table_options import created_options, query_options, with_options
from stateline_store import InvalidArgumentError
from support.run.length import long_only

DOCUMENT = Path(__file__).parents[4] / "docs" / "spark.md"
OF_SPARK = {"provider": "stateline", "owner": "ann", "comment": "c", "location": "file:/x", "path": "file:/x"}


@pytest.fixture
def database(session: SparkSession) -> Iterator[str]:
    """A database that goes with its tables. It has the name in the document."""
    session.sql("CREATE DATABASE IF NOT EXISTS stateline")
    yield "stateline"
    session.sql("DROP DATABASE stateline CASCADE")


def create(session: SparkSession, kinds: Kinds, name: str, options: str = "store 'plain'", columns: str = "") -> None:
    session.sql(f"CREATE TABLE {name} {columns} USING stateline OPTIONS (url '{kinds.url}', {options})")


def test_a_table_has_the_rows_of_its_store(session: SparkSession, kinds: Kinds, database: str, tmp_path: Path) -> None:
    session.sql(
        f"CREATE TABLE {database}.orders USING stateline OPTIONS (url '{kinds.url}', store 'plain', splitBytes '99999')"
        f" COMMENT 'of today' LOCATION '{tmp_path}/unused' TBLPROPERTIES (team 'ops')"
    )
    expected = kinds.expected("plain")
    assert as_counted(rows(session.sql(f"SELECT * FROM {database}.orders"))) == as_counted(expected)
    joined = session.sql(f"SELECT a.key FROM {database}.orders a JOIN {database}.orders b ON a.key = b.key")
    assert joined.count() == len(expected)
    assert session.table(f"{database}.orders").where("key = 'a'").count() == 1


def test_a_query_of_a_table_has_options_of_its_own(session: SparkSession, kinds: Kinds, database: str) -> None:
    create(session, kinds, f"{database}.orders", "store 'stamped', columns 'key,timestamp'")
    found = session.sql(f"""SELECT key FROM {database}.orders WITH (keys = '["a", "nix"]')""").collect()
    assert [row.key for row in found] == ["a"]
    assert session.table(f"{database}.orders").columns == ["key", "timestamp"]
    with pytest.raises(PySparkException, match="There is no option 'prefx'"):
        session.sql(f"SELECT * FROM {database}.orders WITH (prefx = 'a')").collect()


_OF_FRAMES = long_only("frames refuse the same, and a store that is not there is in the gate")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param("store 'plain', prefx 'a'", "There is no option 'prefx'", marks=_OF_FRAMES),
        ("store 'nix'", "There is no store 'nix'"),
        pytest.param("prefix 'a'", "The option store is missing", marks=_OF_FRAMES),
        ("store 'plain', token 'secret'", "would show the option token of this table: use token_file"),
        ("store 'plain', changes 'true'", "changes=true is of streams"),
    ],
)
def test_a_table_that_no_query_could_read_is_not_created(
    session: SparkSession, kinds: Kinds, database: str, options: str, says: str
) -> None:
    with pytest.raises(PySparkException, match=says) as raised:
        create(session, kinds, f"{database}.refused", options)
    assert "secret" not in str(raised.value)
    assert not session.catalog.tableExists(f"{database}.refused")


def test_a_table_with_columns_of_its_own_says_why_it_cannot_be_read(
    session: SparkSession, kinds: Kinds, database: str
) -> None:
    create(session, kinds, f"{database}.listed", columns="(key STRING)")
    with pytest.raises(PySparkException, match="Spark loses the OPTIONS of a table whose columns are listed"):
        session.sql(f"SELECT * FROM {database}.listed").collect()


def test_a_frame_with_the_schema_of_a_table_reads_its_own_store(
    session: SparkSession, kinds: Kinds, database: str, tmp_path: Path
) -> None:
    create(session, kinds, f"{database}.orders", "store 'stamped', prefix 'a'")
    schema = session.table(f"{database}.orders").schema
    frame = reader(session, kinds.url, "latest").schema(schema).load()
    assert as_counted(rows(frame)) == as_counted(kinds.expected("latest"))
    session.table(f"{database}.orders").write.parquet(str(tmp_path / "files"))
    written = session.read.parquet(str(tmp_path / "files")).schema["key"].metadata
    assert written["stateline"] == {"url": kinds.url, "store": "stamped", "prefix": "a"}, "as the document says"


def test_the_statements_of_the_document_make_a_table_of_each_store(
    session: SparkSession, kinds: Kinds, database: str
) -> None:
    page = DOCUMENT.read_text(encoding="utf-8").partition("## Tables of Spark SQL")[2].partition("\n## ")[0]
    (statements,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    statements = statements.replace("http://127.0.0.1:8000", kinds.url).replace("'orders'", "'plain'")
    created, *selected = (each for each in statements.split(";") if each.strip())
    session.sql(created)
    assert session.sql(selected[0]).count() == len(kinds.expected("plain"))
    assert session.sql(selected[1]).count() == 0
    session.sql("DROP TABLE orders")
    (loop,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    loop = loop.replace("http://127.0.0.1:8000", kinds.url).replace("stateline.orders", "stateline.plain")
    exec(loop, {"spark": session})
    tables = {row.tableName for row in session.sql(f"SHOW TABLES IN {database}").collect()}
    assert tables >= {store.replace("-", "_") for store in STORES}
    for store in KEY_VALUE:
        assert session.table(f"{database}.{store}").count() == len(kinds.expected(store))
    with pytest.raises(PySparkException, match="in memory"):
        session.table(f"{database}.plain_in_memory").count()


def test_names_of_spark_are_not_options_of_the_source() -> None:
    given = OF_SPARK | {"team": "ops", "url": "u", "option.url": "u", "store": "s", "option.store": "s"}
    assert created_options(given) == {"url": "u", "store": "s"}
    assert created_options({"url": "u", "store": "s", "provider": "x"}) is None


def test_a_schema_carries_the_options_of_its_table() -> None:
    schema = with_options(StructType().add("key", "string").add("value", "string"), {"url": "u", "STORE": "s"})
    schema = StructType.fromJson(schema.jsonValue())
    assert query_options(schema, {}) == {"url": "u", "store": "s"}
    assert query_options(schema, {"URL": "v", "prefix": "a"}) == {"url": "v", "store": "s", "prefix": "a"}
    assert query_options(schema, {"store": "t"}) == {"store": "t"}
    with pytest.raises(InvalidArgumentError, match="no options url and store"):
        query_options(StructType().add("key", "string"), {"prefix": "a"})
