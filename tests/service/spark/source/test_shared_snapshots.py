"""Snapshots that DataFrames of one driver share for a while, so that a session may load as often as it likes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession

from service.spark.source.scenes import read, snapshots
from service.spark.source.test_source_options import options
from stateline.spark.reading import lease
from stateline.spark.reading.lease import shared_pin
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import http_server

ALWAYS = 999_999_999
"""Seconds of one interval, which lasts until 2033."""
LONG = 2_000_000
"""Seconds of the longest lease that a server gives, about."""


@pytest.fixture(scope="module")
def few(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.Client]:
    """A server with room for two snapshots of one caller."""
    with http_server(state_dir, "server.snapshots.max=4", f"server.snapshot.ttl.max.ms={LONG}000") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


@pytest.fixture(autouse=True)
def released(few: httpx.Client) -> Iterator[None]:
    yield
    for each in snapshots(few):
        few.delete(f"/v1/snapshots/{each}")


def test_loads_of_a_session_share_a_recent_snapshot(
    session: SparkSession, few: httpx.Client, worker: OwningWorker
) -> None:
    worker.put_all({f"shared-{n}": n for n in range(5)})
    worker.commit()
    url = str(few.base_url)
    frames = [read(session, url, "aircraft", prefix="shared-", max_age_s=ALWAYS, ttl_s=61) for _ in range(4)]
    assert [frame.count() for frame in frames] == [5] * 4
    assert len(snapshots(few)) == 1
    worker.put_all({f"shared-{n}": n for n in range(5, 8)})
    worker.commit()
    assert read(session, url, "aircraft", prefix="shared-", max_age_s=ALWAYS, ttl_s=61).count() == 5
    assert read(session, url, "aircraft", prefix="shared-").count() == 8, "max_age_s=0"
    assert len(snapshots(few)) == 2


def test_a_shared_lease_is_as_long_for_the_last_as_for_the_first(session: SparkSession, few: httpx.Client) -> None:
    given = {"lease": "ttl", "ttl_s": LONG, "max_age_s": LONG}
    first = read(session, str(few.base_url), "aircraft", **given)
    assert first.count() >= 0
    ((snapshot, ends),) = snapshots(few).items()
    assert few.patch(f"/v1/snapshots/{snapshot}", json={"ttl_s": 30}).status_code == 200
    assert snapshots(few)[snapshot] < ends
    assert read(session, str(few.base_url), "aircraft", **given).count() == first.count()
    assert snapshots(few).keys() == {snapshot}
    assert snapshots(few)[snapshot] >= ends


def test_a_pin_is_of_one_driver_one_interval_and_equal_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = os.getpid()
    monkeypatch.setattr(lease, "driver_above", lambda pid: driver)
    pin = shared_pin(options(), 1_000_000.0)
    assert pin is not None
    assert pin == shared_pin(options(), 1_000_009.9)
    others = [
        shared_pin(options(), 1_000_010.0),
        shared_pin(options(max_age_s="20"), 1_000_000.0),
        shared_pin(options(ttl_s="301"), 1_000_000.0),
        shared_pin(options(lease="ttl"), 1_000_000.0),
    ]
    driver = os.getppid()
    others.append(shared_pin(options(), 1_000_000.0))
    assert len({pin, *others}) == 6
    brief = options(lease="ttl", ttl_s="5")
    assert shared_pin(brief, 1_000_000.0) != shared_pin(brief, 1_000_005.0), "its snapshot may be gone"
    assert shared_pin(options(max_age_s="0"), 1_000_000.0) is None


def test_without_a_driver_nothing_is_shared() -> None:
    assert shared_pin(options(), 1_000_000.0) is None
