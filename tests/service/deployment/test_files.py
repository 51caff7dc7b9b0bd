"""What processes leave each other reads as what it was, and is written as it always was, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest

from stateline.deployment.json_files import decoded
from stateline.deployment.partition_counts import PartitionsChangedError
from stateline.deployment.pipelines.declaration import PipelineDeclaration
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.deployment.pipelines.status import PipelineStatus
from stateline.deployment.refused_stores import StoresRefusedError
from stateline.deployment.stores.topology_file import Placement, PublishedTopology, publish_topology
from stateline.deployment.workers.figures import WorkerFigures
from stateline.deployment.workers.instance_file import Instance
from stateline.spark.sink.checkpoint import keep_declaration
from stateline.spark.sink.checkpoint_folder import LocalFolder
from stateline.worker.files.registration import Registration, socket_path
from stateline.worker.files.topic_ids import remember
from stateline_store import DamagedDataError, NewerFormatError

TOPOLOGY = b"""{
  "application_id": "hello",
  "default_isolation_level": "read_uncommitted",
  "subtopologies": [
    {
      "ordinal": 0,
      "partitions": 2,
      "sources": [
        "orders"
      ],
      "stores": [
        "orders",
        "totals"
      ],
      "processors": []
    }
  ],
  "stores": {
    "orders": {
      "subtopology": 0,
      "changelog": null,
      "refused": "Topic orders has 4 partitions, and had 2"
    },
    "totals": {
      "subtopology": 0,
      "changelog": "hello-totals-changelog"
    }
  },
  "topics": {
    "orders": {
      "partitions": 2,
      "topic_id": "H8oZf2FQRvqGDqkVVqTfZg"
    }
  },
  "cluster": "MkU3OEVBNTcwNTJENDM2Qg",
  "stopped": ""
}"""
INSTANCE = b"""{
  "instance": "worker-0",
  "process_id": "8a5c0f1e-5d0b-4c6f-9d6c-0d7a3a3a9f10",
  "member_id": "hello-0-5b0f2ad4",
  "generation": 3,
  "pid": 1458,
  "socket": "/srv/hello/instances/worker-0.sock",
  "tasks": {
    "0_0": "running"
  },
  "global_tables": null,
  "drained": false
}"""
FIGURES = orjson.dumps(
    {
        "instance": "worker-0", "updated_at_ms": 1795259814382,
        "totals": {"commits": 12, "forced_commits": 0, "commit_seconds": 0.5, "processed": 9, "process_seconds": 0.0,
                   "restored": 0, "followed": 4, "follow_seconds": 0.25, "promotions": 1, "promotion_seconds": 0.125},
        "rates": {"commits": 1.5, "processed": 900.0, "restored": 0.0, "followed": 8.0},
        "ratios": {"commit": 0.25, "process": 0.5},
        "commit_latency": {"avg_s": None, "max_s": 0.25}, "skipped": 0, "dead_lettered": 1, "dropped_by_operators": 2,
        "uncommitted_bytes": 3, "uncommitted_max_bytes": -1, "block_cache_usage": 4, "lag": {"0_0": {"orders": 5}},
        "dropped": {"0_0": 6}, "rocksdb": {"0_0": {"totals": {"estimate-num-keys": 7}}},
        "standbys": {"0_1": {"records": 3, "ms": None}},
        "stores": {"0_0": {"totals": {"commit_rate": 0.5, "commit_latency_avg_s": None, "commit_latency_max_s": None,
                                      "uncommitted_bytes": 8}}},
        "steps": {"count per_hour": {"taken": 9, "dropped": {"late": 1}}},
    },
    option=orjson.OPT_INDENT_2,
)  # fmt: skip
STATUS = (
    b'{"pipeline":"delays","pid":4711,"state":"running","query_id":"8a5c0f1e","batch_id":3,"rows_in":218,"skipped":0,'
    b'"duration_ms":412,"updated_at_ms":1795259814382,"rows_out":31,"tombstones":0,"dead_lettered":0,"lag":12,'
    b'"lag_by_topic":{"departures":12},"watermark_ms":null,"steps_ms":{"latestOffset":9},"batch_at_ms":1795259814380,'
    b'"totals":{"batches":4},"restarts":0,"last_error":null,"last_error_at_ms":null,"next_start_at_ms":null}'
)
DECLARATION = (
    b'{"version":1,"reads":["in"],"tables":[],"key":["level"],"windowing":["window",3600000],"result":"table",'
    b'"output_mode":"update","operators":[{"operator":"group_by","by":"gr\\u00f6\\u00dfe string"}],'
    b'"topics":{"in":{"partitions":2,"topic_id":"abc"}}}'
)
MARKER = (
    b'{"queryId":"8a5c0f1e","batchId":3,"endOffsets":["{\\"in\\":{\\"0\\":120}}",null],"rows":24,'
    b'"resultTopicIds":{"hourly":"Yq0h"},"resultEnds":{"hourly":{"0":7}}}'
)
Decode = Callable[[bytes], Any]
FILES: list[tuple[Decode, bytes]] = [
    (PublishedTopology.decode, TOPOLOGY),
    (partial(decoded, Instance), INSTANCE),
    (partial(decoded, WorkerFigures), FIGURES),
    (partial(decoded, PipelineStatus), STATUS),
    (PipelineDeclaration.decode, DECLARATION),
    (EpochMarker.decode, MARKER),
]
of_each_file = pytest.mark.parametrize(
    ("decode", "content"),
    FILES,
    ids=lambda value: value.args[0].__name__ if isinstance(value, partial) else getattr(value, "__qualname__", ""),
)


@of_each_file
def test_a_file_of_today_is_read_and_written_again_byte_for_byte(decode: Decode, content: bytes) -> None:
    assert decode(content).encode() == content


@of_each_file
def test_members_that_are_not_known_are_ignored(decode: Decode, content: bytes) -> None:
    assert decode(orjson.dumps(orjson.loads(content) | {"of_a_later_build": 1})) == decode(content)


@pytest.mark.parametrize(
    "keep",
    [
        lambda directory: publish_topology(directory, PublishedTopology.decode(TOPOLOGY)),
        lambda directory: keep_declaration(LocalFolder(directory), PipelineDeclaration.decode(DECLARATION)),
        lambda directory: remember(directory, {"in": "abc"}),
    ],
    ids=["topology", "declaration", "topics"],
)
def test_what_nobody_else_could_tell_is_on_disk_before_it_is_seen_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Callable[[Path], None]
) -> None:
    synced, fsync = [], os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        synced.append((Path(os.readlink(f"/proc/self/fd/{handle}")), len(os.listdir(tmp_path))))

    monkeypatch.setattr(os, "fsync", noted)
    keep(tmp_path)
    (draft, _), directory = synced
    assert (draft.parent, draft.exists(), directory) == (tmp_path, False, (tmp_path, 1))


def test_what_workers_tell_servers_is_for_their_user_alone(tmp_path: Path) -> None:
    publish_topology(tmp_path, PublishedTopology.decode(TOPOLOGY))
    remember(tmp_path, {"in": "abc"})
    worker = Registration(tmp_path, "worker-0")
    worker.update(tmp_path / "socket", {}, UUID(int=7))
    worker.publish_figures(decoded(WorkerFigures, FIGURES))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.suffix != ".lock"}
    worker.remove()
    assert modes == {
        "topology.json": 0o600, "topics.json": 0o600, "instances": 0o750, "worker-0.json": 0o600,
        "worker-0.figures": 0o600,
    }  # fmt: skip


@of_each_file
def test_half_a_file_and_one_of_something_else_are_damage(decode: Decode, content: bytes) -> None:
    for damaged in (b"", content[: len(content) // 2], b"[]", b"null", b'{"pid": "x"}'):
        with pytest.raises(DamagedDataError):
            decode(damaged)


def test_a_topology_says_where_stores_are_and_refuses_one_that_it_does_not_have() -> None:
    topology = PublishedTopology.decode(TOPOLOGY)
    assert topology.placements() == {
        "orders": Placement(0, 2, None, "Topic orders has 4 partitions, and had 2"),
        "totals": Placement(0, 2, "hello-totals-changelog"),
    }
    stopped = topology.refusing(StoresRefusedError({"totals": "no", "other": "no"})).placements()
    assert {name: (each.refused, each.stopped) for name, each in stopped.items()} == {
        "orders": ("Topic orders has 4 partitions, and had 2", "no"), "totals": ("no", "no"),
    }  # fmt: skip
    kept = topology.refusing(PartitionsChangedError({"totals": "grown"})).placements()["totals"]
    assert (kept.refused, kept.stopped) == (None, "grown")
    elsewhere = TOPOLOGY.replace(b'"subtopology": 0', b'"subtopology": 1')
    with pytest.raises(DamagedDataError, match="subtopology 1"):
        PublishedTopology.decode(elsewhere)


def test_another_version_of_a_declaration_is_a_newer_format() -> None:
    tree = orjson.loads(DECLARATION)
    with pytest.raises(NewerFormatError, match=r"declaration\.json has version 2"):
        PipelineDeclaration.decode(orjson.dumps(tree | {"version": 2}))


@pytest.mark.parametrize("instance", ["worker-0", "w" * 200])
def test_a_worker_s_socket_lies_in_its_directory_under_a_name_that_fits_into_an_address(instance: str) -> None:
    application = Path("/", "d" * 200, "app")
    path = socket_path(application, instance)
    assert path.parent == application / "instances"
    assert len(path.name) < 90
    assert path != socket_path(application, f"{instance[1:]}x")
