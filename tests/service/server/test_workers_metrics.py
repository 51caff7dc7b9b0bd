"""What the server shows of workers: as they told it, of those that live."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stateline.deployment.json_files import decoded
from stateline.deployment.workers.figures import WorkerFigures
from stateline.deployment.workers.instance_file import read_instances
from stateline.server.telemetry.workers_metrics import PROPERTIES, FiguresReader, WorkerCollector
from stateline.worker.files import registration
from stateline.worker.files.registration import Registration
from stateline_store.rocksdb import engine as rocksdb_engine
from support.processes.query_server import OwningWorker

TOLD: dict[str, Any] = {
    "instance": "worker-0", "updated_at_ms": 1_795_259_814_382,
    "totals": {"commits": 12, "forced_commits": 3, "commit_seconds": 0.5, "processed": 9_000, "process_seconds": 4.5,
               "restored": 70, "followed": 80, "follow_seconds": 0.25, "promotions": 2, "promotion_seconds": 0.125},
    "rates": {"commits": 1.5, "processed": 900.0, "restored": 7.0, "followed": 8.0},
    "ratios": {"commit": 0.05, "process": 0.45},
    "commit_latency": {"avg_s": 0.04, "max_s": 0.2}, "skipped": 4, "dead_lettered": 5, "dropped_by_operators": 6,
    "uncommitted_bytes": 600,
    "uncommitted_max_bytes": 67_108_864, "block_cache_usage": 1_000, "lag": {"0_0": {"orders": 8}},
    "dropped": {"0_0": 2}, "rocksdb": {"0_0": {"totals": {"estimate-num-keys": 11}},
                                        "0_1": {"totals": {"estimate-num-keys": 31}}},
    "standbys": {"0_2": {"records": 3, "ms": 500}, "0_3": {"records": None, "ms": None}},
    "stores": {"0_0": {"totals": {"commit_rate": 1.25, "commit_latency_avg_s": 0.03, "commit_latency_max_s": 0.15,
                                  "uncommitted_bytes": 590}}},
    "steps": {"count totals": {"taken": 40, "dropped": {"late": 3, "no_key": 1}}},
}  # fmt: skip
_LABELS = ("worker", "task", "topic", "store", "step", "reason")


@pytest.fixture
def instances(tmp_path: Path) -> Path:
    made = tmp_path / "instances"
    made.mkdir()
    return made


@contextmanager
def living(instances: Path, worker: str = "worker-0") -> Iterator[None]:
    """A worker of this name that lives."""
    with (instances / f"{worker}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tell(instances: Path, worker: str = "worker-0", **changes: Any) -> None:
    (instances / f"{worker}.figures").write_text(json.dumps(TOLD | changes))


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Metric and the values of its labels, that of `worker` first → its value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [sample.labels[name] for name in _LABELS if name in sample.labels]
            found[sample.name.removeprefix("stateline_"), *labels] = sample.value
    return found


def shown(instances: Path) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(FiguresReader(instances.parent)))
    return samples(generate_latest(registry).decode())


def test_everything_that_a_worker_tells_is_a_metric(instances: Path) -> None:
    tell(instances)
    with living(instances):
        found = shown(instances)
    assert found.pop(("worker_figures_age_seconds", "worker-0")) == pytest.approx(
        max(0.0, time.time() - 1_795_259_814.382), abs=5
    )
    of_worker = {
        "commit_total": 12, "forced_commits_total": 3, "commit_seconds_total": 0.5, "process_total": 9_000,
        "process_seconds_total": 4.5, "restore_total": 70, "skipped_records_total": 4,
        "dead_lettered_records_total": 5, "operators_dropped_records_total": 6,
        "commit_rate": 1.5, "commit_latency_avg_seconds": 0.04,
        "commit_latency_max_seconds": 0.2, "commit_ratio": 0.05, "process_rate": 900, "process_ratio": 0.45,
        "standby_records_total": 80, "standby_seconds_total": 0.25, "promotions_total": 2,
        "promotion_seconds_total": 0.125, "standby_rate": 8, "restore_rate": 7,
        "uncommitted_bytes": 600, "uncommitted_max_bytes": 67_108_864,
        "rocksdb_block_cache_usage_bytes": 1_000,
    }  # fmt: skip
    assert found == {(name, "worker-0"): value for name, value in of_worker.items()} | {
        ("dropped_records_total", "worker-0", "0_0"): 2,
        ("step_records_total", "worker-0", "count totals"): 40,
        ("step_dropped_records_total", "worker-0", "count totals", "late"): 3,
        ("step_dropped_records_total", "worker-0", "count totals", "no_key"): 1,
        ("input_lag_records", "worker-0", "0_0", "orders"): 8,
        ("rocksdb_estimate_num_keys", "worker-0", "totals"): 11 + 31,
        ("store_commit_rate", "worker-0", "0_0", "totals"): 1.25,
        ("store_commit_latency_avg_seconds", "worker-0", "0_0", "totals"): 0.03,
        ("store_commit_latency_max_seconds", "worker-0", "0_0", "totals"): 0.15,
        ("store_uncommitted_bytes", "worker-0", "0_0", "totals"): 590,
        ("standby_lag_records", "worker-0", "0_2"): 3,
        ("standby_lag_seconds", "worker-0", "0_2"): 0.5,
    }


def test_before_the_first_commit_its_latency_is_left_out(instances: Path) -> None:
    store = {"commit_rate": 0.0, "commit_latency_avg_s": None, "commit_latency_max_s": None, "uncommitted_bytes": 0}
    tell(instances, commit_latency={"avg_s": None, "max_s": None}, stores={"0_0": {"totals": store}})
    with living(instances):
        names = {name for name, *_ in shown(instances)}
    assert not any("latency" in name for name in names)
    assert "commit_rate" in names


def test_of_many_store_partitions_each_store_is_shown_as_one(instances: Path) -> None:
    def store(rate: float, avg_s: float | None, max_s: float | None) -> dict[str, object]:
        latencies = {"commit_latency_avg_s": avg_s, "commit_latency_max_s": max_s}
        return {"totals": {"commit_rate": rate, **latencies, "uncommitted_bytes": 2}}

    idle = {f"0_{n}": store(0.0, None, None) for n in range(2, 600)}
    tell(instances, stores={"0_0": store(3.0, 0.1, 0.5), "0_1": store(1.0, 0.5, 0.6), **idle})
    with living(instances):
        found = {name: value for name, value in shown(instances).items() if name[0].startswith("store_")}
    assert found == {
        ("store_commit_rate", "worker-0", "", "totals"): 4,
        ("store_commit_latency_avg_seconds", "worker-0", "", "totals"): pytest.approx(0.2),
        ("store_commit_latency_max_seconds", "worker-0", "", "totals"): 0.6,
        ("store_uncommitted_bytes", "worker-0", "", "totals"): 1_200,
    }


def test_each_worker_that_lives_is_shown_and_a_killed_one_is_not(instances: Path) -> None:
    for worker in ("worker-0", "worker-1", "worker-2"):
        tell(instances, worker)
    with living(instances, "worker-0"), living(instances, "worker-1"):
        pass
    with living(instances, "worker-1"), living(instances, "worker-2"):
        assert {labels[0] for _, *labels in shown(instances)} == {"worker-1", "worker-2"}


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps(TOLD | {"totals": {"commits": 12}})])
def test_of_a_file_that_cannot_be_understood_there_is_a_warning_and_no_metric(
    instances: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (instances / "worker-0.figures").write_text(text)
    with living(instances):
        assert shown(instances) == {}
    assert "worker-0.figures cannot be read" in caplog.text


def test_without_any_worker_there_is_nothing(tmp_path: Path) -> None:
    assert shown(tmp_path / "instances") == {}


def test_every_property_that_workers_tell_has_a_metric() -> None:
    assert set(PROPERTIES) == set(rocksdb_engine.PROPERTIES)


def test_a_look_at_a_worker_that_starts_does_not_keep_it_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Registration(tmp_path, "worker-0").remove()
    looks = (tmp_path / "instances" / "worker-0.lock").open("a")
    fcntl.flock(looks, fcntl.LOCK_SH)  # as `lock_holder` does, for a moment
    monkeypatch.setattr(registration, "time", SimpleNamespace(sleep=lambda _: looks.close()))
    Registration(tmp_path, "worker-0").remove()


def test_a_worker_that_starts_takes_back_what_a_killed_one_of_its_name_has_told(tmp_path: Path) -> None:
    killed = Registration(tmp_path, "worker-0")
    killed.update(tmp_path / "no-socket", {"0_0": "running"}, uuid4())
    killed.publish_figures(decoded(WorkerFigures, json.dumps(TOLD).encode()))
    killed.lock.close()  # as the system does
    successor = Registration(tmp_path, "worker-0")
    assert (read_instances(tmp_path), FiguresReader(tmp_path).read()) == ({}, {})
    successor.remove()


def test_a_server_shows_them_beside_its_own(client: httpx.Client, worker: OwningWorker, state_dir: Path) -> None:
    instances = next(state_dir.glob("*/instances"))
    tell(instances, "another")
    with living(instances, "another"):
        found = samples(client.get("/metrics").text)
        assert found["commit_total", "another"] == 12
    assert ("commit_total", "another") not in samples(client.get("/metrics").text)
    worker.commit()
