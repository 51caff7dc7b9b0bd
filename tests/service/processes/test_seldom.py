"""Lines that a stranger can cause: how many of them are logged."""

from __future__ import annotations

import logging
from uuid import uuid4

import pytest

from stateline.processes import seldom as module
from stateline.processes.seldom import Seldom, seldom


@pytest.fixture
def long_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINE_INTERVAL_S", "SAME_LINE_INTERVAL_S"):
        monkeypatch.setattr(module, name, 1e9)


def test_one_line_a_second_passes_and_the_same_one_once_a_minute() -> None:
    now_s = 100.0
    lines = Seldom(lambda: now_s)
    assert [lines.line("a"), lines.line("a"), lines.line("b")] == ["a", "", ""]
    now_s = 101.0
    assert lines.line("a") == ""
    assert lines.line("b") == "b (3 more lines were left out before)"
    now_s = 150.0
    assert lines.line("b") == ""
    assert lines.line("b", "of another cause") == "b (1 more lines were left out before)"
    now_s = 210.0
    assert lines.line("b", "of another cause") == "b"


def test_a_logger_leaves_out_what_comes_too_often_and_keeps_what_is_for_debugging(
    caplog: pytest.LogCaptureFixture, long_intervals: None
) -> None:
    name = f"of this test {uuid4()}"
    log = seldom(name)
    assert seldom(name) is log
    with caplog.at_level(logging.DEBUG):
        for number in range(5):
            log.info("request %d was refused", number)
            log.debug("request %d", number)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == [
        "request 0 was refused"
    ]
    assert len(caplog.records) == 6


def test_lines_of_different_kinds_and_of_different_defects_do_not_hide_each_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL_S", 0.0)
    log = seldom(f"of this test {uuid4()}")
    for _ in range(3):
        log.warning("started")
        try:
            int("x")
        except ValueError:
            log.exception("a request failed")
        try:
            float("x")
        except ValueError:
            log.exception("a request failed")
    said = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert said == ["started", *["a request failed"] * 6]
