"""Servers and workers that start, stop and die in any order."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline.config.loading import load_config
from stateline.deployment.workers.failed_starts import FailedStarts
from stateline.log import open_log
from stateline.server import Listening, lifetime, main, serve
from stateline_store import ConfigurationError
from support.processes.forked import Forked
from support.processes.node_secret import write_secret
from support.processes.open_files import open_files
from support.processes.ports import free_port
from support.processes.query_server import TOPIC, OwningWorker, make_app, server_process, wait_until
from support.processes.serve_process import served, until_ready
from support.processes.served_here import served_here
from support.run.length import long_only
from support.run.patience import HANGING_S

COMMITTED = "default.state.isolation.level=read_committed"
UNCOMMITTED = {"isolation_level": "read_uncommitted"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[httpx.Client]:
    """A server whose worker has not started yet."""
    with server_process(tmp_path, COMMITTED) as client:
        yield client


def ready(client: httpx.Client) -> bool:
    return client.get("/readyz").status_code == 200


def test_before_any_worker_it_is_alive_but_not_ready_and_follows_when_one_starts(
    server: httpx.Client, tmp_path: Path
) -> None:
    response = server.get("/readyz")
    assert (response.status_code, response.json()["reason"]) == (503, "NOT_READY")
    assert response.json()["reasons"]
    query = server.get("/v1/stores/aircraft/keys/a")
    assert (query.status_code, query.json()["reason"]) == (503, "NOT_READY")
    assert server.get("/v1/stores").json()["stores"][0]["not_ready"]
    worker = OwningWorker(tmp_path)
    wait_until(lambda: ready(server))
    worker.put("a", 1)
    worker.commit()
    assert server.get("/v1/stores/aircraft/keys/a").json()["value"] == 1
    worker.close()


def test_a_dead_worker_leaves_committed_reads_and_is_named_for_the_rest(server: httpx.Client, tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    worker.put("a", 1)
    worker.commit()
    wait_until(lambda: ready(server))
    worker.close(killed=True)
    for path in ("/v1/stores/aircraft/keys/a?isolation_level=read_uncommitted", "/v1/stores/cache/keys/a"):
        response = server.get(path)
        assert (response.status_code, response.json()["reason"]) == (421, "NOT_PRESENT")
        assert response.json()["owner"] == str(server.base_url).rstrip("/")
    wait_until(lambda: not ready(server))
    answer = server.get("/v1/stores/aircraft/keys/a").json()
    assert answer["value"] == 1
    assert {p["served_by"] for p in answer["partitions"].values()} == {"standby"}
    refused = server.get("/v1/stores/aircraft/keys/a?require_active=true")
    assert (refused.status_code, refused.json()["reason"]) == (503, "NOT_ACTIVE")
    both = server.get("/v1/stores/aircraft/position?allow_partial=true")
    assert both.json()["committed"]
    assert both.json()["uncommitted"] == {}


def test_it_is_ready_only_while_queries_at_the_default_level_are_answered(tmp_path: Path) -> None:
    with server_process(tmp_path, "default.state.isolation.level=read_uncommitted") as client:
        worker = OwningWorker(tmp_path)
        wait_until(lambda: ready(client))
        assert client.get("/v1/stores/aircraft/range").status_code == 200
        worker.close(killed=True)
        wait_until(lambda: not ready(client))
        reasons = client.get("/readyz").json()["reasons"]
        assert any("'aircraft'" in reason and "no worker" in reason for reason in reasons)
        FailedStarts(tmp_path / "flights-app", "worker-9").joined()
        told = "Worker 'worker-9' of this node does not run its tasks: Its last start has failed. Its log says why."
        wait_until(lambda: told in client.get("/readyz").json()["reasons"])
        wait_until(lambda: "It has ended within the last" in client.get("/readyz").text)


@pytest.fixture
def worker_process(tmp_path: Path) -> Iterator[Forked]:
    """A real worker, `stateline worker`, over an embedded log."""
    given = ["support.apps.flights_app:app", f"--set=state.dir={tmp_path}"]
    place: dict[str, Any] = {"cwd": tmp_path, "env": os.environ, "output": 2}
    assert Forked(["topics", *given, "--create", "--partitions", "3"], **place).wait(HANGING_S) == 0
    process = Forked(["worker", *given], **place)
    yield process
    process.send_signal(signal.SIGCONT)
    process.terminate()
    assert process.wait(HANGING_S) == 0


@long_only("the next test has a worker that hangs, and the first one a server before any worker")
def test_a_server_is_not_ready_before_a_worker_has_answered_once(tmp_path: Path, worker_process: Forked) -> None:
    with server_process(tmp_path, "default.state.isolation.level=read_uncommitted") as client:
        wait_until(lambda: ready(client))
    worker_process.send_signal(signal.SIGSTOP)
    with server_process(tmp_path, "default.state.isolation.level=read_uncommitted") as client:

        def says_so() -> bool:
            answer = client.get("/readyz")
            assert answer.status_code == 503
            return any("no worker that answers has it" in reason for reason in answer.json()["reasons"])

        wait_until(says_so)
        worker_process.send_signal(signal.SIGCONT)
        wait_until(lambda: ready(client))


def test_a_worker_that_hangs_is_told_until_it_goes_on(tmp_path: Path, worker_process: Forked) -> None:
    with server_process(tmp_path, "default.state.isolation.level=read_uncommitted") as client:
        wait_until(lambda: ready(client))
        assert [i["reachable"] for i in client.get("/v1/instances").json()["instances"]] == [True]
        worker_process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not ready(client))
        assert any("no worker that answers has it" in reason for reason in client.get("/readyz").json()["reasons"])
        (instance,) = client.get("/v1/instances").json()["instances"]
        assert (instance["alive"], instance["reachable"], len(instance["tasks"])) == (True, False, 3)
        worker_process.send_signal(signal.SIGCONT)
        wait_until(lambda: ready(client))
        assert [i["reachable"] for i in client.get("/v1/instances").json()["instances"]] == [True]


def test_the_tasks_of_a_killed_worker_are_its_successors_alone(server: httpx.Client, tmp_path: Path) -> None:
    killed = OwningWorker(tmp_path, "killed")
    wait_until(lambda: ready(server))
    killed.close(killed=True)
    wait_until(lambda: not ready(server))
    assert described(server) == {"killed": (False, False, {})}
    assert server.get("/v1/stores/cache").json()["partitions"]["0"]["state"] is None, "a store in memory died with it"
    for store in killed.stores.values():
        store.close()
    heir = OwningWorker(tmp_path, "heir")
    wait_until(lambda: ready(server))
    tasks = dict.fromkeys(("0_0", "0_1", "0_2"), "running")
    assert described(server) == {"heir": (True, True, tasks), "killed": (False, False, {})}
    heir.close()
    assert set(described(server)) == {"killed"}, "one that has left is not there any more"


def described(client: httpx.Client) -> dict[str, tuple[bool, bool, dict[str, str]]]:
    instances = client.get("/v1/instances").json()["instances"]
    return {i["instance"]: (i["alive"], i["reachable"], i["tasks"]) for i in instances}


def test_without_a_worker_the_way_to_committed_state_is_shown(server: httpx.Client, tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    wait_until(lambda: ready(server))
    worker.close(killed=True)
    persistent = server.get("/v1/stores/aircraft/keys/a", params=UNCOMMITTED)
    assert "isolation_level=read_committed" in persistent.json()["detail"]
    assert "isolation_level" not in server.get("/v1/stores/cache/keys/a").json()["detail"]


def test_a_wait_lasts_over_a_workers_restart(server: httpx.Client, tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    wait_until(lambda: ready(server))
    worker.close(killed=True)
    assert server.get("/v1/stores/aircraft/range", params=UNCOMMITTED).status_code == 421
    answers: list[httpx.Response] = []
    waits = {**UNCOMMITTED, "wait_ms": "60000"}
    asking = threading.Thread(target=lambda: answers.append(server.get("/v1/stores/aircraft/keys/a", params=waits)))
    asking.start()
    for store in worker.stores.values():
        store.close()
    assert server.get("/healthz").status_code == 200
    assert not answers
    worker = OwningWorker(tmp_path)
    asking.join(HANGING_S)
    assert answers[0].status_code == 404
    assert answers[0].json()["found"] is False
    worker.close()


@long_only("the test before waits over a restart")
def test_a_worker_that_comes_back_is_found_again(server: httpx.Client, tmp_path: Path) -> None:
    for value in range(3):
        worker = OwningWorker(tmp_path)
        wait_until(lambda: ready(server))
        worker.put("a", value)
        staged = server.get("/v1/stores/aircraft/keys/a", params=UNCOMMITTED)
        assert staged.json()["value"] == value
        worker.commit()
        assert server.get("/v1/stores/aircraft/keys/a").json()["value"] == value
        worker.close()


def test_a_store_that_was_deleted_and_rebuilt_is_read_anew(server: httpx.Client, tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    worker.put("old", 1)
    worker.commit()
    wait_until(lambda: ready(server))
    assert server.get("/v1/stores/aircraft/keys/old").status_code == 200
    worker.close()
    for task in (tmp_path / "flights-app").glob("0_*"):
        shutil.rmtree(task / "rocksdb")
    worker = OwningWorker(tmp_path)
    worker.put("new", 2)
    worker.commit()
    wait_until(lambda: ready(server))
    assert server.get("/v1/stores/aircraft/keys/old").status_code == 404
    assert server.get("/v1/stores/aircraft/keys/new").json()["value"] == 2
    worker.close()


@pytest.mark.parametrize(
    "level",
    [
        "read_committed",
        pytest.param("read_uncommitted", marks=long_only("who writes answers that itself, in between")),
    ],
)
def test_data_and_position_agree_while_the_worker_writes(server: httpx.Client, tmp_path: Path, level: str) -> None:
    """The value is the offset of its own record, in each of two keys of one partition."""
    worker = OwningWorker(tmp_path)
    wait_until(lambda: ready(server))
    stop = threading.Event()

    def write() -> None:
        for i in itertools.count():
            worker.put("x", i, partition=1)
            if i % 7 == 3:
                worker.commit()
            if stop.is_set() and i % 7 == 3:
                return

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    for _ in range(300):
        params = {"isolation_level": level, "partition": "1"}
        answer = server.get("/v1/stores/aircraft/range", params=params).json()
        values = [entry["value"] for entry in answer["entries"]]
        assert values == list(answer["position"].get(TOPIC, {}).values())
        seen += values
    stop.set()
    writer.join()
    assert seen == sorted(seen), "a later read never goes back"
    assert len(set(seen)) > 5
    worker.close()


def test_a_port_that_is_taken_is_named_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = load_config("flights-app", overrides=[f"state.dir={tmp_path}", f"server.port={port}"])
        with pytest.raises(ConfigurationError, match=f"server.port = {port} .*is in use") as raised:
            serve(make_app(), config)
    assert "\n" not in str(raised.value)


def test_so_is_one_for_other_nodes(tmp_path: Path) -> None:
    write_secret(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = [f"state.dir={tmp_path}", f"server.port={free_port()}", f"node.peer.listen={place}"]
        settings += ["bootstrap.servers=127.0.0.1:1", f"node.peer.secret.file={tmp_path / 'secret'}"]
        config = load_config("flights-app", overrides=settings)
        with pytest.raises(ConfigurationError, match=f"node.peer.listen = {place} cannot be listened on"):
            serve(make_app(), config)


def test_a_host_that_is_not_here_is_named(tmp_path: Path) -> None:
    settings = [f"state.dir={tmp_path}", "server.host=192.0.2.1", "server.insecure=true"]
    config = load_config("flights-app", overrides=settings)
    with pytest.raises(ConfigurationError, match=r"server\.host = '192\.0\.2\.1' is no address of this machine"):
        serve(make_app(), config)


def listening() -> set[str]:
    """The TCP sockets at which this process listens."""
    own = open_files()
    lines = [
        line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{file}").read_text().splitlines()
    ]
    return {line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own}


def test_on_the_embedded_log_other_nodes_cost_nothing(tmp_path: Path) -> None:
    before, threads = listening(), {thread.name for thread in threading.enumerate()}
    with served_here(tmp_path, until_ready=False) as here:
        assert here.serving.nodes is None
        told = here.client.get("/v1/nodes").json()
        assert {name: each["fault"] for name, each in told["nodes"].items()} == {told["node"]: None}
        assert len(listening() - before) == 1, "it listens for HTTP alone"
        assert "nodes" not in {thread.name for thread in threading.enumerate()} - threads
        config = here.serving.config
        with closing(open_log(config.bootstrap_servers, config.state_dir)) as log, closing(log.admin()) as admin:
            assert not [topic for topic in admin.topics() if topic.endswith("-nodes")]


def test_a_commit_is_seen_of_all_stores_at_once_but_by_a_server_that_opens_or_catches_up_while_they_are_written(
    tmp_path: Path,
) -> None:
    worker = OwningWorker(tmp_path)
    partition = worker.put("a", 1).partition
    early = worker.stores["aircraft", partition]
    worker.commit()

    def seen(server: httpx.Client) -> list[int]:
        """The last offset of the partition in a store that is written early in a commit, and in one written late."""
        found = (server.get(f"/v1/stores/{name}/position").json()["committed"] for name in ("aircraft", "places"))
        return [partitions[str(partition)][TOPIC][str(partition)] for partitions in found]

    def write_some() -> None:
        """A commit comes as far as between two stores of a task."""
        worker.put("a", 2)
        worker.run(lambda: early.commit({}, announce=False))

    def write_the_rest() -> None:
        worker.commit()
        worker.run(early.announce_commit)

    with served(tmp_path, "server.follow.ms=0") as one, httpx.Client(base_url=one.url, timeout=HANGING_S) as first:
        until_ready(one)
        assert seen(first) == [0, 0]
        write_some()
        assert seen(first) == [0, 0], "what is not announced is not seen"
        with server_process(tmp_path, COMMITTED) as later:
            wait_until(lambda: ready(later))
            assert seen(later) == [1, 0], "it opens what is there"
            write_the_rest()
            assert seen(first) == seen(later) == [1, 1]
            worker.put("a", 3)
            os.kill(one.process.pid, signal.SIGSTOP)  # or it may follow the first of these commits alone
            worker.commit()
            write_some()
            os.kill(one.process.pid, signal.SIGCONT)
            assert seen(first) == [3, 2], "it catches up with what is there"
            write_the_rest()
            assert seen(first) == seen(later) == [3, 3]
    worker.close()


def test_a_server_at_a_socket_that_others_reach_is_refused_without_tokens_whoever_has_bound_it(tmp_path: Path) -> None:
    config = load_config("flights-app", overrides=[f"state.dir={tmp_path}"])
    bound = socket.create_server(("0.0.0.0", 0))
    with pytest.raises(ConfigurationError, match="is reached by other machines, and there are no tokens"):
        serve(make_app(), config, inherited=Listening(bound.detach(), None))


def test_a_server_that_takes_over_begins_when_every_store_can_be_queried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifetime, "_TAKES_OVER_WITHIN_S", HANGING_S)
    config = load_config("flights-app", overrides=[f"state.dir={tmp_path}", COMMITTED])
    api = main.create_app(make_app(), config, takes_over=True)

    async def reasons_as_it_begins() -> list[str]:
        async with api.router.lifespan_context(api):
            return list(await api.state.serving.readiness.reasons_not_ready())

    async def begin() -> list[str]:
        beginning = asyncio.create_task(reasons_as_it_begins())
        await asyncio.wait({beginning}, timeout=0.5)  # nothing is there, and it would begin by now if it did not wait
        worker = await asyncio.to_thread(OwningWorker, tmp_path)
        try:
            return await beginning
        finally:
            await asyncio.to_thread(worker.close)

    assert asyncio.run(begin()) == []
