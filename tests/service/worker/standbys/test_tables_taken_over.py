"""A table that rows look up is no further on a standby than these rows."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from stateline import App, serdes
from stateline.deployment.configured_log import configured_log
from stateline.worker.loop.worker import Worker
from stateline.worker.standbys import standby_assignment
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, eventually, produce, read_all, running


def test_rows_that_a_standby_takes_over_meet_the_table_of_their_time(
    kafka_broker: SharedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_assignment, "_LOOK_INTERVAL_S", 0.2)
    monkeypatch.setattr(standby_assignment, "_JOINING_INTERVAL_S", 0.1)
    name = f"ahead-{uuid4().hex[:8]}"
    rates, trades, rated = (f"{name}-{topic}" for topic in ("rates", "trades", "rated"))
    app = App(name)
    table = app.table(rates, key=serdes.string, value=serdes.string)
    stream = app.stream(trades, key=serdes.string, value=serdes.string)
    stream.join(table, lambda trade, rate: f"{trade}|{rate}").to(rated)

    def started(node: str, stack: ExitStack) -> Worker:
        given = {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.instance.id": node}
        config = configured(app, tmp_path / node, **given, **{"num.standby.replicas": 1, "session.timeout.ms": 3_000})
        log = stack.enter_context(closing(configured_log(config)))
        return stack.enter_context(running(app, config, log, node))

    config = configured(app, tmp_path, **{"bootstrap.servers": kafka_broker.bootstrap_servers})
    with ExitStack() as lasting:
        log = lasting.enter_context(closing(configured_log(config)))
        create(log, dict.fromkeys((rates, trades, rated), 1))
        produce(log, rates, [(b"k", b"old", 1), (b"k", b"new", 10)])
        produce(log, trades, [(b"k", b"first", 2)])
        producer = lasting.enter_context(closing(log.producer(name)))
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(trades, b"k", b"second", timestamp_ms=5)
        producer.flush()  # a worker sees that there is more, and takes no rate of later
        with ExitStack() as first:
            started("one", first)
            eventually(lambda: len(read_all(log, rated, 1)) == 1, "the first trade is rated")
            two = started("two", lasting)
            followed = two.standbys.followed
            eventually(lambda: bool(followed.tasks) and len(followed.caught_up()) == 1, "a standby has caught up")
        eventually(lambda: [str(task.state) for task in two.tasks.all.values()] == ["running"], "it has the task")
        producer.commit_transaction()
        eventually(lambda: len(read_all(log, rated, 1)) == 2, "both are rated")
        assert [record.value for record in read_all(log, rated, 1)] == [b"first|old", b"second|old"]
