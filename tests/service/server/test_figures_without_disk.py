"""The figures of a worker whose state directory takes no more bytes, as a server's /metrics has them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stateline import serdes
from stateline.deployment.workers.instance_file import lock_path, starts
from stateline.dsl.app import App
from stateline.log import open_log
from stateline.server.telemetry.metrics import WorkerLives
from stateline.worker.files.registration import Registration
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import served_here
from support.processes.small_disk import fill, free, new_small_disk

DISK_MIB = 64
TEXT: dict[str, Any] = {"key": serdes.string, "value": serdes.string}


def samples(text: str, worker: str = "worker-0") -> dict[str, float]:
    """Of this worker, or of all."""
    families = text_string_to_metric_families(text)
    found = [sample for family in families for sample in family.samples]
    return {each.name: each.value for each in found if each.labels.get("worker", worker) == worker}


def metrics(client: httpx.Client) -> dict[str, float]:
    return samples(client.get("/metrics").text)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with new_small_disk(tmp_path / "state", DISK_MIB) as disk:
        yield disk


def table() -> App:
    app = App("app")
    app.table(app.topic("in", **TEXT), store="newest")
    return app


def test_a_full_disk_does_not_blind_its_monitoring(small_disk: Path, tmp_path: Path) -> None:
    app = table()
    config = configured(app, small_disk)
    with (
        closing(open_log("embedded", tmp_path)) as log,
        served_here(small_disk, app=app, until_ready=False) as here,
    ):
        create(log, {"in": 1})
        produce(log, "in", [(b"a", b"1", 1)])
        with running(app, config, log):
            wait_until(lambda: metrics(here.client).get("stateline_process_total") == 1)
            fill(small_disk)
            full_s = time.time()
            produce(log, "in", [(b"b", b"2", 2)])

            def is_newer() -> bool:
                found = metrics(here.client)
                assert found["stateline_workers"] == found["stateline_worker_up"] == 1
                return time.time() - found.get("stateline_worker_figures_age_seconds", 1e9) > full_s + 2

            wait_until(is_newer)
            assert here.serving.workers.unwritten_figures().keys() == {"worker-0"}
            assert metrics(here.client)["stateline_state_disk_free_bytes"] == 0
            free(small_disk)
            wait_until(lambda: metrics(here.client)["stateline_process_total"] >= 2)
            wait_until(lambda: not here.serving.workers.unwritten_figures())


def test_a_file_that_cannot_be_written_leaves_a_worker_that_works_its_metrics(tmp_path: Path) -> None:
    app = table()
    config = configured(app, tmp_path / "state")
    (tmp_path / "state" / "app" / "instances").mkdir(parents=True)
    with (
        closing(open_log("embedded", tmp_path)) as log,
        served_here(config.state_dir, app=app, until_ready=False) as here,
    ):
        create(log, {"in": 1})
        with running(app, config, log):
            wait_until(lambda: "stateline_process_total" in metrics(here.client))
            figures = config.state_dir / "app" / "instances" / "worker-0.figures"
            while not figures.is_dir():  # which nothing replaces
                figures.unlink(missing_ok=True)
                with suppress(FileExistsError):
                    figures.mkdir()
            produce(log, "in", [(b"a", b"1", 1), (b"b", b"2", 1)])
            wait_until(lambda: metrics(here.client).get("stateline_process_total") == 2)
            figures.rmdir()
            wait_until(figures.is_file)


def lives(reader: WorkerLives, worker: str = "worker-0") -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(reader)
    return samples(generate_latest(registry).decode(), worker)


def test_every_start_counts_and_one_that_ended_is_missed(tmp_path: Path) -> None:
    reader = WorkerLives(tmp_path)
    assert lives(reader) == {"stateline_workers": 0}
    worker = Registration(tmp_path, "worker-0")
    assert lives(reader) == {"stateline_workers": 1, "stateline_worker_up": 1, "stateline_worker_starts_total": 1}
    worker.remove()
    assert lives(reader) == {"stateline_workers": 0, "stateline_worker_up": 0, "stateline_worker_starts_total": 1}
    later = WorkerLives(tmp_path)  # a server that has started since: the worker was stopped in order
    assert lives(later) == {"stateline_workers": 0, "stateline_worker_starts_total": 1}
    killed = Registration(tmp_path, "worker-0")
    killed.update(tmp_path / "no-socket", {}, uuid4())
    killed.lock.close()  # as the system does
    assert lives(later) == {"stateline_workers": 0, "stateline_worker_up": 0, "stateline_worker_starts_total": 2}


def test_an_empty_lock_and_a_damaged_one_count_from_here_on(tmp_path: Path) -> None:
    for content in (b"", b"none\n"):
        path = lock_path(tmp_path, "worker-0")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        assert "stateline_worker_starts_total" not in lives(WorkerLives(tmp_path))
        Registration(tmp_path, "worker-0").remove()
        assert starts(tmp_path, "worker-0") == 1
