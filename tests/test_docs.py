"""What the documents claim is true: examples are run, tables are compared with the code that they speak of."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import struct
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir, closing
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson
import pytest
from rocksdict import AccessType, Options, Rdict
from typer.main import get_command

from stateline import serdes
from stateline.cli.main import cli
from stateline.config.loading import load_config
from stateline.config.settings import Config, dotted_name
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.deployment.pipelines.status import PipelineStatus
from stateline.log import Record, open_log
from stateline.log.embedded import EmbeddedLog
from stateline.log.embedded_file import (
    APPLICATION_ID,
    OFFSET_BITS,
    SCHEMA_VERSION,
    decode_headers,
    encode_headers,
)
from stateline.problem_kinds import PROBLEMS
from stateline.processing.changelog import position_headers, types_headers
from stateline.processing.changelog_rows import staged_rows
from stateline.processing.failures import FailureHandler
from stateline.query.kinds import KINDS
from stateline.server.main import OPERATIONS
from stateline_store import (
    CommitNotice,
    IsolationLevel,
    KeyValueStore,
    NoticeView,
    Position,
    StateDirectory,
    StoreContext,
    StoreState,
    StoreTypes,
    TimestampedKeyValueStore,
    TopicPartition,
    WindowStore,
)
from stateline_store.rows.windowed_keys import window_key
from support.processes import forked
from support.processes.running_worker import Stores, create, eventually, produce, read_all, running
from support.processes.served_here import served_here
from support.run.patience import HANGING_S

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILES_ARE_IN = ("", "service/stateline", "tests")  # as pages name them
TIME_MS = 1_795_259_814_382
# Members of an answer that depend on the clock, or on whether a commit has just been made.
VOLATILE = {"timestamp", "committed_at_ms", "staged_records", "staged_bytes", "pid", "process_id", "socket", "topic_id"}


def document(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def http_pages() -> str:
    """The pages of docs/http and of the errors, in one text."""
    pages = [*sorted((ROOT / "docs/http").glob("*.md")), ROOT / "docs/reference/errors.md"]
    return "\n".join(path.read_text(encoding="utf-8") for path in pages)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = text.split(f"{heading}\n", 1)[1]
    lines = re.search(r"(^\|.*\n)+", section, re.MULTILINE)
    assert lines is not None, f"no table below {heading}"
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[0].splitlines()]
    return cells[2:]


def plain(cell: str) -> str:
    return cell.strip("`")


def hex_in(data: bytes, text: str) -> bool:
    """Whether the text shows these bytes, as pairs of hexadecimal digits."""
    return data.hex(" ") in " ".join(text.split())


# ---- The quickstart runs.


class Hello(NamedTuple):
    """The README's application, running, with its three orders written."""

    url: str
    directory: Path


def run_in(directory: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=HANGING_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stateline(directory: Path, *arguments: str, typed: str = "") -> str:
    with chdir(directory):
        done = forked.run(arguments, env=os.environ, typed=typed)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hello]:
    directory = tmp_path_factory.mktemp("hello")
    (directory / "hello.py").write_text(blocks(document("README.md"), "python")[0])
    starting, writing = blocks(document("README.md"), "console")[:2]
    commands = [shlex.split(line[2:])[1:] for line in starting.splitlines()]
    assert [command[0] for command in commands] == ["topics", "run"]
    stateline(directory, *commands[0])
    settings = ("server.port=0", "commit.interval.ms=300", f"backup.location={directory / 'backups'}")
    process = subprocess.Popen(
        [sys.executable, "-m", "stateline", *commands[1], *(f"--set={setting}" for setting in settings)],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        said: list[str] = []
        try:
            for line in output:
                said.append(line)
                if found := re.search(r"Answering at (http://\S+)", line):
                    break
            assert found, said
            command, _, position = writing.removeprefix("$ ").splitlines()  # what was said meanwhile has a time in it
            lines, produce = command.split(" | stateline ")
            records = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True).stdout
            assert stateline(directory, *shlex.split(produce), typed=records).strip() == position
            yield Hello(found[1], directory)
        finally:
            process.send_signal(signal.SIGINT)
            said.append(output.read())
    assert process.wait(HANGING_S) == 0, "".join(said)


def test_the_smallest_application_is_under_25_lines() -> None:
    app = blocks(document("README.md"), "python")[0]
    assert 'App("hello"' in app
    assert len(app.splitlines()) < 25


def test_the_statement_of_the_readme_prints_the_rows_that_it_shows(hello: Hello) -> None:
    block = next(each for each in blocks(document("README.md"), "console") if each.startswith("$ stateline sql"))
    command, _, shown = block.removeprefix("$ stateline ").partition("\n")
    words = [*shlex.split(command), "--url", hello.url]
    eventually(lambda: stateline(hello.directory, *words) == shown, "it is committed")


def test_the_commands_of_the_page_of_exports_write_what_its_programs_read(hello: Hello, tmp_path: Path) -> None:
    page = document("docs/export.md").replace("/tmp/", f"{tmp_path}/")
    commands = [shlex.split(block)[2:] for block in blocks(page, "console")]
    assert [words[0] for words in commands] == ["export"] * 3
    bound = {"position_bound": '{"orders": {"0": 2}}', "wait_ms": "30000", "isolation_level": "read_committed"}
    assert httpx.get(f"{hello.url}/v1/stores/totals/count", params=bound, timeout=HANGING_S).status_code == 200
    for words in commands:
        assert "written" in stateline(hello.directory, *words, "--url", hello.url)
    of_parquet, of_delta = blocks(page, "python")
    for name in ("alice", "bob"):
        assert name in run_in(hello.directory, "-c", of_parquet)
        assert f"'key': '{name}'" in run_in(hello.directory, "-c", of_delta)
    (query,) = blocks(page, "sql")
    files = f"read_parquet('{tmp_path}/log/totals/*.parquet')"
    read = f"import duckdb; print(sorted(duckdb.sql({query.replace('totals_log', files)!r}).fetchall()))"
    assert run_in(hello.directory, "-c", read).count("False, 1") == 2


class Exchange(NamedTuple):
    command: str
    answer: str


def exchanges(text: str) -> list[Exchange]:
    """Every ``$ curl …`` of the document with the answer shown below it."""
    shown = "".join(blocks(text, "console"))
    return [Exchange(*found) for found in re.findall(r"^\$ (curl .*)\n((?:[^$].*\n)*)", shown, re.MULTILINE)]


def asked(command: str, url: str) -> httpx.Response:
    """Do what the curl command line says, against another server."""
    words = shlex.split(command.replace("localhost:8000", url))[1:]
    at = next(word for word in words if word.startswith("http://"))
    data = [words[n + 1] for n, word in enumerate(words) if word in ("-d", "--data-urlencode")]
    if "-G" in words:
        pairs = (text.partition("=") for text in data)
        return httpx.get(at, params={name: value for name, _, value in pairs}, timeout=HANGING_S)
    return httpx.post(at, content=data[0], timeout=HANGING_S) if data else httpx.get(at, timeout=HANGING_S)


def assert_shown(shown: Any, actual: Any, where: str) -> None:
    """What the document shows is in the actual answer; of volatile members only the name counts."""
    if isinstance(shown, dict):
        assert isinstance(actual, dict), where
        for name, value in shown.items():
            assert name in actual, f"{where}.{name}"
            if name not in VOLATILE:
                assert_shown(value, actual[name], f"{where}.{name}")
    elif isinstance(shown, list):
        assert isinstance(actual, list), where
        assert len(shown) == len(actual), where
        for n, (one, other) in enumerate(zip(shown, actual, strict=True)):
            assert_shown(one, other, f"{where}[{n}]")
    else:
        assert shown == actual, where


@pytest.mark.parametrize("text", [document("README.md"), http_pages()], ids=["README.md", "docs/http"])
def test_the_server_answers_as_the_documents_show(hello: Hello, text: str) -> None:
    bound: dict[str, str | int] = {
        "position_bound": '{"orders": {"0": 2}}',
        "wait_ms": 30_000,
        "isolation_level": "read_committed",
    }
    for store in ("orders", "totals"):
        assert httpx.get(f"{hello.url}/v1/stores/{store}/count", params=bound, timeout=HANGING_S).status_code == 200
    found = exchanges(text)
    assert len(found) > 2
    for exchange in found:
        response = asked(exchange.command, hello.url)
        shown = json.loads(re.sub(r", …}\s*$", "}", exchange.answer))
        whole = "…" not in exchange.answer
        assert_shown(shown, response.json(), exchange.command)
        assert not whole or isinstance(shown, list) or shown.keys() == response.json().keys(), exchange.command


def test_the_applications_that_the_documents_show_run(tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec("\n\n".join(blocks(document("docs/applications.md"), "python")), scope)
    app = scope["app"]
    settings = [f"state.dir={tmp_path}", "commit.interval.ms=50"]
    config = load_config(app.application_id, defaults=app.config, overrides=settings, environment={})
    with closing(open_log("embedded", tmp_path)) as log:
        create(log, {"orders": 2, "prices": 2, "large-orders": 1})
        with running(app, config, log):
            written = produce(log, "orders", [(b"Ada", b'{"city": "Bath", "amount": 3000}', TIME_MS)] * 2)
            stores = Stores(app, config, tmp_path / "scratch")
            try:
                (partition,) = written
                eventually(lambda: stores.offset("totals", *partition) == 1, "the orders are committed")
                totals = {bytes(k): serdes.int64.deserialize(v) for k, v in stores.rows("totals", 2).items()}
                assert totals == {b"Ada": 6000}
                eventually(
                    lambda: stores.rows("cities", 2) == {b"Bath": serdes.int64.serialize(2)}, "cities are counted"
                )
            finally:
                stores.close()
        assert [record.key for record in read_all(log, "large-orders", 1)] == [b"Ada", b"Ada"]


@pytest.mark.parametrize("name", ["docs/pipelines.md", "docs/operators.md"])
def test_the_pipelines_that_the_documents_show_can_be_declared(name: str) -> None:
    scope: dict[str, Any] = {}
    code = "\n\n".join(blocks(document(name), "python"))
    exec(code, scope)
    assert list(scope["app"].topology().pipelines) == re.findall(r"^@app\.pipeline.*\ndef (\w+)", code, re.MULTILINE)


def test_every_benchmark_is_named() -> None:
    page = document("docs/benchmarks.md")
    (named,) = re.findall(r"BENCH=ingest .*?one: (.*?)\n\n", page, re.DOTALL)
    scripts = {path.stem.removeprefix("bench_") for path in (ROOT / "tests/benchmarks").glob("bench_*.py")}
    assert set(re.findall(r"\w+", named)) == scripts


def test_the_page_for_kafka_streams_applications_is_true(tmp_path: Path) -> None:
    """With the changelogs that such an application wrote."""
    page, scope = document("docs/kafka-streams.md"), dict[str, Any]()
    (code,) = blocks(page, "python")
    exec(code, scope)
    app = scope["app"]
    times = {b"kafka": (760_000, 814_382), b"streams": (820_000, 834_382), b"http": (820_000, 874_382)}
    windows = [(window_key(key, 1_795_259_000_000 + start), 1, at) for key, (start, at) in times.items()]
    windows += [
        (window_key(b"kafka", 1_795_259_000_000 + start), 1, at)
        for start, at in ((820_000, 854_382), (880_000, 894_382))
    ]
    counts = [(b"kafka", 1, 814_382), (b"streams", 1, 834_382), (b"http", 1, 874_382), (b"kafka", 3, 894_382)]
    with closing(open_log("embedded", tmp_path)) as log:
        create(log, {"word-count-count-changelog": 1, "word-count-tumbling-changelog": 1})
        for name, rows_of in (("count", counts), ("tumbling", windows)):
            changes = [(key, value.to_bytes(8, "big"), 1_795_259_000_000 + at) for key, value, at in rows_of]
            produce(log, f"word-count-{name}-changelog", changes)
        settings = ["bootstrap.servers=embedded", "default.state.isolation.level=read_uncommitted"]
        config = load_config(app.application_id, overrides=[f"state.dir={tmp_path}", settings[0]], environment={})
        with running(app, config, log), served_here(tmp_path, *settings, app=app) as here:
            for name, store, offset in (("count", "count", 3), ("tumbling", "per_minute", 4)):
                position = json.dumps({f"word-count-{name}-changelog": {"0": offset}})
                bound: dict[str, str | int] = {"position_bound": position, "wait_ms": 30_000}
                assert here.client.get(f"/v1/stores/{store}/count", params=bound).status_code == 200
            for exchange in exchanges(page):
                shown = json.loads(re.sub(r", …}\s*$", "}", exchange.answer))
                assert_shown(shown, asked(exchange.command, str(here.client.base_url)).json(), exchange.command)


# ---- Every link and every command exists.


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_the_files_that_the_documents_name_are_there() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"])
    named = set(re.findall(r"`((?:\w+/)+[\w.]+\.py)`", pages))
    assert len(named) > 100
    assert {name for name in named if not any((ROOT / at / name).is_file() for at in FILES_ARE_IN)} == set()


def test_commands_that_the_documents_name_exist() -> None:
    commands = set(getattr(get_command(cli), "commands", {}))
    for path in DOCUMENTS:
        named = set(re.findall(r"(?:`|\$ |^    )stateline ([a-z]+)\b", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= commands, f"{path.name}: {named - commands}"


def test_the_parts_of_pages_that_the_code_knows_are_as_the_code_has_them() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"],
        capture_output=True,
        text=True,
        timeout=HANGING_S,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


# ---- docs/reference/settings.md


def test_the_prefixes_of_settings_that_are_passed_on_are_those_of_the_code() -> None:
    prefixes = {
        plain(row[0]).removesuffix(".…") for row in rows(document("docs/reference/settings.md"), "## Passed on")
    }
    fields_of_dicts = {dotted_name(name) for name, info in Config.model_fields.items() if info.default_factory is dict}
    assert prefixes == fields_of_dicts


def test_the_example_of_a_settings_file_is_accepted() -> None:
    (toml,) = blocks(document("docs/reference/settings.md"), "toml")
    config = load_config("hello", file=tomllib.loads(toml))
    assert (config.commit_interval_ms, config.consumer) == (500, {"fetch.min.bytes": "1000"})


# ---- docs/http


def test_the_requests_are_those_of_the_code() -> None:
    text = http_pages()
    shown = {tuple(found) for found in re.findall(r"`(GET|POST|PATCH|DELETE) (/[^`?]*)", text)}
    declared = {(o.method.upper(), o.path) for o in OPERATIONS} | {("GET", path) for path in ("/", "/docs")}
    assert shown - {("GET", "/openapi.json")} == declared


def test_the_results_are_those_of_the_code() -> None:
    shown: dict[str, set[str]] = {}
    kind = ""
    for row in rows(document("docs/http/queries.md"), "## Queries by kind of store"):
        kind = plain(row[0]) or kind  # a line without a name is another way to ask the one above
        shown.setdefault(kind, set()).update(re.findall(r"`(\w+)`", row[3]))
    for each in KINDS:
        assert each.result.keys() <= shown[each.word], each.word


def test_every_reason_is_explained() -> None:
    explained = re.findall(r"^### ([A-Z_]+)$", document("docs/reference/errors.md"), re.MULTILINE)
    assert explained == list(dict.fromkeys(problem.reason for problem in PROBLEMS.values()))


# ---- docs/reference/metrics.md


def test_the_metrics_are_those_of_the_server(hello: Hello) -> None:
    text = httpx.get(f"{hello.url}/metrics", timeout=HANGING_S).text
    kinds = dict(re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", text, re.MULTILINE))
    served = {name for name in kinds if not name.endswith("_created")}
    shown = re.findall(r"^\| `(stateline_\w+)` \|", document("docs/reference/metrics.md"), re.MULTILINE)
    assert sorted(shown) == sorted(served)


# ---- docs/formats


def test_positions_are_encoded_as_shown() -> None:
    text = document("docs/formats/position.md")
    position = Position({"orders": {0: 2, 1: 300}})
    data = position.encode()
    lines = re.findall(r"^    ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?$", text, re.MULTILINE)
    content = bytes.fromhex(" ".join(lines))
    zeros = len(data) - len(content)
    assert data == content + bytes(zeros)
    assert f"is {len(data)} bytes: the bytes below, and {zeros} zeros" in text
    assert Position.decode(content) == position


def test_serdes_write_the_bytes_shown() -> None:
    shown = {plain(row[0]): row[2] for row in rows(document("docs/formats/keys-and-values.md"), "## Serdes")}
    samples: list[tuple[serdes.Serde, Any]] = [
        (serdes.string, "é"),
        (serdes.int32, 7),
        (serdes.int64, 7),
        (serdes.float64, 1.5),
        (serdes.datetime, datetime(1970, 1, 1, 0, 0, 0, 7_000, UTC)),
        (serdes.msgpack, 7),
    ]
    for serde, value in samples:
        assert f"is `{serde.serialize(value).hex(' ')}`" in shown[serde.name]
    # Those around another: docs/formats/windows.md.
    others = {"Serde", "TimeWindowedSerde", "WindowedSerde", "session_windowed", "time_windowed", "windowed"}
    others |= {"held_back", "subscriber", "subscription", "unmatched_key", "unmatched_values"}
    assert shown.keys() == set(serdes.__all__) - others


def database(path: Path) -> Any:
    families = {name: Options(raw_mode=True) for name in ("default", "offsets")}
    return Rdict(str(path), Options(raw_mode=True), column_families=families, access_type=AccessType.read_only())


def offsets_rows(db: Any) -> dict[str, bytes]:
    return {key.decode(): value for key, value in db.get_column_family("offsets").items()}


def test_a_database_has_the_rows_shown(tmp_path: Path) -> None:
    text = document("docs/formats/stores.md")
    store = TimestampedKeyValueStore("orders")
    store.init(StoreContext("0_0", tmp_path, types=StoreTypes("string", "json")))
    store.put_with_timestamp(b"alice", b'{"amount": 12}', TIME_MS)
    store.commit({TopicPartition("orders", 0): 2}, position=Position({"orders": {0: 2}}))
    store.close()
    db = database(tmp_path / "rocksdb" / "orders-v2")
    assert hex_in(db[b"alice"], text)
    found = offsets_rows(db)
    shown = {plain(row[0]): row[2] for row in rows(text, "up to offset 2 of its changelog partition `orders-0`:\n")}
    assert {"orders-0" if name == "<topic>-<partition>" else name for name in shown} == found.keys()
    for name, cell in shown.items():
        if example := re.search(r"`([0-9a-f ]+)`$", cell):
            assert bytes.fromhex(example[1]) == found.get(name, found["orders-0"]), name
    assert Position.decode(found["position"]) == Position({"orders": {0: 2}})
    assert {name: shown[name] for name in ("layout", "types")} == {
        name: f"`{found[name].decode()}`" for name in ("layout", "types")
    }


def test_a_database_with_a_retention_and_duplicates_has_the_other_rows_shown(tmp_path: Path) -> None:
    store = WindowStore("visits", retention_ms=600_000, window_size_ms=60_000, retain_duplicates=True)
    store.init(StoreContext("0_0", tmp_path))
    store.put(b"key", b"one", 300_000)
    store.put(b"key", b"two", 300_000)
    store.commit({})
    store.close()
    found = offsets_rows(database(tmp_path / "rocksdb" / "visits"))
    shown = {
        plain(row[0]): plain(row[2]) for row in rows(document("docs/formats/stores.md"), "that starts at 300000:\n")
    }
    assert shown == {name: found[name].hex(" ") for name in ("stream_time", "sequence")} | {
        "layout": found["layout"].decode()
    }


def test_a_notice_has_the_slots_shown(tmp_path: Path) -> None:
    names = [plain(row[1]) for row in rows(document("docs/formats/notice.md"), "# Commit notice")]
    notice = CommitNotice(tmp_path / "totals.notice")
    notice.open(1, 2)
    notice.publish(11, 12)
    notice.publish_staged(13, 14)
    notice.publish_state(StoreState.RESTORING, 15)
    slots = struct.unpack("=8Q", (tmp_path / "totals.notice").read_bytes())
    with closing(NoticeView(tmp_path / "totals.notice")) as view:
        assert slots[0].to_bytes(8, "big") == b"STLNOTE1"
        assert [getattr(view, name) for name in names[1:]] == list(slots[1:])
    notice.close()
    states = rows(document("docs/formats/notice.md"), "# Commit notice")[6][2]
    assert states == ", ".join(f"{state.value} {state.name.lower()}" for state in StoreState)


@pytest.mark.parametrize("kind", [KeyValueStore, TimestampedKeyValueStore])
def test_changelog_records_are_as_described(tmp_path: Path, kind: type[KeyValueStore]) -> None:
    store = kind("totals", persistent=False)
    store.init(StoreContext("0_0", tmp_path))
    store.put(b"alice", b"1")
    store.put(b"bob", None)
    store.advance(Position({"orders": {0: 2}}))
    assert staged_rows(store, TIME_MS) == [
        (b"alice", b"1", 0 if store.timestamped else TIME_MS),
        (b"bob", None, TIME_MS),
    ]
    headers = position_headers(store.position(IsolationLevel.READ_UNCOMMITTED))
    assert headers == (("v", b"\0"), ("c", Position({"orders": {0: 2}}).encode()))
    ((header, types),) = types_headers(StoreTypes("string", "json"))
    text = document("docs/formats/changelogs.md")
    shown = {plain(row[0]): row[1] for row in rows(text, "## Headers")}
    assert list(shown) == ["v", "c", header, "e"]
    assert shown["v"] == "`00`"
    assert types is not None
    assert f"    {types.decode()}\n" in text


def test_the_marker_is_encoded_as_shown() -> None:
    (block,) = blocks(document("docs/formats/topics.md"), "json")
    shown = block.strip().encode()
    assert EpochMarker.decode(shown).encode() == shown


def test_dead_letters_have_the_headers_shown() -> None:
    handler = FailureHandler("dead-letter", "fail", "dead")
    for at in (TIME_MS, -1):
        handler.cannot_read(Record("orders", 0, 2, at, b"alice", b"?"), ValueError("no"))
    letter, early = ({name for name, _ in each.headers} for each in handler.take_dead_letters())
    shown = set(re.findall(r"`(__streams\.errors\.\w+)`", document("docs/formats/topics.md")))
    assert shown == early == letter | {"__streams.errors.timestamp"}


def test_the_embedded_log_has_the_tables_shown(tmp_path: Path) -> None:
    text = document("docs/formats/embedded-log.md")
    log = EmbeddedLog(tmp_path / "log.db")
    with closing(sqlite3.connect(log.embedded_file)) as sql:
        names = [name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        actual = {
            name: [row[1] for row in sql.execute(f"PRAGMA table_info({name})")]
            for name in names
            if not name.startswith("sqlite_")
        }
        (page_size,) = sql.execute("PRAGMA page_size").fetchone()
    shown = {plain(row[0]): re.findall(r"`(\w+)`", row[1]) for row in rows(text, "# The embedded log")}
    assert shown == actual
    said = f"page size {page_size}, `application_id` {APPLICATION_ID:#x} (`StLg`) and `user_version` {SCHEMA_VERSION}"
    assert said.lower() in text.lower()
    assert f"has id {(5 << OFFSET_BITS) + 300}." in text
    headers = (("v", b"\0"), ("t", None))
    encoded = encode_headers(headers)
    assert encoded is not None
    assert hex_in(encoded, text)
    assert decode_headers(encoded) == headers


@cache
def has_module(dotted: str) -> bool:
    """Whether there is such a module, or one that has such a function."""
    inside, _, last = dotted.replace(".", "/").rpartition("/")
    for source in (ROOT / "service" / inside, ROOT / "store" / inside):
        if (source / last).is_dir() or (source / f"{last}.py").is_file():
            return True
        for module in (source.with_suffix(".py"), source / "__init__.py"):
            if module.is_file() and re.search(rf"\b{last}\b", module.read_text()):
                return True
    return False


def test_modules_and_files_that_anything_names_are_there() -> None:
    missing = set[tuple[Path, str]]()
    there = {path for at in ("service", "store", "docs", "tests", "examples") for path in (ROOT / at).rglob("*")}
    for path in there:
        if path.suffix in (".py", ".md", ".xml", ".properties") and "target" not in path.parts:
            text = path.read_text()
            modules = re.findall(r"`(stateline(?:_store|\.[a-z_]+)(?:\.[a-z_]+)+)", text)
            missing |= {(path, name) for name in modules if not has_module(name)}
            files = re.findall(r"(?<![/\w])(?:service|store|docs|tests|examples)/[\w/-]+\.(?:py|md|xml)", text)
            missing |= {
                (path, name) for name in files if not any((at / name).is_file() for at in (ROOT, ROOT / "tests"))
            }
    assert not missing


def test_the_files_for_servers_are_as_shown(hello: Hello) -> None:
    pages = ("process-files", "pipelines")
    topology, instance, figures, status = (
        json.loads(block) for page in pages for block in blocks(document(f"docs/formats/{page}.md"), "json")
    )
    application = hello.directory / ".stateline" / "hello"
    assert_shown(topology, orjson.loads((application / "topology.json").read_bytes()), "topology.json")
    assert_shown(instance, orjson.loads((application / "instances" / "worker-0.json").read_bytes()), "instance")
    told = orjson.loads((application / "instances" / "worker-0.figures").read_bytes())
    assert list(figures) == list(told)
    for member in ("totals", "rates", "ratios", "commit_latency"):
        assert list(figures[member]) == list(told[member])
    assert list(status) == [field.name for field in fields(PipelineStatus)]


def test_every_file_in_a_state_directory_is_named(hello: Hello) -> None:
    state = hello.directory / ".stateline"
    patterns = []
    for cell in re.findall(r"^\| (`[^|]+) \|", document("docs/formats/files.md"), re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", cell):
            pattern = re.sub(r"<[a-z.]+>", "[^/]+", re.sub(r"([.])(?![^<]*>)", r"\\.", name))
            patterns.append(re.compile(pattern + (".+" if name.endswith("/") else "")))
    files = [str(path.relative_to(state)) for path in state.rglob("*") if path.is_file()]
    assert len(files) > 10
    unnamed = [file for file in files if not any(pattern.fullmatch(file) for pattern in patterns)]
    assert not unnamed
    directory = StateDirectory(state, "hello")
    assert directory.tasks() == ["0_0"]
