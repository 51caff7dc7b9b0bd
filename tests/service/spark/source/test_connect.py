"""Stores over Spark Connect: what a client reads through a Connect server is what the stores have, and what needs the
classic session says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from pyspark.sql import SparkSession

from service.spark.source.scenes import Kinds, as_counted
from support import TESTS
from support.kafka.kafka_broker import missing_is_a_failure
from support.run.patience import HANGING_S

_NEEDED = ("grpc", "grpc_status", "google.rpc", "zstandard")
_JOB = TESTS / "support" / "spark" / "connect_job.py"


@pytest.fixture(scope="module")
def remote(session: SparkSession) -> Iterator[str]:
    """The URL of a Connect server in the JVM of the session, which runs already."""
    jvm: Any = session.sparkContext._jvm
    context = session.sparkContext._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.conf().set("spark.connect.grpc.binding.port", "0")  # one that is free
    service = getattr(getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    service.start(context)
    yield f"sc://127.0.0.1:{service.server().getPort()}"
    service.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


@pytest.fixture(scope="module")
def found(kinds: Kinds, tmp_path_factory: pytest.TempPathFactory, remote: str) -> dict[str, Any]:
    """What a job has found, which is a process of its own: one that has a Connect session has no classic one."""
    if missing := [name for name in _NEEDED if not _is_there(name)]:
        why = f"pyspark's client of Spark Connect needs {', '.join(missing)}: pip install 'pyspark[connect]'"
        pytest.fail(why) if missing_is_a_failure() else pytest.skip(why)
    place = tmp_path_factory.mktemp("connect")
    command = [sys.executable, str(_JOB), remote, kinds.url, str(place / "found"), str(place / "checkpoint")]
    job = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=HANGING_S, check=False)
    assert job.returncode == 0, job.stderr[-4000:]
    read: dict[str, Any] = json.loads((place / "found").read_text())
    assert read["is_connect"]
    return read


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # what it is in
        return False


def test_a_snapshot_has_the_rows_of_the_store_with_filters_and_schemas(kinds: Kinds, found: dict[str, Any]) -> None:
    expected = {row["key"]: row["value"] for row in kinds.expected("plain")}
    assert {key: json.loads(value) for key, value in found["plain"]} == expected
    assert {key: json.loads(value) for key, value in found["filtered"]} == {"a": expected["a"]}
    members = sorted([key, value["n"]] for key, value in expected.items())
    assert sorted(found["typed"]) == sorted(found["lenient"]) == members


def test_several_stores_are_cut_at_one_moment(kinds: Kinds, found: dict[str, Any]) -> None:
    keys = [{row["key"] for row in kinds.expected(store)} for store in ("plain", "stamped")]
    assert {key for (key,) in found["cut"]} == keys[0] & keys[1]
    assert found["stores"] == ["plain", "stamped"]


def test_frames_of_one_pin_are_of_one_snapshot_however_often_they_are_planned(
    kinds: Kinds, found: dict[str, Any]
) -> None:
    assert found["pinned"] == len(kinds.expected("plain"))
    assert found["snapshots of one pin"] == 1
    assert found["snapshots of a plain frame"] > 1, (
        "Spark Connect has changed: docs/spark.md advises against such frames"
    )


def test_a_stream_has_each_committed_change_once(kinds: Kinds, found: dict[str, Any]) -> None:
    places = [(partition, offset) for partition, offset, *_ in found["changes"]]
    assert len(set(places)) == len(places)
    last = {key: value for _, _, key, value in sorted(found["changes"], key=lambda change: change[:2])}
    rows = [{"key": key, "value": json.loads(value)} for key, value in last.items() if value is not None]
    assert as_counted(rows) == as_counted(
        {"key": row["key"], "value": row["value"]} for row in kinds.expected("stamped")
    )


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ("unknown", "stateline_store.errors.DoesNotExistError: There is no store 'nix'; there are: "),
        ("own session", "Pipelines run in Spark's classic session, but SPARK_CONNECT_MODE_ENABLED selects"),
        ("session of the caller's", "Pipelines run in Spark's classic session, but this session is of Spark Connect"),
    ],
)
def test_what_cannot_be_had_is_said_in_the_first_line(found: dict[str, Any], refused: str, said: str) -> None:
    assert said in found[refused].splitlines()[0]
