"""What the demo prints, on a terminal and into a file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flights.screen import Screen, ranking_line


def _screen(*, terminal: bool) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(Console(file=out, force_terminal=terminal, width=60, highlight=False)), out


def test_a_request_longer_than_the_terminal_is_printed_in_one_piece() -> None:
    for terminal in (True, False):
        screen, out = _screen(terminal=terminal)
        curl = f"curl -s http://127.0.0.1:8000/v1/stores/aircraft/keys/{'N' * 100}"
        screen.request(curl, '{"found":[false]}')
        assert curl in out.getvalue()
        assert '  {"found":[false]}\n' in out.getvalue()


def test_progress_in_a_file_is_plain_lines_and_the_last_one_is_complete() -> None:
    screen, out = _screen(terminal=False)
    with screen.bars({"written": 2000, "worker": 2000}) as bars:
        for done in range(2001):
            bars.set("written", done)
            bars.set("worker", done)
    assert out.getvalue() == "  written 2,000 of 2,000, worker 2,000 of 2,000\n"


def test_progress_that_has_not_moved_is_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flights.screen._PLAIN_INTERVAL_S", 0.0)
    screen, out = _screen(terminal=False)
    with screen.bars({"Spark": 2000}) as bars:
        for done in (0, 0, 0, 2000, 2000):
            bars.set("Spark", done)
    assert out.getvalue() == "  Spark 0 of 2,000\n  Spark 2,000 of 2,000\n"


def test_a_live_line_in_a_file_is_not_repeated_at_every_change() -> None:
    screen, out = _screen(terminal=False)
    with screen.live_line() as show:
        for number in range(100):
            show(f"{number} departures")
    assert out.getvalue() == "0 departures\n"


def test_a_place_of_the_ranking_is_a_line_of_what_was_counted() -> None:
    row = {"airport": "LGA", "airport_name": "La Guardia", "carrier": "F9", "airline": "Frontier Airlines Inc."}
    line = ranking_line(1, {**row, "flights": 1_643, "minutes": 34_913, "mean": 34_913 / 1_643})
    assert line == " 1. LGA F9  21.25 min,  1,643 flights,  34,913 min in all  Frontier Airlines Inc., La Guardia"
