"""What Stateline keeps beside Spark's checkpoint, wherever that is: a directory, or any file system that Hadoop knows.

The same sentences hold of a directory, of Hadoop's own ``file:``, and of a real HDFS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from stateline.deployment.pipelines.declaration import PipelineDeclaration
from stateline.spark.sink.checkpoint import (
    checkpoint_end_offsets,
    checkpoint_query_id,
    claim,
    ends_of_batch,
    keep_declaration,
    kept_declaration,
    newest_commit,
)
from stateline.spark.sink.checkpoint_folder import CheckpointFolder, HadoopFolder, LocalFolder, checkpoint_folder
from stateline_store import ConfigurationError, DamagedDataError, RetryLaterError, TopologyError
from support.hadoop.hdfs import hdfs, hdfs_jars
from support.kafka.kafka_broker import needed
from support.processes.ports import free_port

DECLARED = PipelineDeclaration(
    reads=["in"], tables=[], key=["k"], windowing=None, result="table", output_mode="update", operators=[], topics={}
)


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(needed(hdfs_jars), tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture(params=["directory", "file", "hdfs"])
def folder(request: pytest.FixtureRequest, session: SparkSession, tmp_path: Path) -> CheckpointFolder:
    if request.param == "directory":
        return LocalFolder(tmp_path / "checkpoint")
    if request.param == "file":
        return HadoopFolder(session, f"file://{tmp_path}/checkpoint")
    return HadoopFolder(session, f"{request.getfixturevalue('hadoop')}/{uuid4().hex}/checkpoint")


def test_a_checkpoint_that_is_not_there_says_nothing(folder: CheckpointFolder) -> None:
    assert folder.read("metadata") is None
    assert folder.names("commits") == []
    assert (checkpoint_query_id(folder), newest_commit(folder), kept_declaration(folder)) == (None, None, None)
    assert checkpoint_end_offsets(folder, 0) is None
    with pytest.raises(DamagedDataError, match=r"checkpoint/offsets/0 is gone"):
        ends_of_batch(folder, 0)


def test_what_is_kept_replaces_what_was_there_and_leaves_no_draft(folder: CheckpointFolder) -> None:
    for content in (b"one", b"a longer one", b""):
        folder.keep("stateline.json", content)
        assert folder.read("stateline.json") == content
    assert [name for name in folder.names("") if not name.endswith(".crc")] == ["stateline.json"]


def test_what_spark_writes_there_is_read(folder: CheckpointFolder) -> None:
    folder.keep("metadata", json.dumps({"id": "a query"}).encode())
    folder.keep("offsets/7", b'v1\n{}\n{"in":{"0":5}}\n-')
    for number in ("9", "10", "8"):
        folder.keep(f"commits/{number}", b"v1\n{}")
    assert checkpoint_query_id(folder) == "a query"
    assert checkpoint_end_offsets(folder, 7) == ('{"in":{"0":5}}', None)
    assert newest_commit(folder) == 10


def test_a_checkpoint_is_of_who_claimed_it_and_keeps_how_the_pipeline_was_declared(folder: CheckpointFolder) -> None:
    claim(folder, "app", "p")
    claim(folder, "app", "p")
    with pytest.raises(TopologyError, match="it was copied") as refused:
        claim(folder, "app", "another")
    assert str(folder) in str(refused.value)
    keep_declaration(folder, DECLARED)
    assert kept_declaration(folder) == DECLARED


def test_a_file_of_ours_that_is_damaged_is_named(folder: CheckpointFolder) -> None:
    folder.keep("stateline.json", b"[")
    folder.keep("declaration.json", b"[")
    with pytest.raises(DamagedDataError, match=rf"{folder}/stateline\.json is not the JSON"):
        claim(folder, "app", "p")
    with pytest.raises(DamagedDataError, match=rf"{folder}/declaration\.json is not the JSON"):
        kept_declaration(folder)


def _keep(folder: CheckpointFolder) -> None:
    folder.keep("stateline.json", b"")


@pytest.mark.parametrize("ask", [checkpoint_query_id, newest_commit, _keep])
def test_a_file_system_that_does_not_answer_is_to_be_asked_again(
    session: SparkSession, ask: Callable[[CheckpointFolder], object]
) -> None:
    gone = checkpoint_folder(session, f"hdfs://127.0.0.1:{free_port()}/checkpoint")
    with pytest.raises(RetryLaterError, match=r"^hdfs://127.0.0.1:\d+/checkpoint/\w+\S* cannot be \w+ now: .*refused"):
        ask(gone)


def test_a_file_system_that_spark_does_not_know_is_the_callers_mistake(session: SparkSession) -> None:
    unknown = checkpoint_folder(session, "s3a://bucket/checkpoint")
    with pytest.raises(ConfigurationError, match=r"knows no file system of s3a://bucket/checkpoint: .*spark\.jars"):
        checkpoint_query_id(unknown)


def test_a_directory_that_cannot_be_read_is_to_be_asked_again(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    with pytest.raises(RetryLaterError, match=r"metadata cannot be read now: Is a directory"):
        checkpoint_query_id(LocalFolder(tmp_path))
