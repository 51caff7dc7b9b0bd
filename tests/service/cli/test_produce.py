"""Lines of text become records of a topic's types."""

from contextlib import closing
from pathlib import Path

import pytest

from stateline import serdes
from stateline.cli.produce import most_bytes, produce
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.log import NewTopic
from stateline_store import DoesNotExistError, InvalidArgumentError, TopicPartition


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


def read(config: Config) -> list[tuple[bytes | None, bytes | None]]:
    with closing(configured_log(config)) as log, closing(log.consumer()) as consumer:
        consumer.assign({TopicPartition("people", 0): 0})
        return [(record.key, record.value) for record in consumer.poll(100, 0.5)]


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
