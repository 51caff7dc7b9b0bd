"""History that is read through repartition topics is counted as in the order in which it was written."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import orjson
import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, TumblingWindows, serdes
from stateline.log import Log
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.run.length import on_one_log

PARTITIONS, CUSTOMERS, CITIES = 3, 300, 40
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
BEGAN_MS = 1_700_000_000_000
Order = tuple[str, dict[str, str], int]


def orders(count: int) -> list[Order]:
    """One each two minutes, up to a minute late, and one in 36 later than 70 minutes."""
    chance, found = random.Random(1), list[Order]()
    for n in range(count):
        late_ms = chance.randrange(MINUTE_MS)
        if chance.random() < 0.028:
            late_ms += 70 * MINUTE_MS + chance.randrange(4 * HOUR_MS)
        found.append((f"o{n}", {"customer": f"c{chance.randrange(CUSTOMERS)}"}, BEGAN_MS + n * 2 * MINUTE_MS - late_ms))
    return found


def city_of(customer: str) -> str:
    return f"city{int(customer[1:]) % CITIES}"


def counted_in_file_order(rows: list[Order]) -> int:
    """By windows of an hour with ten minutes of grace, each partition with a stream time of its own."""
    stream_time, found = [0] * PARTITIONS, 0
    for _, order, at in rows:
        partition = confluent_kafka.murmur2(city_of(order["customer"]).encode(), PARTITIONS)
        stream_time[partition] = max(stream_time[partition], at)
        found += at // HOUR_MS * HOUR_MS + 70 * MINUTE_MS > stream_time[partition]
    return found


def declared(name: str) -> App:
    app = App(name)
    customers = app.table(f"{name}-customers", key=serdes.string, value=serdes.json)
    by_customer = app.stream(f"{name}-orders", key=serdes.string, value=serdes.json).select_key(
        lambda _, order: order["customer"], key=serdes.string
    )
    by_city = (
        by_customer.repartition("by-customer")
        .join(customers, lambda order, customer: {**order, **customer})
        .group_by(lambda _, order: order["city"], key=serdes.string, name="by-city")
    )
    windows = TumblingWindows(timedelta(hours=1), grace=timedelta(minutes=10))
    by_city.windowed_by(windows).count("per_hour", retention=timedelta(days=3650))
    return app


@on_one_log("embedded", "test_record_order.py joins in order of time on a broker")
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_replay_through_repartition_and_join_counts_what_file_order_counts(
    log: Log, tmp_path: Path, guarantee: str
) -> None:
    name, rows = f"history-{uuid4().hex[:8]}", orders(6_000)
    app = declared(name)
    config = configured(app, tmp_path / "state", processing__guarantee=guarantee)
    create(log, {f"{name}-orders": PARTITIONS, f"{name}-customers": PARTITIONS})
    customers = [f"c{n}" for n in range(CUSTOMERS)]
    produce(log, f"{name}-customers", [(c.encode(), orjson.dumps({"city": city_of(c)}), 1) for c in customers])
    produce(log, f"{name}-orders", [(key.encode(), orjson.dumps(order), at) for key, order, at in rows])
    stores = Stores(app, config, tmp_path / "scratch")

    def counted() -> int:
        return sum(int.from_bytes(count, "big") for count in stores.rows("per_hour", PARTITIONS).values())

    with running(app, config, log) as worker:
        eventually(lambda: counted() + worker.failures.dropped == len(rows), "each order is counted or dropped")
        found = counted()
    stores.close()
    assert found >= 0.99 * counted_in_file_order(rows)


def test_what_several_tasks_write_to_a_topic_is_in_order_of_time_whatever_is_committed_between(tmp_path: Path) -> None:
    app = App("app")
    app.stream("rows", key=serdes.string, value=serdes.string).to("out")
    scene = Scene(app, tmp_path, partitions={"rows": 3, "out": 1}, settings={"commit.interval.ms": 1})
    scene.send("rows", [(f"k{n}", f"{n}", MINUTE_MS * n) for n in range(5_000)])
    scene.work_off()
    assert [record.timestamp_ms for record in scene.written("out")] == [MINUTE_MS * n for n in range(5_000)]
