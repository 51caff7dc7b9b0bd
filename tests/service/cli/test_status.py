"""`stateline status`: how far an application is behind, and whether it has caught up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from stateline import App, serdes
from stateline.cli.state.status import status, wait_until_caught_up
from stateline.config.settings import Config
from stateline.log import Log
from stateline.log.interface import NewTopic
from stateline.worker.loop.worker import Worker
from stateline_store import DoesNotExistError
from support.apps.counting_app import counting
from support.processes.running_worker import create, eventually, produce, running
from support.run.length import on_one_log
from support.run.patience import HANGING_S


@on_one_log("embedded", "either log's admin tells ends and offsets, and test_log_contract.py asks both")
def test_an_application_has_caught_up_when_a_worker_has_committed_what_is_there(
    log: Log, application_id: str, config: Config
) -> None:
    app = counting(application_id)
    said: list[str] = []
    create(log, {f"{application_id}-in": 2, f"{application_id}-alone": 1})
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic(f"{application_id}-values-repartition", 2)])
    with closing(log.producer(f"{application_id}-p")) as producer:
        producer.init_transactions()
        for n in range(30):  # each transaction ends with an offset that is no record
            producer.begin_transaction()
            producer.produce(f"{application_id}-in", b"k%d" % n, b"v", timestamp_ms=n)
            producer.commit_transaction()
    assert status(app, config).lag(f"{application_id}-in") >= 30
    assert not wait_until_caught_up(app, config, 0.0, said.append)
    assert "no worker is in the group" in said[-1]
    with running(app, config, log):
        assert wait_until_caught_up(app, config, HANGING_S, said.append), said
        produce(log, f"{application_id}-in", [(b"k", b"v", 1)])
        assert wait_until_caught_up(app, config, HANGING_S, said.append), said
        found = status(app, config)
        assert found.lag(f"{application_id}-in") == 0
        assert {row["name"] for row in found.rows()} >= {f"{application_id}-in", f"{application_id}-alone"}


@on_one_log("embedded", "either log's admin tells which topics there are")
def test_a_topic_that_a_worker_will_make_is_waited_for(log: Log, application_id: str, config: Config) -> None:
    app = counting(application_id)
    said: list[str] = []
    create(log, {f"{application_id}-in": 2, f"{application_id}-alone": 1})
    produce(log, f"{application_id}-in", [(b"k", b"v", 1)])
    missing = f"{application_id}-values-repartition"
    assert {row["name"]: row["lag"] for row in status(app, config).rows()}[missing] is None
    assert not wait_until_caught_up(app, config, 0.0, said.append)
    assert f"topic {missing}, which no worker has made yet" in said[-1]
    with running(app, config, log):
        assert wait_until_caught_up(app, config, HANGING_S, said.append), said
    assert {row["name"]: row["lag"] for row in status(app, config).rows()}[missing] == 0


@pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)
def test_what_is_read_and_waits_in_a_repartition_topic_is_not_caught_up(
    log: Log, application_id: str, config: Config
) -> None:
    app = App(application_id)
    rows = app.stream("in", key=serdes.string, value=serdes.string)
    rows.group_by(lambda key, value: value, name="by-value").count("counts")
    create(log, {"in": 1})
    produce(log, "in", [(b"k%d" % n, b"v", n) for n in range(30)])
    waiting, said = f"{application_id}-by-value-repartition", list[str]()
    worker = Worker(app, config, log, instance="worker-0")
    worker.begin()
    worker.open_tasks()

    def until(topic: str) -> Callable[[str], None]:
        """Whoever is told that it is behind lets the worker go on, until it has read this topic."""

        def told(text: str) -> None:
            said.append(text)
            while status(app, config).lag(topic):
                worker.step()
                worker.commit()

        return told

    assert not wait_until_caught_up(app, config, 3.0, until("in"))
    assert said[-1].endswith(f"{waiting} by 30."), said
    assert wait_until_caught_up(app, config, HANGING_S, until(waiting)), said
    assert status(app, config).lag(waiting) == 0
    worker.leave()


@pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)
def test_what_steps_have_dropped_is_shown_by_reason_while_their_worker_runs(
    log: Log, application_id: str, config: Config
) -> None:
    app = App(application_id)
    app.stream("in", key=serdes.string, value=serdes.string).group_by_key().count("counts")
    create(log, {"in": 1})
    produce(log, "in", [(None, b"v", 1), (b"k", b"v", 2), (None, b"v", 3)])
    with running(app, config, log):
        eventually(lambda: bool(status(app, config).dropped_rows()), "the worker has told what was dropped")
        (row,) = status(app, config).dropped_rows()
    assert row == {"what": "step", "name": "count counts", "reason": "no_key", "dropped": 2, "records": 3}
    assert status(app, config).dropped_rows() == []


def test_there_is_no_status_of_topics_that_are_not_there(log: Log, application_id: str, config: Config) -> None:
    with pytest.raises(DoesNotExistError, match="Topics are missing"):
        status(counting(application_id), config)
