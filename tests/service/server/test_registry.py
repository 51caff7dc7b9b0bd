"""The registry of nodes, on a real broker: who is told of whom, when the topic goes, and when two have one name."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from stateline.config.loading import load_config
from stateline.deployment.nodes_topic import NodeEntry, nodes_partition, say_node
from stateline.log.kafka import KafkaLog
from stateline.server.nodes import joining
from stateline.server.nodes import registry as registry_module
from stateline.server.nodes.registry import Registry
from stateline_store import StateDirectory
from stateline_store.files import process_metadata
from stateline_store.files.durable_files import refused
from support.kafka.shared_broker import SharedBroker
from support.oracles.whole_epochs import whole_app
from support.processes.served_here import served_here
from support.run.length import long_only
from support.run.patience import HANGING_S


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + HANGING_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


class Application:
    """One of a broker, and what each of its nodes was told last."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.name = f"app-{uuid4().hex[:8]}"
        self.servers = bootstrap_servers
        self.running = ExitStack()

    def node(self, name: str, directory: str) -> Node:
        return Node(self, name, directory)


class Node:
    def __init__(self, application: Application, name: str, directory: str) -> None:
        self.told: dict[str, str] = {}
        self.heard: set[str] = set()  # directories of all nodes
        self.left: list[str] = []  # what was said to have left
        self.order: list[str] = []  # what was told, by name
        self.directories: dict[str, str] = {}  # of all nodes, those that have left included
        self.faults: list[str] = []
        config = load_config(application.name, environment={}, overrides=[f"bootstrap.servers={application.servers}"])
        entry = NodeEntry("", f"127.0.0.1:1{len(directory)}", directory, "1.0", "t")
        self.registry = Registry(config, application.name, name, entry, self._told, self.faults.append)
        self.registry.start()
        self.stop = self.registry.stop
        application.running.callback(self.stop)

    def _told(self, node: str, entry: NodeEntry | None, directory: str) -> None:
        self.directories[node] = directory
        self.order.append(node)
        if entry is None:
            self.told.pop(node, None)
            self.left.append(node)
        else:
            self.told[node] = entry.directory
            self.heard.add(entry.directory)


@pytest.fixture
def application(kafka_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    monkeypatch.setattr(registry_module, "_LOOK_INTERVAL_S", 0.2)
    monkeypatch.setattr(registry_module, "_RETRY_S", 0.1)
    monkeypatch.setattr(registry_module, "_WAIT_S", 0.05)
    monkeypatch.setattr(joining, "_LOOK_INTERVAL_S", 0.05)
    made = Application(kafka_broker.bootstrap_servers)
    with made.running:
        yield made


def test_a_registry_that_is_deleted_is_made_anew_and_everybody_says_so_again(application: Application) -> None:
    one, two = application.node("one", "d1"), application.node("two", "d2")
    both = {"one": "d1", "two": "d2"}
    until(lambda: one.told == two.told == both)
    for node in (one, two):
        node.told.clear()
    with closing(KafkaLog(application.servers).admin()) as admin:
        admin.delete_topics([nodes_partition(application.name).topic])
    until(lambda: one.told == two.told == both)
    late = application.node("late", "d3")
    until(lambda: late.told == one.told == {**both, "late": "d3"})
    until(lambda: one.faults[-1:] in ([], [""]))


def test_of_two_directories_of_one_name_the_one_that_came_later_sees_the_other(application: Application) -> None:
    first = application.node("one", "d1")
    until(lambda: first.told == {"one": "d1"})
    second = application.node("one", "d2")
    until(lambda: "d2" in first.heard and first.told == second.told == {"one": "d1"})
    first.stop()
    until(lambda: second.told == {"one": "d2"})


def test_a_node_goes_on_when_one_of_its_name_leaves(application: Application) -> None:
    first, watcher = application.node("one", "d1"), application.node("two", "d9")
    until(lambda: watcher.told.get("one") == "d1")
    second = application.node("one", "d2")
    until(lambda: "d2" in first.heard and watcher.told.get("one") == "d1")
    second.stop()
    late = application.node("three", "d3")
    until(lambda: late.told == first.told == {"one": "d1", "two": "d9", "three": "d3"})


def test_a_reading_of_the_registry_tells_the_newest_entries_alone(application: Application) -> None:
    application.node("one", "d0").stop()
    application.node("gone", "d7").stop()
    one = application.node("one", "d1")
    until(lambda: one.told == {"one": "d1"})
    reader = application.node("two", "d9")
    until(lambda: reader.told == {"one": "d1", "two": "d9"})
    assert reader.heard == {"d1", "d9"}
    assert reader.left == ["gone"]
    assert reader.directories["gone"] == "d7"


@long_only("few applications have had so many nodes")
def test_a_node_is_among_the_newest_that_are_told_of_after_any_number_of_other_names(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "MOST_NODES", 8)
    monkeypatch.setattr(registry_module, "_CROWD", 6)
    monkeypatch.setattr(registry_module, "_CROWD_INTERVAL_S", 0.0)
    one = application.node("one", "d1")
    until(lambda: one.told == {"one": "d1"})
    with closing(KafkaLog(application.servers)) as log:
        for number in range(30):
            say_node(log, application.name, f"name-{number}", NodeEntry("", "", "d", "1.0", "t"))
    until(lambda: "name-29" in one.told and one.order[-7:].count("one") == 1)
    late = application.node("late", "d2")
    until(lambda: "late" in late.told)
    assert late.told["one"] == "d1"
    assert len(late.told) <= 8
    assert max(len(kept) for kept in (one.registry._directories, one.registry._unread, one.registry._since)) <= 8


def test_of_two_names_of_one_directory_the_one_that_came_later_reads_the_other_last(application: Application) -> None:
    application.node("former", "d1").stop(leaves=False)  # as if it was killed, before the node got another name
    first = application.node("one", "d1")
    until(lambda: first.order[-1:] == ["one"])
    second = application.node("two", "d1")
    until(lambda: first.order[-2:] == second.order[-2:] == ["two", "one"])


def test_a_process_that_hands_over_to_another_one_of_its_node_does_not_say_that_the_node_leaves(
    application: Application,
) -> None:
    first, watcher = application.node("one", "d1"), application.node("two", "d9")
    until(lambda: watcher.told.get("one") == "d1")
    successor = application.node("one", "d1")
    until(lambda: successor.told == watcher.told)
    first.registry.stop(leaves=False)
    application.node("late", "d3")
    until(lambda: "late" in watcher.told)  # all that was said before is read
    assert watcher.told == {"one": "d1", "two": "d9", "late": "d3"}
    assert watcher.left == []


def test_a_server_that_cannot_write_its_directory_is_a_node_when_a_worker_has(
    application: Application, tmp_path: Path
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise refused(path, "written", OSError(errno.EROFS, "Read-only file system"))

    app, watcher = whole_app(application.name), application.node("watcher", "d9")
    settings = f"bootstrap.servers={application.servers}", "node.name=late"
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(process_metadata, "replace_file", refuse)
            here = stack.enter_context(served_here(tmp_path, *settings, app=app, until_ready=False))
            until(lambda: watcher.told == {"watcher": "d9"})
            fault = here.client.get("/v1/nodes").json()["nodes"]["late"]["fault"]
            assert fault.startswith("The state directory has no id yet")
        directory = str(StateDirectory(tmp_path, application.name).process_id())
        until(lambda: watcher.told == {"watcher": "d9", "late": directory})
        assert "has no id" not in str(here.client.get("/v1/nodes").json()["nodes"]["late"]["fault"])
