"""What the command line lets through of what librdkafka says, and its lines of JSON."""

import io
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stateline.processes.logging import (
    FIELDS,
    REPEAT_AFTER_S,
    SaidOnce,
    json_line_writer,
    last_words,
    say_error,
    use_log_format,
)
from support.processes.query_server import wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

FAILED = "FAIL [rdkafka#producer-%d] [thrd:a:1/bootstrap]: Connect to ipv4#127.0.0.1:1 failed (after %dms in state UP)"


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("stateline.kafka", logging.ERROR, __file__, 1, text, arguments, None)


def test_the_same_message_is_said_once_a_minute_whatever_its_numbers() -> None:
    now = [1000.0]
    once = SaidOnce(lambda: now[0])
    assert once.filter(record(FAILED, 1, 0))
    assert not once.filter(record(FAILED, 2, 17))
    assert once.filter(record("Authentication failed"))
    now[0] += REPEAT_AFTER_S - 0.1
    assert not once.filter(record(FAILED, 1, 3))
    now[0] += 0.1
    assert once.filter(record(FAILED, 1, 3))


def test_endlessly_many_messages_do_not_fill_the_memory() -> None:
    once = SaidOnce(lambda: 0.0)
    for number in range(3000):
        once.filter(record(f"{'x' * number}"))
    assert len(once._said) <= 1000


ORIGIN = {"node": "one", "application": "shop", "process": "worker"}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What loggers write while their format is JSON."""
    stream, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    before = {each: each.formatter for each in root.handlers}
    root.addHandler(handler)
    use_log_format("json", ORIGIN)
    yield stream
    use_log_format("text")
    root.removeHandler(handler)
    for each, formatter in before.items():
        each.setFormatter(formatter)


def test_a_line_of_json_has_everything_that_a_line_of_text_has(written: io.StringIO) -> None:
    logging.getLogger("stateline.x").warning('%s "quoted"\nsecond line, %d', "Ü", 7)
    line, end = written.getvalue().split("\n")
    found = json.loads(line)
    assert datetime.fromisoformat(found.pop("time")).tzinfo == UTC
    assert found == ORIGIN | {"level": "WARNING", "logger": "stateline.x", "message": 'Ü "quoted"\nsecond line, 7'}
    assert end == ""


def test_a_traceback_stays_on_its_line(written: io.StringIO) -> None:
    try:
        raise ValueError("no such luck")
    except ValueError:
        logging.getLogger("stateline.x").exception("Failed")
    (line,) = written.getvalue().splitlines()
    assert "ValueError: no such luck" in json.loads(line)["error"]


def test_half_a_character_does_not_end_the_log(written: io.StringIO) -> None:
    logging.getLogger("stateline.x").warning("%s cannot be read", os.fsdecode(b"\xff.toml"))
    assert json.loads(written.getvalue())["message"] == "\\udcff.toml cannot be read"


def test_the_last_line_of_a_process_is_json_too_and_is_understood(written: io.StringIO) -> None:
    say_error("There is no topic.")
    assert json.loads(written.getvalue())["level"] == "CRITICAL"
    assert last_words(written.getvalue().strip()) == "There is no topic."
    assert last_words("error: There is no topic.") == "There is no topic."
    assert last_words("killed") == "killed"
    assert last_words("[1]") == "[1]"


def test_fields_of_a_record_become_members_of_its_line(written: io.StringIO) -> None:
    logging.getLogger("stateline.access").warning("GET", extra={FIELDS: {"status": 200, "ms": 0.4}})
    found = json.loads(written.getvalue())
    assert (found["message"], found["status"], found["ms"]) == ("GET", 200, 0.4)


def test_warnings_of_python_and_failures_of_threads_are_lines_of_json(written: io.StringIO) -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    thread = threading.Thread(target=fail, name="feeder")
    thread.start()
    thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)  # pytest's own recorder took the place
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    failed, warned = (json.loads(line) for line in written.getvalue().splitlines())
    assert (failed["message"], failed["level"]) == ("Thread feeder failed", "CRITICAL")
    assert "ValueError: no such luck" in failed["error"]
    assert (warned["logger"], "old" in warned["message"]) == ("py.warnings", True)


@pytest.mark.parametrize(
    ("line", "passed_on"),
    [
        ('{"level":"DEBUG","node":"two","message":"hello"}', {"level": "DEBUG", "node": "two", "message": "hello"}),
        ("26/11/21 WARN Spark: hello", {"message": "26/11/21 WARN Spark: hello"}),
        ("7", {"message": "7"}),
        ("", {"message": ""}),
    ],
)
def test_what_a_process_says_is_passed_on_as_json_with_its_name(
    line: str, passed_on: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    json_line_writer(ORIGIN)("w", line)
    found = json.loads(capsys.readouterr().out)
    assert datetime.fromisoformat(found.pop("time")).tzinfo == UTC
    passed_on = ORIGIN | {"level": "INFO"} | passed_on
    assert found == passed_on | {"process": "w"}


def test_a_whole_application_logs_json_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "lacking.py").write_text(
        "from stateline import App, serdes\n"
        "app = App('lacking', config={'log.format': 'json', 'server.port': 0})\n"
        "app.table(app.topic('nowhere', key=serdes.string, value=serdes.string), store='kept')\n"
    )
    command = [sys.executable, "-m", "stateline", "run", "lacking:app"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANGING_S, check=False)
    assert ended.returncode == 2
    said = [json.loads(line) for line in [*ended.stdout.splitlines(), *ended.stderr.splitlines()]]
    assert all({"time", "level", "node", "application", "process", "message"} <= set(line) for line in said)
    assert {line["application"] for line in said} == {"lacking"}
    (last,) = [line for line in said if line.get("process") == "worker-0" and line.get("level") == "CRITICAL"]
    assert last["message"].startswith("Missing source topic: nowhere")
    assert said[-1]["message"].startswith("worker-0 cannot run: Missing source topic: nowhere")


NOISY = """
import os, sys, threading, warnings
from stateline import App, serdes
warnings.warn("noisy import")
app = App("noisy", config={"log.format": "json", "server.port": 0, "server.processes": PROCESSES})
app.table(app.topic("things", key=serdes.string, value=serdes.string), store="kept")
if any(word in ("worker", "--process", "--listener") for word in sys.argv):
    os.write(2, b"text of a library\\n")
    threading.Thread(target=lambda: 1 / 0).start()
    class Late:
        def __del__(self): raise ValueError("too late")
    Late()
"""


@pytest.mark.parametrize(
    ("command", "processes", "names"),
    [
        ("run", 1, {"run", "stateline", "worker-0", "server"}),
        pytest.param(
            *("serve", 2, {"serve", "server-0", "server-1"}), marks=long_only("`stateline run` starts a server, too")
        ),
    ],
)
def test_every_line_of_several_processes_is_json_whoever_writes_it(
    tmp_path: Path, command: str, processes: int, names: set[str]
) -> None:
    """Imports that warn, libraries that write text, threads and finalizers that fail."""
    (tmp_path / "noisy.py").write_text(NOISY.replace("PROCESSES", str(processes)))
    stateline = [sys.executable, "-m", "stateline"]
    environment = {**os.environ, "STATELINE_LOG_FORMAT": "json"}
    subprocess.run([*stateline, "topics", "noisy:app", "--create"], cwd=tmp_path, check=True, capture_output=True)
    log, children = tmp_path / "log", names - {command, "stateline"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*stateline, command, "noisy:app"], cwd=tmp_path, env=environment, stdout=output, stderr=output
        )
    try:
        wait_until(lambda: process.poll() is not None or tell(log, "too late") >= children, HANGING_S)
        process.terminate()
        process.wait(HANGING_S)
    finally:
        process.kill()
        process.wait()
    said = lines(log)
    for line in said:
        lacks = {"time", "level", "node", "application", "process", "message"} - set(line)
        early = "noisy import" in line["message"] and line["process"] == command
        assert not lacks or (early and lacks == {"node", "application"}), line
    assert {line["process"] for line in said} == names
    for text in ("text of a library", "too late", "ZeroDivisionError", "noisy import"):
        assert tell(log, text) >= children, text


def tell(log: Path, text: str) -> set[str]:
    """The processes that have said this."""
    return {line["process"] for line in lines(log) if text in line["message"] + line.get("error", "")}


def lines(log: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]]
