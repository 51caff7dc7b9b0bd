"""Lines of text become records of a topic's types."""

import io
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stateline import serdes
from stateline.cli.progress import Progress
from stateline.cli.records.produce import ProduceOptions, most_bytes, terms_of
from stateline.cli.records.produce import produce as produce_records
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.log import NewTopic, Record
from stateline_store import DoesNotExistError, InvalidArgumentError
from support.processes.running_worker import read_all


def application() -> App:
    app = App("lines")
    app.table("people", key=serdes.string, value=serdes.json)
    return app


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = load_config("lines", environment={}, overrides=[f"state.dir={tmp_path}"])
    with closing(configured_log(made)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("people", 1)])
    return made


def produce(app: App, config: Config, topic: str, lines: list[str], terms: ProduceOptions = ProduceOptions()) -> str:  # noqa: B008  # frozen
    """Lines of standard input; the position."""
    return produce_records(app, config, topic, (), terms, lines).position


def read(config: Config) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in written(config)]


def test_a_line_is_a_record_and_what_comes_back_is_the_position_to_wait_for(config: Config) -> None:
    lines = ['ada\t{"n":  1}\n', "\n", "tab\t[1,\t2]\r\n", "gone\t\n"]
    assert produce(application(), config, "people", lines) == '{"people":{"0":2}}'
    assert read(config) == [(b"ada", b'{"n":  1}'), (b"tab", b"[1,\t2]"), (b"gone", None)]


@pytest.mark.parametrize("line", ['ada {"n": 1}\n', "ada\n", " "])
def test_a_line_without_a_tab_is_refused_and_nothing_is_written(config: Config, line: str) -> None:
    said = "Line 2: no tab between key and value in .*; to delete a key write key, tab, nothing"
    with pytest.raises(InvalidArgumentError, match=said):
        produce(application(), config, "people", ["a\t1\n", line])
    assert read(config) == []


def test_no_lines_are_an_empty_position(config: Config) -> None:
    assert produce(application(), config, "people", ["\n"]) == "{}"


def test_a_line_of_another_type_is_named_and_nothing_is_written(config: Config) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Line 2, value \(json\): b'\{half' is not JSON that can be read: "):
        produce(application(), config, "people", ["a\t1", "b\t{half"])
    assert read(config) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x\t1", "Line 1, key (int64): 'x' is not an int64: decimal digits are."),
        ("1\tx", "Line 1, value (float64): 'x' is not a number."),
    ],
)
def test_what_is_wrong_with_a_line_is_said_once(config: Config, line: str, said: str) -> None:
    app = App("lines")
    app.table("people", key=serdes.int64, value=serdes.float64)
    with pytest.raises(InvalidArgumentError) as raised:
        produce(app, config, "people", [line])
    assert str(raised.value) == said


def test_a_line_that_is_too_large_is_named_and_nothing_is_written(config: Config) -> None:
    large = '"' + "x" * 1_048_588 + '"'
    with pytest.raises(
        InvalidArgumentError, match=r"Line 3: key and value have 1048591 bytes together, .* takes 1048588"
    ):
        produce(application(), config, "people", ["a\t1\n", "\n", f"b\t{large}\n"])
    assert read(config) == []
    assert produce(application(), config, "people", [f'b\t"{large[4:]}']) == '{"people":{"0":0}}'


def test_kafkas_limit_is_the_producers_own() -> None:
    kafka = {"bootstrap.servers": "localhost:9092"}
    assert (
        most_bytes(load_config("lines", environment={}, overrides=[f"{k}={v}" for k, v in kafka.items()])) < 1_000_000
    )
    raised = kafka | {"producer.message.max.bytes": "5000000"}
    at_most = most_bytes(load_config("lines", environment={}, overrides=[f"{k}={v}" for k, v in raised.items()]))
    assert 4_900_000 < at_most < 5_000_000


def test_a_topic_that_the_application_does_not_read_is_refused_with_those_it_does(config: Config) -> None:
    with pytest.raises(DoesNotExistError, match="it reads people"):
        produce(application(), config, "cats", [])


# --- Files, and lines of JSON


def written(config: Config) -> list[Record]:
    with closing(configured_log(config)) as log, closing(log.admin()) as admin:
        found = read_all(log, "people", admin.topics()["people"].partitions)
        return sorted(found, key=lambda record: (record.partition, record.offset))


def file(folder: Path, name: str, *lines: str) -> str:
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return str(folder / name)


def test_files_are_written_in_their_order_and_what_came_of_it_is_said(config: Config, tmp_path: Path) -> None:
    one, two = file(tmp_path, "one.tsv", "a\t1", "b\t2"), file(tmp_path, "two.tsv", "a\t3")
    found = produce_records(application(), config, "people", [one, "-", two], standard_input=["c\t9\n"])
    assert read(config) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"9"), (b"a", b"3")]
    assert found.position == '{"people":{"0":3}}'
    assert re.fullmatch(r"Written to people: 4 records, 1 partition, \d+\.\d s\.", found.summary("people"))


def test_what_is_said_of_all_records_goes_before_what_none_says_itself(config: Config) -> None:
    terms = terms_of("jsonl", "stop", "2013-05-01T12:00:00Z", ["via=test", "empty="], 0)
    lines = [
        '{"key": "a", "value": {"n": 1}}',
        '{"key": "b", "value": null, "timestamp": 7, "headers": [["own", "x"], ["own", null], '
        '["raw", {"base64": "/w=="}]]}',
        '{"key": "c", "value": [1], "timestamp": "1970-01-01T00:00:01+00:00", "headers": {"h": "y"}, "partition": 0}',
        '{"key": "d", "value_base64": "bnVsbA==", "topic": "other", "offset": 3, "dead_letter": {}}',
    ]
    assert produce(application(), config, "people", lines, terms) == '{"people":{"0":3}}'
    every = [("via", b"test"), ("empty", b"")]
    assert [(r.key, r.value, r.timestamp_ms, list(r.headers)) for r in written(config)] == [
        (b"a", b'{"n":1}', 1_367_409_600_000, every),
        (b"b", None, 7, [*every, ("own", b"x"), ("own", None), ("raw", b"\xff")]),
        (b"c", b"[1]", 1_000, [*every, ("h", b"y")]),
        (b"d", b"null", 1_367_409_600_000, every),
    ]


WRONG = [
    ("no JSON", "'no JSON' is not JSON"),
    ("[1]", "'[1]' is no JSON object"),
    ('{"kee": 1}', "'kee' is no member of a record: key, value"),
    ('{"partition": 0}', "has neither key nor value"),
    ('{"key": 7, "value": 1}', "key (string): 7 is not a string"),
    ('{"key": "a", "value": 1, "value_base64": ""}', "value and value_base64 are both given"),
    ('{"key": "a", "value_base64": "?"}', "value_base64: '?' is not base64"),
    ('{"key": "a", "value": 1, "timestamp": "2013-05-01"}', "timestamp: '2013-05-01' has no zone"),
    ('{"key": "a", "value": 1, "timestamp": -5}', "timestamp: -5 is not a number of milliseconds"),
    ('{"key": "a", "value": 1, "headers": ["x"]}', "headers: ['x'] is neither an object nor a list"),
    ('{"key": "a", "value": 1, "headers": {"x": 1}}', "header 'x': 1 is neither text nor null"),
    ('{"key": "a", "value": 1, "partition": "0"}', "partition: '0' is not the number of a partition"),
    ('{"key": "a", "value": 1, "partition": 4}', "people has no partition 4: it has 1"),
    ('{"key": "a\udcff", "value": 1}', "is not JSON"),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_a_wrong_line_is_named_with_its_file_and_either_stops_all_or_is_left_out(
    config: Config, tmp_path: Path, line: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_bytes(f'{{"key": "z", "value": 0}}\n\n{line}\n'.encode(errors="surrogateescape"))
    with pytest.raises(InvalidArgumentError) as raised:
        produce_records(application(), config, "people", [str(path)], terms_of("jsonl", "stop", None, [], None))
    assert re.match(rf"{path} line 3[:,] .*{re.escape(said)}", str(raised.value)), raised.value
    assert written(config) == []
    found = produce_records(application(), config, "people", [str(path)], terms_of("jsonl", "skip", None, [], None))
    assert [record.key for record in written(config)] == [b"z"]
    assert (found.records, found.left_out) == (1, 1)
    assert "; 1 lines left out." in found.summary("people")
    assert caplog.text.count("Left out: ") == 1
    assert said in caplog.text


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        (0, "csv", "--format 'csv': text or jsonl is accepted"),
        (1, "go", "--on-error 'go': stop or skip is accepted"),
        (2, "soon", "--timestamp: 'soon' is neither a number nor a time of ISO 8601"),
        (3, ["novalue"], "--header 'novalue': NAME=VALUE is accepted"),
    ],
)
def test_a_wrong_option_is_named(option: int, given: Any, said: str) -> None:
    options: list[Any] = ["text", "stop", None, [], None]
    options[option] = given
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        terms_of(*options)


def test_a_partition_that_there_is_not_is_refused_before_anything_is_written(config: Config) -> None:
    with pytest.raises(InvalidArgumentError, match="Line 1: people has no partition 1: it has 1"):
        produce(application(), config, "people", ["a\t1\n"], ProduceOptions(partition=1))
    assert written(config) == []


def test_a_file_that_cannot_be_read_is_named(config: Config, tmp_path: Path) -> None:
    for path in (tmp_path / "none.tsv", tmp_path):
        with pytest.raises(InvalidArgumentError, match=f"{path} cannot be read: "):
            produce_records(application(), config, "people", [str(path)])
    with pytest.raises(InvalidArgumentError, match="named twice"):
        produce_records(application(), config, "people", ["-", "-"])


def test_progress_is_a_line_that_is_written_over_on_a_terminal_alone() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        progress = Progress(stream, "Writing", 200)
        progress.show(1_000, 100)
        progress.show(1_001, 101)  # too soon
        progress.close()
    assert pipe.getvalue() == ""
    shown = "Writing [##########          ]  50% 1,000 records"
    assert terminal.getvalue() == f"\r{shown}\r{' ' * len(shown)}\r"
