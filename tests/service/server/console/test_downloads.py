"""Files of a store's rows, as the console's page makes them, in a real Chromium over a real server."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from support.apps.console_app import LARGE, START_MS, aircraft_records
from support.console.console_browser import Flights
from support.console.console_page import Console
from support.console.told import stream
from support.processes.running_worker import eventually

if TYPE_CHECKING:
    pass

Served = tuple[Flights, str]
pytestmark = pytest.mark.usefixtures("unrouted")


def show(page: Console, address: str) -> None:
    page.visit(f"stores/{address}")
    page.page.locator(".tabulator-row").first.wait_for()


def downloaded(page: Console, button: str) -> bytes:
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name=button).click()
    path: Path = download.value.path()
    return path.read_bytes()


def csv_of(page: Console) -> list[list[str]]:
    return list(csv.reader(io.StringIO(downloaded(page, "CSV of all rows").decode(), newline="")))


def grid(page: Console) -> list[list[str]]:
    """What the grid shows, its heading first."""
    rows: list[list[str]] = page.page.locator(".tabulator-row").evaluate_all(
        "all => all.map((row) => [...row.querySelectorAll('.tabulator-cell')].map((cell) => cell.textContent))"
    )
    headings = page.page.locator(".sorts").all_text_contents()
    return [[heading.rstrip(" ▲▼") for heading in headings], *rows]


def entry(key: str, n: int, text: str) -> dict[str, Any]:
    return {"key": key, "value": {"n": n, "text": text}, "timestamp": START_MS}


# Texts that programs which read tables trip over, with numbers beyond those of JavaScript.
ROWS = [
    entry("plain", 2, "x"),
    entry("quoted", LARGE, 'a "b", c;'),
    entry("lines", -LARGE, "one\ntwo\r\nthree"),
    entry("larger", LARGE + 1, "y"),
    entry("spaces", 10, "  x  "),
]


def test_csv_has_a_header_and_every_row(page: Console) -> None:
    show(page, "aircraft?prefix=N&limit=2")
    rows = csv_of(page)
    assert rows[0] == ["key", "seats", "carrier", "timestamp"]
    assert [row[0] for row in rows[1:]] == [key.decode() for key, _, _ in aircraft_records(60)]
    assert rows[1] == ["N000", "50", "UA", "2013-02-27T21:00:00.000Z"]


def test_csv_is_what_the_grid_shows_of_all_rows(page: Console) -> None:
    """Found, sorted, with the columns that were chosen; not only of the page that is seen."""
    show(page, "aircraft?prefix=N&rows=all&find=n00&sort=-seats&columns=seats,key")
    page.page.get_by_text("10 of 60 rows").wait_for()
    expected = [["key", "seats"], *([f"N00{n}", str(50 + n)] for n in range(9, -1, -1))]
    eventually(lambda: grid(page) == expected, "the grid shows them")
    assert csv_of(page) == expected
    show(page, "aircraft?prefix=N&limit=2&find=n00&sort=-seats&columns=seats,key")
    assert csv_of(page) == expected


def test_csv_quotes_and_keeps_every_digit(page: Console) -> None:
    stream(page.page, "aircraft", ROWS)
    show(page, "aircraft?rows=all&sort=n&columns=key,n,text")
    told = [[row["key"], str(row["value"]["n"]), row["value"]["text"]] for row in sorted(ROWS, key=by_number)]
    assert csv_of(page) == [["key", "n", "text"], *told]
    eventually(lambda: grid(page) == [["key", "n", "text"], *told], "the grid shows the same")


def by_number(row: dict[str, Any]) -> int:
    number: int = row["value"]["n"]
    return number


def test_csv_never_holds_a_formula(page: Console) -> None:
    """A text that a spreadsheet would calculate has a quote before it; numbers below nought are numbers."""
    texts = ["=1+2", "+1", "-1", "@x", "\tx", "1=1", "plain"]
    stream(page.page, "aircraft", [{"key": text, "value": {"=n": -LARGE}, "timestamp": None} for text in texts])
    show(page, "aircraft?prefix=N")
    rows = csv_of(page)
    assert rows[0] == ["key", "'=n"]
    assert [row[0] for row in rows[1:]] == ["'=1+2", "'+1", "'-1", "'@x", "'\tx", *texts[5:]]
    assert {row[1] for row in rows[1:]} == {str(-LARGE)}


def test_csv_ends_its_lines_as_the_standard_says_and_is_utf_8(page: Console) -> None:
    stream(page.page, "aircraft", [entry("Zürich", 1, "✈")])
    show(page, f"aircraft?prefix=N&columns={quote('key,text')}")
    assert downloaded(page, "CSV of all rows") == "key,text\r\nZürich,✈\r\n".encode()


def test_arrow_is_the_servers_own_stream(page: Console) -> None:
    show(page, "aircraft?prefix=N&limit=2")
    table = pa.ipc.open_stream(downloaded(page, "Arrow of all rows")).read_all()
    assert table.num_rows == 60
    assert table["timestamp"][0].as_py() is not None
