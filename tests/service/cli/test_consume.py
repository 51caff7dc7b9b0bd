"""Records of topics as lines: which of them, how they are shown, and that they can be written again."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, InputRecord, JoinWindows, SessionWindows, TumblingWindows, serdes, until_time_limit
from stateline.cli.records.consume import ConsumeOptions, consume, topics_of, wanted_of
from stateline.cli.records.produce import produce, terms_of
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.log import Log, NewTopic
from stateline_store import DoesNotExistError, InvalidArgumentError, TopicPartition
from support.processes.running_worker import configured, create, eventually, running
from support.run.length import on_one_log
from support.run.patience import HANGING_S

SCRIPT = Path(sys.executable).with_name("stateline")
HOUR_MS = 3_600_000


def application(name: str = "people") -> App:
    app = App("reading")
    app.table(app.topic(name, key=serdes.string, value=serdes.json))
    app.table(app.topic(f"{name}-numbers", key=serdes.int64, value=serdes.float64))
    return app


@pytest.fixture
def topic(log: Log) -> str:
    """Of two partitions, with another one of numbers, one that nobody declares, and a copy."""
    name = f"people-{uuid4().hex[:8]}"
    create(log, {name: 2, f"{name}-numbers": 1, f"{name}-other": 1, f"{name}-copy": 2})
    return name


@pytest.fixture
def config(bootstrap: str, tmp_path: Path) -> Config:
    return load_config("reading", environment={}, overrides=[f"state.dir={tmp_path}", f"bootstrap.servers={bootstrap}"])


def wanted(begin: str = "earliest", until: str | None = None, *partitions: int, **more: Any) -> ConsumeOptions:
    options: dict[str, Any] = {"most": None, "isolation_level": "read_committed", "format_": "text", "follow": False}
    return wanted_of(begin, until, partitions, **{**options, **more})


def lines(app: App, config: Config, name: str, how: ConsumeOptions | None = None) -> list[str]:
    out = io.StringIO()
    count = consume(app, config, [name], how or wanted(), out)
    found = out.getvalue().splitlines()
    assert count == len([line for line in found if not line.startswith(" ")])
    return found


def write(log: Log, topic: str, *records: Any) -> None:
    with closing(log.producer()) as producer:
        for key, value, at, headers, partition in records:
            producer.produce(topic, key, value, timestamp_ms=at, headers=headers, partition=partition)
        producer.flush()


def test_records_are_lines_with_place_time_key_value_and_headers(log: Log, topic: str, config: Config) -> None:
    app = application(topic)
    write(
        log, topic,
        (b"ada", b'{"n":  1}', 1_367_409_600_123, [("via", b"x"), ("none", None), ("raw", b"\xff")], 0),
        (b"\xff", None, 5, [], 0),
        (None, b"half {", 5, [], 1),
        (b"a\x1b[31m\nb", b'""', 5, [], 1),
    )  # fmt: skip
    write(log, f"{topic}-numbers", ((-7).to_bytes(8, "big", signed=True), serdes.float64.serialize(1.5), 5, [], 0))
    write(log, f"{topic}-other", (b"text", b"\x00\xff", 5, [], 0))
    early = "1970-01-01T00:00:00.005Z"
    assert lines(app, config, topic, wanted("earliest", None, 0)) == [
        f'{topic}-0:0  2013-05-01T12:00:00.123Z  ada  {{"n":  1}}  via=x  none=(none)  raw=base64:/w==',
        f"{topic}-0:1  {early}  base64:/w==  (deleted)",
    ]
    assert lines(app, config, topic, wanted("earliest", None, 1)) == [
        f"{topic}-1:0  {early}  (no key)  half {{",
        rf'{topic}-1:1  {early}  a\x1b[31m\nb  ""',
    ]
    assert lines(app, config, f"{topic}-numbers") == [f"{topic}-numbers-0:0  {early}  -7  1.5"]
    assert lines(app, config, f"{topic}-other") == [f"{topic}-other-0:0  {early}  text  base64:AP8="]


def test_what_is_written_as_json_lines_can_be_written_again(log: Log, topic: str, config: Config) -> None:
    app = App("reading")
    for name in (topic, f"{topic}-copy"):
        app.table(app.topic(name, key=serdes.string, value=serdes.json))
    write(
        log, topic,
        (b"a", b'{"n":12345678901234567890123,"x":1.5}', 5, [("h", b"x"), ("h", None), ("r", b"\xff")], 0),
        (b"a", None, 6, [], 1),
        (b"", b"null", 7, [], 1),
        (b"\xff\xfe", b"no JSON", 8, [], 0),
        (None, b'{"n":\r\n 1}', 9, [], 0),
    )  # fmt: skip
    given = lines(app, config, topic, wanted(format_="jsonl"))
    assert json.loads(given[0])["topic"] == topic
    done = produce(app, config, f"{topic}-copy", (), terms_of("jsonl", "stop", None, [], None), given)
    assert done.records == 5
    with closing(log.consumer()) as consumer:
        consumer.assign({TopicPartition(name, n): 0 for name in (topic, f"{topic}-copy") for n in range(2)})
        found: list[Any] = []
        while len(found) < 10:
            found += consumer.poll(100, 1.0)
    first, second = ([r[1:] for r in sorted(found) if r.topic == name] for name in (topic, f"{topic}-copy"))
    assert first == second


def test_what_is_read_begins_and_ends_where_it_is_said(log: Log, topic: str, config: Config) -> None:
    now_ms = time.time_ns() // 1_000_000
    times = [now_ms - HOUR_MS, now_ms - HOUR_MS // 2, now_ms - 60_000, now_ms]
    write(log, topic, *((b"k", b"%d" % n, at, [], 0) for n, at in enumerate(times)))
    app, half = application(topic), f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(times[1] // 1000))}Z"
    for how, offsets in [
        (wanted(), [0, 1, 2, 3]),
        (wanted("latest"), []),
        (wanted("2"), [2, 3]),
        (wanted("9"), []),
        (wanted("-45m"), [1, 2, 3]),
        (wanted("-2h", "-5m"), [0, 1]),
        (wanted(half), [1, 2, 3]),
        (wanted("1", "3"), [1, 2]),
        (wanted("earliest", None, 1), []),
        (wanted(most=2), [0, 1]),
        (wanted(most=0), []),
    ]:
        said = [int(line.split()[0].rpartition(":")[2]) for line in lines(app, config, topic, how)]
        assert said == offsets, how


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"begin": "soon"}, "--from 'soon': earliest, latest, an offset"),
        ({"begin": "-5"}, "--from '-5': earliest"),
        ({"until": "2013-05-01T12:00:00"}, "--to '2013-05-01T12:00:00': earliest"),
        ({"isolation_level": "committed"}, "--isolation-level 'committed': read_committed or read_uncommitted"),
        ({"format_": "csv"}, "--format 'csv': text or jsonl"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        wanted(**given)


def test_unknown_topics_and_partitions_are_refused_with_those_that_there_are(
    log: Log, topic: str, config: Config
) -> None:
    with pytest.raises(DoesNotExistError, match=f"no topic 'cats'. There are: .*{topic}, {topic}-copy"):
        lines(application(topic), config, "cats")
    with pytest.raises(InvalidArgumentError, match=f"--partition 2: {topic} has 2, numbered from 0 on"):
        lines(application(topic), config, topic, wanted("earliest", None, 2))


def test_without_a_log_nothing_is_made(tmp_path: Path) -> None:
    config = load_config("reading", environment={}, overrides=[f"state.dir={tmp_path / 'none'}"])
    with pytest.raises(DoesNotExistError, match="no topic 'people': embedded"):
        lines(application(), config, "people")
    assert not (tmp_path / "none").exists()


def test_open_transactions_are_seen_by_those_who_ask_for_them_alone(log: Log, topic: str, config: Config) -> None:
    app = application(topic)
    with closing(log.producer(f"t-{topic}")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(topic, b"a", b"1", timestamp_ms=5, partition=0)
        producer.flush()
        assert lines(app, config, topic) == []
        assert len(lines(app, config, topic, wanted(isolation_level="read_uncommitted"))) == 1
        producer.commit_transaction()
    eventually(lambda: len(lines(app, config, topic)) == 1, "the broker has written the transaction's end")


@on_one_log("embedded", "records are alike on both, as the first test has them")
def test_dead_letters_say_where_they_come_from_and_why(log: Log, topic: str, config: Config, tmp_path: Path) -> None:
    dead = f"{topic}-other"
    app = App(f"reading-{topic}")
    source = app.topic(topic, key=serdes.string, value=serdes.json)
    settings = {"errors__dead__letter__queue__topic__name": dead, "processing__exception__handler": "dead-letter"}
    settings |= {"deserialization__exception__handler": "dead-letter", "bootstrap__servers": config.bootstrap_servers}

    @app.process(source)
    def divide(record: InputRecord) -> None:
        1 / record.value["n"]

    own = configured(app, tmp_path / "state", **settings)
    assert topics_of(own, (), dead_letters=True) == [dead]
    write(log, topic, (b"a", b'{"n":0}', 5, [("via", b"x")], 0), (b"b", b'{"n":1}', 6, [], 0), (b"c", b"{", 7, [], 0))
    with running(app, own, log):
        eventually(lambda: len(lines(app, own, dead)) == 4, "both are there")
    assert lines(app, own, dead) == [
        f'{dead}-0:0  1970-01-01T00:00:00.005Z  a  {{"n":0}}  via=x',
        f"    of {topic}-0:0, left out for ZeroDivisionError: division by zero",
        f"{dead}-0:1  1970-01-01T00:00:00.007Z  c  {{",
        f"    of {topic}-0:2, left out for InvalidArgumentError: b'{{' is not JSON that can be read: "
        "unexpected end of data: line 1 column 2 (char 1).",
    ]
    letter = json.loads(lines(app, own, dead, wanted(format_="jsonl"))[0])
    assert letter["dead_letter"] == {
        "exception": "ZeroDivisionError", "message": "division by zero", "topic": topic, "partition": 0, "offset": 0,
    }  # fmt: skip
    with closing(log.admin()) as admin:
        assert admin.committed("reading", [TopicPartition(dead, 0)]) == {}


def test_changelogs_have_the_types_of_their_stores(tmp_path: Path) -> None:
    app, text = App("kept"), serdes.string
    rows = app.stream("rows", key=text, value=text)
    grouped, minute = rows.group_by_key(), timedelta(minutes=1)
    grouped.count("counts")
    grouped.windowed_by(TumblingWindows(minute)).count("windows")
    grouped.windowed_by(SessionWindows(minute)).count("sessions")
    rows.left_join(rows, lambda one, other: one, within=JoinWindows(minute), store="j").to("pairs")
    rows.to_table("newest", versioned=minute)
    table = app.ktable(app.table("prices", key=text, value=serdes.json))
    table.suppress(until_time_limit(minute), name="waiting").to_stream().to("calm")
    scene = Scene(app, tmp_path, 1, {"bootstrap.servers": f"embedded:{tmp_path / 'log.db'}"})
    scene.send("rows", [("k", "v", 120_000)])
    scene.send("prices", [("p", '{"n": 1}', 5)])
    scene.work_off()
    shown = {
        store: [
            (found["key"], found["value"])
            for found in map(json.loads, lines(app, scene.config, f"kept-{store}-changelog", wanted(format_="jsonl")))
        ]
        for store in ("counts", "windows", "sessions", "j-this-join-store", "newest", "waiting-store")
    }
    ((_, waiting),) = shown.pop("waiting-store")
    assert (waiting["new"], waiting["topic"], waiting["time_ms"]) == ({"n": 1}, "prices", 5)
    assert shown == {
        "counts": [("k", 1)],
        "windows": [(["k", 120_000], 1)],
        "sessions": [(["k", 120_000, 120_000], 1)],
        "j-this-join-store": [(["k", 120_000], "v")],
        "newest": [("k", "v")],
    }


def test_dead_letters_are_asked_for_alone_and_only_where_there_are_any(config: Config) -> None:
    for names, dead_letters, said in (
        ([], False, "Name a topic, or ask for --dead-letters"),
        (["people"], True, "leave 'people' out"),
        ([], True, "errors.dead.letter.queue.topic.name is not set"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            topics_of(config, names, dead_letters=dead_letters)


# --- The command itself

APPLICATION = """
from stateline import App, serdes

app = App("reading")
app.table(app.topic("people", key=serdes.string, value=serdes.json))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people_of_the_cli_tests.py").write_text(APPLICATION)
    config = load_config("reading", environment={}, overrides=["state.dir=.stateline"])
    from stateline.deployment.configured_log import configured_log

    with closing(configured_log(config)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("people", 1)])
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [str(SCRIPT), arguments[0], "people_of_the_cli_tests:app", *arguments[1:]]


def test_it_follows_until_it_is_interrupted_and_ends_well(project: Path) -> None:
    process = subprocess.Popen(
        command("consume", "people", "--follow", "--from", "-1h"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # the shell's & has it ignored
    )
    assert process.stdout is not None
    for n in range(2):
        Path("more.tsv").write_text(f"k\t{n}\n")
        done = subprocess.run(command("produce", "people", "more.tsv"), capture_output=True, text=True, check=True)
        assert "Written to people: 1 record, 1 partition" in done.stderr
        assert process.stdout.readline().endswith(f"  k  {n}\n")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=HANGING_S)
    assert (process.returncode, out, said) == (0, "", "")


def test_a_closed_pipe_ends_it_quietly(project: Path) -> None:
    Path("many.tsv").write_text("".join(f"k{n}\t{n}\n" for n in range(20_000)))
    subprocess.run(command("produce", "people", "many.tsv"), capture_output=True, check=True)
    process = subprocess.Popen(command("consume", "people"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().endswith("  k0  0\n")
    process.stdout.close()
    assert (process.stderr.read(), process.wait(HANGING_S)) == ("", 0)
    process.stderr.close()
