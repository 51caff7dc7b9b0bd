"""Several server processes behind one port: what dies is replaced, what waits is not lost, /metrics tells of all."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from stateline.config.loading import load_config
from stateline.processes.child import HAND_OVER
from stateline.server import serve
from stateline_store import ConfigurationError
from support.processes.query_server import OwningWorker, make_app
from support.processes.serve_process import PATIENCE_S, Served, halt, served, status_of, until_all_ready, wait_until
from support.run.length import long_only

SEVERAL = "server.processes=2"
KEY = "/v1/stores/aircraft/keys/a"
ASKED = re.compile(r'^stateline_http_requests_total\{.*route="/v1/stores/\{store\}/keys/\{key\}".*\} (\S+)$', re.M)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Served]:
    """Two processes over a worker's stores."""
    worker = OwningWorker(tmp_path)
    worker.put("a", 1)
    worker.commit()
    with served(tmp_path, SEVERAL) as one:
        until_all_ready(one, 2)
        yield one
    worker.close()


def asked(one: Served) -> float:
    """How many point queries were answered, as /metrics says."""
    answer = one.fresh("/metrics")
    assert answer.status_code == 200, answer.text
    return sum(map(float, ASKED.findall(answer.text)))


def test_every_scrape_tells_of_all_processes(two: Served) -> None:
    answered = 0
    for pid in two.children():
        halt(pid)  # so it is the other one that answers
        for _ in range(3):
            assert two.fresh(KEY).status_code == 200
        answered += 3
        assert asked(two) == answered
        os.kill(pid, signal.SIGCONT)
    assert [asked(two) for _ in range(20)] == [answered] * 20


def test_connections_that_wait_survive_the_death_of_a_process(two: Served) -> None:
    dying, other = two.children()
    halt(dying)
    halt(other)
    port = httpx.URL(two.url).port
    waiting = [socket.create_connection(("127.0.0.1", port or 0), timeout=PATIENCE_S) for _ in range(40)]
    for connection in waiting:
        connection.sendall(f"GET {KEY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    os.kill(dying, signal.SIGKILL)
    wait_until(lambda: dying not in two.children())
    os.kill(other, signal.SIGCONT)
    assert [connection.recv(15) for connection in waiting] == [b"HTTP/1.1 200 OK"] * 40
    for connection in waiting:
        connection.close()


def test_a_process_that_dies_is_replaced_and_what_it_counted_stays_counted(two: Served) -> None:
    for _ in range(20):
        two.fresh(KEY)
    counted = 20
    wait_until(lambda: asked(two) == counted)
    killed = two.children()[0]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(two.children()) == 2 and killed not in two.children())
    (survivor,) = [pid for pid in two.children() if "1" in process_number(pid)]
    halt(survivor)
    assert asked(two) == counted  # the new one says so, too
    two.fresh(KEY)
    assert asked(two) == counted + 1
    os.kill(survivor, signal.SIGCONT)
    assert two.lines("it starts again in")


def process_number(pid: int) -> str:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return arguments[arguments.index("--process") + 1]


@long_only("test_several_processes_drain_together ends all of them, too")
def test_sigterm_to_the_parent_ends_all_of_them(two: Served) -> None:
    children = two.children()
    two.process.terminate()
    assert two.process.wait(timeout=PATIENCE_S) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert status_of(two, "/healthz") is None
    assert not two.lines("Traceback")


@long_only("test_new_code.py has it under traffic, with two processes")
def test_sighup_starts_each_of_them_anew_while_another_one_answers(two: Served) -> None:
    before = set(two.children())
    two.process.send_signal(signal.SIGHUP)
    told = set()
    while not two.lines("Everything runs the new code."):
        told.add(two.fresh(KEY).status_code)
    assert told == {200}
    assert len(two.children()) == 2
    assert before.isdisjoint(two.children())


@long_only("test_run_plan.py has other settings that need one")
def test_sighup_with_another_number_of_processes_is_told_to_need_a_restart(tmp_path: Path) -> None:
    settings = tmp_path / "stateline.toml"
    settings.write_text("server.processes = 2\n")
    with served(tmp_path) as one:
        wait_until(lambda: one.process.poll() is not None or len(one.children()) == 2)
        before = one.children()
        settings.write_text("server.processes = 3\n")
        one.process.send_signal(signal.SIGHUP)
        wait_until(lambda: bool(one.lines("Nothing was replaced: ") or one.lines("Everything runs")))
        assert one.lines("server.processes = 3 instead of 2: that needs a restart.")
        assert one.children() == before


def test_a_client_that_keeps_its_connection_is_told_to_open_another_one_when_its_process_hands_over(
    two: Served,
) -> None:
    with closing(HTTPConnection("127.0.0.1", httpx.URL(two.url).port, timeout=PATIENCE_S)) as kept:
        kept.request("GET", KEY)
        kept.getresponse().read()
        for pid in two.children():
            os.kill(pid, HAND_OVER)
        while True:
            kept.request("GET", KEY)
            answer = kept.getresponse()
            assert (answer.status, json.loads(answer.read())["value"]) == (200, 1)
            if answer.getheader("connection") == "close":
                break
    wait_until(lambda: bool(two.lines("Another process answers from now on")))


def test_no_process_outlives_a_parent_that_was_killed(two: Served) -> None:
    children = two.children()
    two.process.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_a_mistake_in_the_settings_ends_all_with_exit_code_2(tmp_path: Path) -> None:
    with served(tmp_path, SEVERAL, f"server.tokens.file={tmp_path / 'missing'}") as one:
        assert one.process.wait(timeout=PATIENCE_S) == 2
        assert one.lines("error: ")[-1].count("server.tokens.file") == 1


def test_a_program_that_serves_by_itself_is_told_to_stay_one_process(tmp_path: Path) -> None:
    config = load_config("flights-app", overrides=[f"state.dir={tmp_path}", SEVERAL])
    with pytest.raises(ConfigurationError, match=r"server\.processes = 2 needs `stateline serve`"):
        serve(make_app(), config)
