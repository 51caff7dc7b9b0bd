"""What somebody sees first when a source fails: the sentence that says what to do, and never a Python traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from service.spark.source.scenes import Kinds, read, reader

NOBODY = "http://127.0.0.1:9"
"""Where no server is."""


def changes(session: SparkSession, url: str, store: str, schema: str | None = None, **options: Any) -> DataFrame:
    """A stream that gives up soon."""
    given = {"url": url, "store": store, "changes": "true", "retry_s": "0.3", **options}
    stream = session.readStream.format("stateline").options(**given)
    return (stream if schema is None else stream.schema(schema)).load()


def run(frame: DataFrame, checkpoint: Path) -> None:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def first_line(error: BaseException) -> str:
    """Of what Spark says, which has no traceback anywhere either."""
    assert "Traceback" not in str(error)
    return str(error).splitlines()[0]


@pytest.mark.parametrize(
    ("store", "options", "said"),
    [
        ("plain", {"prefixx": "a"}, "InvalidArgumentError: There is no option 'prefixx': there are url"),
        ("plain", {"columns": "nix"}, "InvalidArgumentError: columns='nix' is no column of 'plain': it has key"),
        ("nix", {}, "DoesNotExistError: "),
        ("plain", {"url": NOBODY, "retry_s": 0.3}, f"NotReadyError: {NOBODY} did not answer as it should for 0.3 s"),
    ],
)
@pytest.mark.parametrize("made", [read, changes])
def test_a_frame_that_cannot_be_made(
    session: SparkSession, kinds: Kinds, made: Callable[..., DataFrame], store: str, options: dict[str, Any], said: str
) -> None:
    if made is changes:
        said = said.replace("'prefixx': there", "'prefixx' of a stream of changes: there")
    with pytest.raises(PySparkException) as raised:
        made(session, **{"url": kinds.url, "store": store, **options})
    assert f"stateline_store.errors.{said}" in first_line(raised.value)


def test_a_snapshot_that_is_gone_when_a_job_is_planned(session: SparkSession, kinds: Kinds) -> None:
    snapshot = kinds.client.post("/v1/snapshots", json={"stores": ["plain"]}).json()["id"]
    frame = read(session, kinds.url, "plain", snapshot=snapshot)
    kinds.client.delete(f"/v1/snapshots/{snapshot}")
    with pytest.raises(PySparkException) as raised:
        frame.count()
    assert "CursorExpiredError: The snapshot of this DataFrame is gone" in first_line(raised.value)


def test_a_task_that_cannot_read_a_value(session: SparkSession, kinds: Kinds) -> None:
    frame = reader(session, kinds.url, "plain").schema("key STRING, value BIGINT").load()
    with pytest.raises(PySparkException) as raised:
        frame.collect()
    assert "Traceback" not in str(raised.value)
    sparks_own, said = str(raised.value).strip().splitlines()[:2]
    assert sparks_own == "An exception was thrown from the Python worker:"
    assert said.startswith("stateline_store.errors.DamagedDataError: A value is not of the type that the schema gives")


def test_a_store_that_is_to_be_written(session: SparkSession, kinds: Kinds) -> None:
    writer = session.range(1).write.format("stateline").option("url", kinds.url).option("store", "plain").mode("append")
    with pytest.raises(PySparkException) as raised:
        writer.save()
    assert "InvalidArgumentError: Stores are read here, and not written" in first_line(raised.value)


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (None, {"changes": "false"}, "InvalidArgumentError: A stream has the changes of a store: say so with"),
        ("key STRING", {"maxChangesPerTrigger": 0}, "InvalidArgumentError: maxChangesPerTrigger="),
        ("key STRING", {"nix": 1}, "InvalidArgumentError: There is no option 'nix'"),
        (None, {"from": "nix"}, "InvalidArgumentError: "),
        (
            "key STRING, nix STRING",
            {},
            "InvalidArgumentError: The schema has nix string, and the rows of 'stamped' have",
        ),
        ("key STRING, value BIGINT", {}, "DamagedDataError: A value is not of the type that the schema gives"),
    ],
    ids=["changes", "number", "option", "at its beginning", "as it is planned", "in a task"],
)
def test_a_query_that_fails(
    session: SparkSession, kinds: Kinds, tmp_path: Path, schema: str | None, options: dict[str, str], said: str
) -> None:
    with pytest.raises(StreamingQueryException) as raised:
        run(changes(session, kinds.url, "stamped", schema, **options), tmp_path)
    assert f"stateline_store.errors.{said}" in first_line(raised.value)
