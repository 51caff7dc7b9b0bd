"""No answer says where on the machine files lie."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest

from stateline.deployment.pipelines.status import PipelineStatus
from stateline.query.values import Failure, Outcome, Terms
from stateline.server.console import state as console_state
from stateline.server.contract import hidden_paths
from stateline.server.contract.hidden_paths import hide_directory, trace_without_paths, without_paths
from stateline.server.contract.problems import problem_response, unreadable_response
from stateline.server.rows.event_stream import EventStream, goodbye
from stateline.server.rows.streams import headers_of
from stateline.server.state.pipeline_states import PipelineStates
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import CursorExpiredError, DamagedDataError, IsolationLevel, NotReadyError, StatelineError
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import Here, http_server

COMMITTED = "default.state.isolation.level=read_committed"
PATHS = (
    "/readyz",
    "/v1/stores",
    "/v1/stores/aircraft",
    "/v1/topology",
    "/v1/instances",
    "/v1/stores/aircraft/keys/k",
    "/v1/stores/aircraft/range",
    "/v1/stores/aircraft/count?allow_partial=true",
    "/v1/stores/aircraft/position",
    "/v1/stores/aircraft/range?isolation_level=read_uncommitted",
    "/v1/stores/cache/range",
)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories that are hidden for this test alone."""
    monkeypatch.setattr(hidden_paths, "_hidden", {})


@pytest.mark.usefixtures("hidden")
def test_a_hidden_directory_stands_under_its_name() -> None:
    hide_directory(Path("/var/lib/stateline"), "<state.dir>")
    assert without_paths("/var/lib/stateline/a/0_1 is damaged") == "<state.dir>/a/0_1 is damaged"
    assert without_paths("(IO error: '/var/lib/stateline': it is full)") == "(IO error: '<state.dir>': it is full)"
    assert without_paths(OSError("file:///var/lib/stateline/x")) == "file://<state.dir>/x"
    assert without_paths("/var/lib/stateline-2/x and /var/lib/stateliner") == "<path> and <path>", "of another"


@pytest.mark.usefixtures("hidden")
def test_a_relative_directory_is_hidden_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hide_directory(Path("state"), "<state.dir>")
    assert without_paths("state/a and " + f"{tmp_path}/state/b") == "<state.dir>/a and <state.dir>/b"
    assert without_paths("the state of my-state/a, other/state/b") == "the state of my-state/a, other/state/b"


@pytest.mark.usefixtures("hidden")
def test_the_working_directory_and_the_root_hide_nothing_but_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hide_directory(Path("."), "<state.dir>")
    hide_directory(Path("/"), "<root>")
    assert without_paths(f"1.5 of {tmp_path}/a, /b") == "1.5 of <state.dir>/a, /b"


def refused(client: httpx.Client, state_dir: Path) -> int:
    """How many of the paths are refused; none of the answers has a path of the state directory."""
    responses = [client.get(path) for path in PATHS]
    for response in responses:
        assert str(state_dir) not in response.text, response.url
        assert "Traceback" not in response.text
    return sum(response.status_code >= 400 for response in responses)


def test_no_answer_has_a_path_of_the_state_directory(tmp_path: Path) -> None:
    """Before a worker starts, with damaged tables, and with files that are gone."""
    with http_server(tmp_path, COMMITTED) as client:
        assert refused(client, tmp_path) > 5
        assert "<state.dir>" in client.get("/v1/stores/aircraft/range").text
        worker = OwningWorker(tmp_path)
        wait_until(lambda: client.get("/readyz").status_code == 200)
        worker.put("k", 1)
        worker.commit()
        worker.close(killed=True)
        for store in worker.stores.values():
            store.close()
        for notice in worker.application.glob("0_*/aircraft*.notice"):
            notice.write_bytes(b"damaged")
        assert refused(client, tmp_path) > 0
    with http_server(tmp_path, COMMITTED) as client:
        assert refused(client, tmp_path) > 3
        (worker.application / "topology.json").write_text("{")
        for database in worker.application.glob("0_*/rocksdb/aircraft-v2/CURRENT"):
            database.write_bytes(b"damaged")
        assert refused(client, tmp_path) > 3


# Every way that a message takes out of the server

SECRET = "/home/mallory/keys"
FAULT = f"IO error: While opening a file: {SECRET}/a.sst: cannot be read ('{SECRET} of mine/b', file://{SECRET}/c)"


@pytest.mark.usefixtures("hidden")
def test_a_path_that_nobody_has_named_is_hidden_wherever_it_stands() -> None:
    assert SECRET not in without_paths(FAULT)
    assert "of mine" not in without_paths(FAULT), "a path with a space ends where its quotation does"
    assert without_paths(f"({SECRET}): /tmp, /usr/lib/x.py:3; see /docs, /v1/stores/a/keys/b") == (
        "(<path>): <path>, <path>:3; see /docs, /v1/stores/a/keys/b"
    )
    harmless = "1/2 of a/tmp/b, http://host/home/a, http://host:80/tmp <state.dir>/home/x POST …/query a-/etc"
    assert without_paths(harmless) == harmless


@pytest.mark.usefixtures("hidden")
def test_a_path_that_the_caller_has_given_stays() -> None:
    hide_directory(Path("/var/lib/stateline"), "<state.dir>")
    given = "select '/home/x'::int, '/var/lib/stateline' /tmp/a"
    assert without_paths("'/home/x', /tmp/a..., /home/x", given) == "'/home/x', /tmp/a..., /home/x"
    assert without_paths("/var/lib/stateline is a path", given) == "/var/lib/stateline is a path", "else it is told"
    inside = "/home/x/key, /home, /var/lib/stateline/0_1, /tmp/b, /tmp/a/b"
    assert without_paths(inside, given) == "<path>, /home, <path>, <path>, <path>"


def test_a_traceback_names_files_from_where_they_are_imported_and_no_directory_of_the_machine() -> None:
    inside, foreign = Path.cwd() / "flights.py", Path(SECRET) / "lib.py"
    library = Path(sys.modules["pytest"].__file__ or "")
    trace = "".join(
        f'  File "{each}", line 3, in run\n    run()\n' for each in (inside, library, json.__file__, foreign)
    )
    assert re.findall('File "(.*?)"', trace_without_paths(f"{trace}OSError: {FAULT}\n")) == [
        "flights.py", "pytest/__init__.py", "json/__init__.py", "<path>/lib.py"
    ]  # fmt: skip
    assert SECRET not in trace_without_paths(f"{trace}OSError: {FAULT}\n")


@pytest.mark.parametrize("error", [StatelineError(FAULT), DamagedDataError(FAULT), NotReadyError(FAULT)])
def test_no_failure_of_a_query_names_a_path(here: Here, monkeypatch: pytest.MonkeyPatch, error: StatelineError) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    def failing(*_: object, **__: object) -> Failure:
        return Failure(error)

    path = "/v1/stores/aircraft/range"

    def fail_without_a_word(*_: object, **__: object) -> NoReturn:
        raise OSError(FAULT)

    for broken in (fail, failing, fail_without_a_word):
        with monkeypatch.context() as patch:
            patch.setattr(here.serving.partitions, "ask", broken)
            for asked in (path, f"{path}?allow_partial=true&partition=0", "/v1/stores/aircraft/keys/k"):
                for accept in ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"):
                    answer = here.client.get(asked, headers={"Accept": accept, "Connection": "close"})
                    assert answer.status_code >= 500 or (answer.status_code == 406 and "/keys/" in asked)
                    assert "mallory" not in answer.text + str(answer.headers)
    outcomes: dict[int, Outcome] = {0: Failure(error)}
    terms = Terms("aircraft", IsolationLevel.READ_COMMITTED)
    assert "mallory" not in str(headers_of(terms, outcomes))


DESCRIBING = (
    "/v1/stores", "/v1/stores/aircraft", "/v1/console", "/v1/console?store=aircraft", "/v1/topology", "/v1/instances",
    "/readyz", "/metrics", "/openapi.json",
)  # fmt: skip


def test_what_describes_the_service_names_no_path(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_state, "_FRESH_S", 0.0)

    def fail(*_: object) -> NoReturn:
        raise NotReadyError(FAULT)

    for owner, name in (
        (here.serving.partitions, "open"),
        (here.serving.partitions, "check"),
        (here.serving.stores, "get"),
    ):
        monkeypatch.setattr(owner, name, fail)
        for path in DESCRIBING:
            answer = here.client.get(path)
            assert "mallory" not in answer.text, (name, path)
            assert (name, path) != ("get", "/v1/console") or "not_ready" in answer.text, "it looks anew"
    assert "<path>" in here.client.get("/readyz").text


def test_the_last_event_of_a_stream_names_no_path() -> None:
    async def ended(error: Exception) -> bytes:
        async def source() -> AsyncGenerator[bytes, None]:
            yield b"data: 1\n\n"
            raise error

        async def receive() -> Any:
            return await asyncio.Event().wait()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message.get("body", b""))

        sent: list[bytes] = []
        stream = EventStream(source(), lambda: None, TimeLimits(), buffer_bytes=100, heartbeat_s=9, slow_s=9)
        await stream({"type": "http"}, receive, send)
        return sent[-1]

    for error in (CursorExpiredError(FAULT), OSError(FAULT)):
        last = asyncio.run(ended(error))
        assert last.startswith(b"event: end\n")
        assert b"mallory" not in last


def test_the_last_error_of_a_pipeline_names_no_path(tmp_path: Path) -> None:
    directory = tmp_path / "flights-app" / "pipelines" / "p"
    directory.mkdir(parents=True)
    status: dict[str, Any] = dict.fromkeys(PipelineStatus.__slots__, 0)
    status |= {"pipeline": "p", "query_id": "", "state": "failed", "last_error": FAULT}
    status |= {"lag_by_topic": {}, "steps_ms": {}, "totals": {}}
    (directory / "status.json").write_text(json.dumps(status))
    topology = SimpleNamespace(application_id="flights-app", pipelines=["p"])
    shown = PipelineStates(topology, tmp_path).read()["p"]  # type: ignore[arg-type]  # of it, all that is read
    assert shown is not None
    assert "mallory" not in shown["last_error"]


def test_each_exit_hides_paths_in_whatever_text_it_is_given() -> None:
    for path in ("/home/x", f"{Path.cwd()}/x"):
        assert path.encode() not in goodbye("STORE_EXCEPTION", f"at {path}")
        assert path.encode() not in bytes(unreadable_response(f"at {path}", 400).body)
        assert path.encode() not in bytes(problem_response(NotReadyError("no"), reasons=[f"at {path}"]).body)


# Functions that take the text of an error and put it neither into another error at once, nor into the log or
# `without_paths`.
TAKEN = {
    ("contract/arguments.py", "read_key"): "into another error",
    ("changes/feed.py", "read_position"): "into another error",
    ("listeners.py", "http_listener"): "into another error",
    ("routing/cluster_copies.py", "explained"): "into another error",
    ("wire/bounded_protocol.py", "_answer_refused"): "to unreadable_response",
    ("contract/unreadable.py", "in_plain_words"): "to unreadable_response",
    ("rows/event_stream.py", "_send"): "to goodbye",
    ("rows/event_stream.py", "_fill"): "to goodbye",
    ("contract/problems.py", "problem_response"): "to its _response",
    ("contract/problems.py", "on_http_error"): "to its _response",
    ("state/partitions.py", "_reading"): "into another error; its path is compared",
    ("state/store_watch.py", "reasons_not_ready"): "to problem_response, as one of the reasons",
    ("state/store_watch.py", "_why_unreadable"): "to problem_response, as one of the reasons",
    ("state/store_watch.py", "follow"): "to problem_response, as one of the reasons",
    ("snapshots/sweeper.py", "sweep"): "to the log",
    ("backups/making.py", "_linked"): "to the log, and to the command `backup now`",
    ("state/group_watch.py", "_ask"): "to the log",
    ("copies/receiving.py", "_fetched"): "to the log, and through without_paths to a worker",
    ("copies/receiving.py", "_fetched_from_any"): "to _fetched",
    ("copies/sending.py", "send"): "to the log, and through without_paths to another node",
    ("nodes/acceptance.py", "_answer"): "into another error",
    ("nodes/answering.py", "_reply_to"): "to another node, which answers with a problem_response",
    ("nodes/greeting.py", "greet"): "to a node that has shown that it is one, in its fault",
    ("nodes/http_over_link.py", "answered"): "of whole_answer, which names no file, to another node",
    ("nodes/keys.py", "tls_failure"): "to the log, or into a fault",
    ("nodes/keys.py", "_in_words"): "into a fault, or another error",
    ("nodes/nodes.py", "_dial"): "to _note, which hides paths",
    ("nodes/peer_port.py", "_receive"): "to the log",
    ("nodes/registry.py", "_run"): "to _note, which hides paths",
    ("snapshots/cluster.py", "_make"): "into another error",
    ("contract/hidden_paths.py", "without_paths"): "it is what hides",
}


def takers_of_text(source: str) -> set[str]:
    """Functions in which the text of an error is put elsewhere than into another error, the log or `without_paths`."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}
    given = [node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation is not None]
    errors |= {each.arg for each in given if re.search("Error|Exception", ast.unparse(each.annotation or each))}
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("str" | "repr" | "format"), [text, *_]) | ast.FormattedValue(text):
                written = ast.unparse(text)
            case _:
                continue
        if written.partition(".")[0] not in errors and not written.endswith(".error"):
            continue
        around: list[ast.AST] = [node]
        while (parent := parents.get(around[-1])) is not None:
            around.append(parent)
        if not any(isinstance(each, ast.Raise) or is_harmless_call(each) for each in around):
            found.add(
                next((each.name for each in around if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)), "")
            )
    return found


def is_harmless_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and re.search(r"Error$|^_log\.|^without_paths$", ast.unparse(node.func)) is not None
    )


def test_the_text_of_an_error_goes_into_another_error_the_log_or_to_an_exit_that_hides_paths() -> None:
    leaking = "def leak():\n try:\n  f()\n except OSError as error:\n  return JSONResponse({'why': f'no: {error}'})"
    assert takers_of_text(leaking) == {"leak"}
    assert takers_of_text(leaking.replace("JSONResponse", "without_paths")) == set()
    server = Path(hidden_paths.__file__).parents[1]
    files = {str(file.relative_to(server)): takers_of_text(file.read_text()) for file in server.rglob("*.py")}
    found = {(file, name) for file, names in files.items() for name in names}
    assert found == TAKEN.keys()
