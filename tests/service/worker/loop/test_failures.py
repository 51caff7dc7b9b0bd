"""What is said of a record that fails, and what a processor may raise."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import pytest

from stateline import serdes
from stateline.dsl.app import App
from stateline.log import Record
from stateline.log.embedded import EmbeddedLog
from stateline.processing.failures import failure
from stateline.worker.loop.worker import Worker
from stateline_store import InvalidArgumentError, RecordError
from support.processes.running_worker import configured, create, eventually, produce, read_all, running

RECORD = Record("lines", 2, 7, 0, b"k", b"v")


def raised(error: BaseException) -> Any:
    """The error with the traceback that raising it gives."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - it is the point
        return caught


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("two\n  lines\n"), "ValueError: two lines (/"),
        (ValueError(), "ValueError: no message (/"),
        (SystemExit(3), "SystemExit: 3 (/"),
        (InvalidArgumentError("5 is not a string."), "InvalidArgumentError: 5 is not a string."),
    ],
)
def test_a_failure_is_one_line_with_one_full_stop(error: BaseException, said: str) -> None:
    text = failure(RECORD, "Reading", raised(error))
    assert text.startswith(f"Reading failed on lines-2 offset 7 key b'k': {said}")
    assert "\n" not in text
    assert text.endswith(".")
    assert not text.endswith("..")


def leaving_application(policy: str, state_dir: Path) -> tuple[App, Any]:
    app = App("leaving")
    lines = app.topic("lines", key=serdes.string, value=serdes.string)
    bad = app.topic("bad", key=serdes.string, value=serdes.string)

    @app.process(lines, forwards=[bad])
    def leave(record: Any, bad: Any) -> None:
        if record.value == "leave":
            raise SystemExit
        bad.forward(record.key, record.value)

    settings = {"processing__exception__handler": policy, "errors__dead__letter__queue__topic__name": "bad"}
    return app, configured(app, state_dir, **settings)


def test_a_processor_that_exits_is_one_that_raises(tmp_path: Path) -> None:
    app, config = leaving_application("fail", tmp_path)
    log = EmbeddedLog(tmp_path / "log.db")
    create(log, {"lines": 1, "bad": 1})
    produce(log, "lines", [(b"a", b"stay", 0), (b"b", b"leave", 0)])
    with pytest.raises(RecordError, match=r"'leave' failed on lines-0 offset 1 key b'b': SystemExit: no message"):
        Worker(app, config, log, instance="worker-0").run()


def test_a_function_that_turns_out_to_have_run_nothing_is_one_that_raises(tmp_path: Path) -> None:
    app = App("lazy")
    lines = app.topic("lines", key=serdes.string, value=serdes.string)

    async def never_run(record: Any) -> None: ...

    @app.process(lines)
    @functools.wraps(never_run)
    def logged(*given: Any) -> Any:  # decorated, it does not look async
        return never_run(*given)

    log = EmbeddedLog(tmp_path / "log.db")
    create(log, {"lines": 1})
    produce(log, "lines", [(b"a", b"1", 0)])
    with pytest.raises(
        RecordError, match=r"'never_run' failed on lines-0 offset 0 .* a coroutine, and nothing runs it"
    ):
        Worker(app, configured(app, tmp_path), log, instance="worker-0").run()


def test_what_exits_is_left_out_under_the_policies_that_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app, config = leaving_application("dead-letter", tmp_path)
    log = EmbeddedLog(tmp_path / "log.db")
    create(log, {"lines": 1, "bad": 1})
    produce(log, "lines", [(b"b", b"leave", 0), (b"a", b"stay", 0)])
    with caplog.at_level(logging.WARNING), running(app, config, log):
        eventually(lambda: len(read_all(log, "bad", 1)) == 2, "both records arrive")
    letter = next(record for record in read_all(log, "bad", 1) if record.value == b"leave")
    assert dict(letter.headers)["__streams.errors.exception"] == b"SystemExit"
    assert "SystemExit: no message" in caplog.text
