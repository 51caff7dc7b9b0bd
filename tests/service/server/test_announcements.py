"""What other nodes say of themselves is looked at before anything is made of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from stateline.deployment.nodes_topic import MOST_NODES, NodeEntry, is_node_name
from stateline.deployment.pipelines.reports import PipelineReport
from stateline.deployment.pipelines.status import PipelineStatus
from stateline.server.nodes import nodes as nodes_module
from stateline.server.nodes.greeting import Hello, NotANodeError
from stateline.server.nodes.map_bounds import MapBounds
from stateline.server.nodes.node_map import HeldTask, NodeMap
from stateline.server.nodes.traffic import Traffic
from stateline.server.state.served_stores import ServedStores
from stateline.server.telemetry.node_metrics import NodeCounts
from stateline_store import InvalidArgumentError
from support.processes.linked_nodes import LinkedNode, run, until, with_secret
from support.processes.query_server import PARTITIONS, OwningWorker, make_app

HELLO: Mapping[str, Any] = {
    "application": "app", "node": "two", "directory": "d", "version": "1.0", "topology": "t",
    "url": "http://two:8000", "wire": [2, 1], "tasks": "k", "purpose": "link", "challenge": "",
}  # fmt: skip
ENTRY: Mapping[str, Any] = {
    "url": "http://two:8000", "peer": "two:8001", "directory": "d", "version": "1.0", "topology": "t",
    "rack": "", "tasks": "k", "wire": [1],
}  # fmt: skip
NO_URLS = [
    "javascript:alert(1)", "ftp://two", "//two", "http://two/path", "http://user:secret@two", "http://two?a=b",
    'http://"><script>', "http://two\n", "HTTP:two", f"http://{'a' * 500}",
]  # fmt: skip


@pytest.mark.parametrize("url", ["http://two:8000", "https://two.example", "http://[::1]:8000", ""])
def test_a_node_may_say_where_clients_reach_it(url: str) -> None:
    assert Hello.of({**HELLO, "url": url}).url == url
    entry = NodeEntry.decode(orjson.dumps({**ENTRY, "url": url}))
    assert entry is not None
    assert entry.url == url


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_url_of_a_server_is_told_to_no_client(url: str) -> None:
    with pytest.raises(NotANodeError, match="no http or https URL"):
        Hello.of({**HELLO, "url": url})
    entry = NodeEntry.decode(orjson.dumps({**ENTRY, "url": url}))
    assert entry is not None
    assert entry.url == ""


@pytest.mark.parametrize("node", ["", "a b", "<b>", "n" * 201, "two\n", "\0worker"])
def test_a_name_that_no_setting_takes_is_no_node_s(node: str) -> None:
    assert not is_node_name(node)
    with pytest.raises(NotANodeError, match="no name of a node"):
        Hello.of({**HELLO, "node": node})


@pytest.mark.parametrize("peer", ["two", "two:port", "two:123456", "http://two:8001", "two :8001", "a:1,b:2"])
def test_what_is_no_address_is_not_dialed(peer: str) -> None:
    entry = NodeEntry.decode(orjson.dumps({**ENTRY, "peer": peer}))
    assert entry is not None
    assert entry.peer == ""


@pytest.mark.parametrize("member", ["version", "topology", "directory"])
def test_an_entry_that_is_too_long_counts_as_none(member: str) -> None:
    assert NodeEntry.decode(orjson.dumps({**ENTRY, member: "x" * 1001})) is None


@pytest.mark.parametrize("number", [2**63, 1.5, -2, "3", 1e300])
def test_numbers_that_no_answer_can_show_make_no_map(number: object) -> None:
    told = NodeMap(1, {"0_0": HeldTask("active", 1)}, {"counts": {"0": 7}}, remaining={"0_0": 1}).to_json()
    assert NodeMap.from_json(told).copies == {"counts": {"0": 7}}
    for change in (
        {"number": number}, {"tasks": {"0_0": ["active", number]}},
        {"copies": {"counts": {"0": number}}}, {"remaining": {"0_0": number}},
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match="Not the map of a node"):
            NodeMap.from_json({**told, **change})


def test_of_a_map_that_is_kept_which_the_application_can_have(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    stores = ServedStores(make_app().topology(), worker.application)
    bounds = MapBounds(stores, ["sums"])
    tasks = {f"0_{number}": HeldTask("standby", 1) for number in range(2_000)} | {"7_0": HeldTask("active", 1)}
    told = NodeMap(
        1,
        tasks,
        {"counts": {str(number): 1 for number in range(2_000)}, "others": {"0": 1}},
        {"sums": {"state": "running"}, "others": {"state": "running"}},
        dict.fromkeys(tasks, 1),
        frozenset(tasks),
        frozenset(tasks),
        {f"worker-{number}": "x" * 2_000 for number in range(100)},
    )
    assert len(bounds.bounded(told).tasks) == 1_000, "as long as no worker here has counted partitions"
    stores.read()
    kept, known = bounds.bounded(told), {f"0_{number}" for number in range(PARTITIONS)}
    assert [set(each) for each in (kept.tasks, kept.remaining, kept.plain, kept.followed)] == [known] * 4
    assert kept.copies == {"counts": {str(number): 1 for number in range(PARTITIONS)}}
    assert kept.pipelines.keys() == {"sums"}
    assert kept.faults == {f"worker-{number}": "x" * 1_000 for number in range(64)}
    too_long = NodeMap(1, pipelines={"sums": {"last_error": "x" * 100_000}})
    assert not bounds.bounded(too_long).pipelines
    worker.close()


def test_a_node_that_says_it_has_tasks_that_there_are_not_is_known_with_the_others_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        config = with_secret(tmp_path)
        one, two = LinkedNode("one", config), LinkedNode("two", config)
        one.nodes.bounded = MapBounds(ServedStores(make_app().topology(), tmp_path), ()).bounded
        two.map = NodeMap(1, {f"0_{number}": HeldTask("active", 1) for number in range(90_000)})
        one.hear_of("two", two.entry)
        await until(lambda: one.nodes.owner("0_0") is not None)
        assert len(one.nodes.others["two"].link.map.tasks) == 1_000  # type: ignore[union-attr]
        for node in (one, two):
            await node.close()

    with caplog.at_level(logging.WARNING):
        run(scene())
    assert caplog.text.count("89000 tasks that are not known here") == 1


def test_a_report_of_a_pipeline_that_is_too_long_counts_as_none() -> None:
    def report(error: str) -> PipelineReport:
        status = PipelineStatus(
            "sums", 4711, "restarting", "", -1, 0, 0, 0, 1, 0, 0, 0, None, {}, None, {}, None, {}, 2, error, 1, None
        )
        return PipelineReport("two", "d", status)

    assert PipelineReport.decode(report("x" * 8_000).encode()) == report("x" * 8_000)
    assert PipelineReport.decode(report("x" * 100_000).encode()) is None


def test_ever_new_names_push_out_each_other_and_no_node_that_is_linked_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = NodeEntry("", "", "d", "1.0", "t")

    async def scene() -> None:
        config = with_secret(tmp_path)
        one, two, three = (LinkedNode(name, config) for name in ("one", "two", "three"))
        one.hear_of("two", two.entry)
        await until(lambda: one.is_linked_with("two"))
        for number in range(3 * MOST_NODES):
            one.hear_of(f"name-{number}", nobody)
        assert one.nodes.others.keys() == {"two", *(f"name-{n}" for n in range(2 * MOST_NODES + 1, 3 * MOST_NODES))}
        assert len(one.nodes._logged) <= MOST_NODES
        one.hear_of("three", three.entry)
        await until(lambda: one.is_linked_with("three"))
        assert one.is_linked_with("two")
        for number in range(3 * MOST_NODES):
            one.nodes.told(f"name-{number}", None)
        assert one.nodes.known == {"two", "three", *(f"name-{n}" for n in range(2 * MOST_NODES, 3 * MOST_NODES))}
        for node in (one, two, three):
            await node.close()

    with caplog.at_level(logging.WARNING):
        run(scene())
    assert 1 <= caplog.text.count(f"More than {MOST_NODES} other nodes have announced themselves in app-nodes") < 10
    assert caplog.text.count("No link with node") < 2 * MOST_NODES


def test_of_nodes_that_are_all_linked_with_none_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "MOST_NODES", 2)

    async def scene() -> None:
        config = with_secret(tmp_path)
        every = [LinkedNode(name, config) for name in ("one", "two", "three", "four")]
        one, two, three, four = every
        for other in (two, three):
            one.hear_of(other.nodes.own.node, other.entry)
        await until(lambda: one.is_linked_with("two") and one.is_linked_with("three"))
        one.hear_of("four", four.entry)
        assert one.nodes.others.keys() == {"two", "three"}
        await two.close()
        await until(lambda: not one.is_linked_with("two"))
        one.hear_of("four", four.entry)
        await until(lambda: one.is_linked_with("four"))
        assert one.nodes.others.keys() == {"three", "four"}
        for node in every:
            await node.close()

    run(scene())


def test_metrics_have_series_of_so_many_names_of_nodes() -> None:
    registry, traffic = CollectorRegistry(), Traffic()
    counts = NodeCounts(registry)
    for number in range(2 * MOST_NODES):
        traffic.failed_dials[f"name-{number}"] += 1
        traffic.forwarded(f"name-{number}", "ok", 0.1)
    counts.take(traffic)
    (dials,) = (each for each in registry.collect() if each.name == "stateline_node_dial_failures")
    found = {sample.labels["node"]: sample.value for sample in dials.samples if sample.name.endswith("_total")}
    assert len(found) == MOST_NODES + 1
    assert found["other"] == MOST_NODES
