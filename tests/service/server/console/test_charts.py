"""Charts of the console in a real Chromium: what is drawn, what is zoomed to, what is said of the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from support.apps.console_app import HOUR_MS, LARGE, START_MS
from support.console.canvas import coloured, shade_at
from support.console.console_browser import Flights
from support.console.console_page import Console, console, query_of
from support.console.told import stream
from support.run.length import long_only

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

Served = tuple[Flights, str]
pytestmark = pytest.mark.usefixtures("unrouted")


@pytest.fixture(scope="module")
def in_utc(browser: Browser, served: Served) -> Iterator[Console]:
    with console(browser, f"{served[1]}/stores", "main h1", timezone_id="UTC") as opened:
        yield opened


def window(key: str, hour: float, value: Any) -> Mapping[str, Any]:
    start = int(START_MS + hour * HOUR_MS)
    return {"key": key, "start": start, "end": start + HOUR_MS, "value": value, "timestamp": None}


def words(page: Console) -> str:
    """What the line chart says to who does not see it."""
    return page.page.locator(".plot").get_attribute("aria-label") or ""


def until_drawn(page: Console) -> Locator:
    """Rows of bars, once they are as wide as the page lets them: before that they know no time of a pixel."""
    page.page.wait_for_function("() => document.querySelector('canvas.strips')?.style.width")
    return page.page.locator("canvas.strips")


# What is drawn


def test_windows_are_a_series_per_key_and_a_heat_map_with_tables(page: Console, served: Served) -> None:
    page.visit("stores/hourly?tab=chart&number=delay.total")
    charts = page.page.locator(".chart")
    charts.locator("canvas").nth(1).wait_for()
    page.page.locator(".plot[aria-label*='EWR: ']").wait_for()
    assert re.search(r"EWR: \d+ last, between", words(page))
    with httpx.Client(base_url=served[1]) as client:
        entries = client.get("/v1/stores/hourly/windows").json()["entries"]
    charts.last.locator("summary").click()
    cells = charts.last.locator("tbody td:last-child")
    cells.nth(len(entries) - 1).wait_for()
    assert sorted(map(int, cells.all_inner_texts())) == sorted(each["value"]["delay"]["total"] for each in entries)
    page.page.get_by_text("Keys: 3 of 3").click()
    page.page.get_by_role("checkbox", name="LGA").uncheck()
    page.page.get_by_text("Keys: 2 of 3").wait_for()
    page.page.locator(".plot:not([aria-label*=LGA])").wait_for()
    assert "series" in query_of(page)


def test_a_heat_map_is_darker_where_there_is_more_and_empty_where_there_is_nothing(page: Console) -> None:
    stream(page.page, "hourly", [window("A", 0, 1), window("A", 1, 9), window("B", 3, 9)])
    page.visit("stores/hourly?tab=chart")
    strips = page.page.locator("canvas.strips[aria-label*='3 windows of 2 keys']")
    strips.wait_for()
    faint, dark, nothing, other = (
        shade_at(strips, row, eighth / 8) for row, eighth in ((0, 1), (0, 3), (0, 7), (1, 7))
    )
    assert nothing == 0 < faint < dark == other
    assert shade_at(strips, 1, 1 / 8) == 0


def test_shades_of_a_heat_map_are_said(page: Console) -> None:
    stream(page.page, "hourly", [window("A", 0, 1), window("A", 1, 5000), window("B", 3, 9)])
    page.visit("stores/hourly?tab=chart")
    page.page.locator(".shades").wait_for()
    assert page.page.locator(".shades span").all_inner_texts() == ["1", "5,000"]


def test_one_value_that_is_far_beyond_the_others_does_not_leave_them_all_faint(page: Console) -> None:
    stream(page.page, "hourly", [window("A", hour, 1_000_000 if hour == 99 else hour) for hour in range(100)])
    page.visit("stores/hourly?tab=chart")
    strips = page.page.locator("canvas.strips[aria-label*='100 windows of 1 key, from 0, faint, to 97 or more, dark']")
    strips.wait_for()
    faint, half, dark, most = (shade_at(strips, 0, (hour + 0.5) / 100) for hour in (0, 49, 97, 99))
    assert faint < half - 50 < dark - 100
    assert dark == most
    assert page.page.locator(".shades span").all_inner_texts() == ["0", "97 or more"]


def test_few_values_above_many_equal_ones_are_seen(page: Console) -> None:
    stream(page.page, "hourly", [window("A", hour, 1000 if hour == 50 else 0) for hour in range(100)])
    page.visit("stores/hourly?tab=chart")
    strips = page.page.locator("canvas.strips[aria-label*='from 0, faint, to 1,000, dark']")
    strips.wait_for()
    assert shade_at(strips, 0, 49.5 / 100) < shade_at(strips, 0, 50.5 / 100)
    assert page.page.locator(".shades span").all_inner_texts() == ["0", "1,000"]


def test_shades_of_large_integers_are_exact(page: Console) -> None:
    stream(page.page, "hourly", [window("A", n, 2**53 + n) for n in (3, 1, 2)])
    page.visit("stores/hourly?tab=chart")
    page.page.locator(
        "canvas.strips[aria-label*='from 9,007,199,254,740,993, faint, to 9,007,199,254,740,995']"
    ).wait_for()


def test_sessions_are_bars_from_their_start_to_their_end(page: Console, served: Served) -> None:
    page.visit("stores/rushes?tab=chart")
    with httpx.Client(base_url=served[1]) as client:
        count = len(client.get("/v1/stores/rushes/sessions").json()["entries"])
    strips = page.page.locator(f".strips[aria-label*='{count} sessions of 3 keys']")
    until_drawn(page)
    box = strips.bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + 112, box["y"] + 10)  # the first session of the first key
    page.page.locator(".readout", has_text="EWR · 2013-02-27 16:00:00").wait_for()


def test_versions_of_a_key_are_steps_which_hold_until_the_next_one(page: Console) -> None:
    page.visit("stores/airports?tab=chart")
    page.page.locator(".plot[aria-label*='runways: 2 last, between 2 and 4.'] canvas").wait_for()
    assert page.page.locator("#chart-key").input_value() == "JFK"
    heights = coloured(page.page.locator(".plot canvas"))  # 4 runways, 3 after the first half
    first, last = min(heights), max(heights)
    quarter, three = (first + (last - first) * part // 4 for part in (1, 3))
    assert abs(heights[quarter] - heights[first + 8]) <= 1, "it holds"
    assert heights[three] > heights[quarter] + 20, "and falls at once"
    page.page.fill("#time-to", "2013-02-27 16:00")
    page.page.get_by_role("button", name="Show").click()
    page.page.locator(".plot[aria-label*='runways: 4 last, between 4 and 4.'], .plot[aria-label*='none']").wait_for()


def test_no_line_goes_over_hours_without_windows_and_one_alone_is_a_point(page: Console) -> None:
    hours = {0: 5, 1: 5, 6: 5, 11: 5, 12: 5}
    stream(page.page, "hourly", [window("A", hour, value) for hour, value in hours.items()])
    page.visit("stores/hourly?tab=chart")
    page.page.locator(".plot[aria-label*='A: '] canvas").wait_for()
    drawn = sorted(coloured(page.page.locator(".plot canvas")))
    first, last = drawn[0], drawn[-1]

    def is_drawn(hour: float) -> bool:
        at = first + (last - first) * hour / 12
        return any(abs(x - at) <= 3 for x in drawn)

    assert [is_drawn(hour) for hour in (0, 0.5, 3, 6, 8.5, 11.5)] == [True, True, False, True, False, True]


# What numbers say


def test_small_numbers_are_no_noughts_and_large_ones_are_exact(page: Console) -> None:
    values: list[Any] = [0.0004, LARGE, -LARGE, 12.3456789, 1e-9]
    stream(page.page, "hourly", [window("A", hour, value) for hour, value in enumerate(values)])
    page.visit("stores/hourly?tab=chart")
    page.page.locator(".plot[aria-label*='A: ']").wait_for()
    assert "A: 1e-9 last, between -9,007,199,254,740,993 and 9,007,199,254,740,993." in words(page)
    for chart in page.page.locator(".chart").all():
        chart.locator("summary").click()
        cells = chart.locator("tbody td:last-child")
        cells.nth(4).wait_for()
        told = ["1e-9", "12.346", "-9,007,199,254,740,993", "9,007,199,254,740,993", "0.0004"]
        assert cells.all_inner_texts() == told
    canvas = page.page.locator("canvas.strips")
    box = canvas.bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + 115, box["y"] + 10)
    page.page.locator(".readout", has_text="0.0004").wait_for()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("countText(0.0004)", "0.0004"),
        ("countText(-0.00012345)", "-0.0001235"),
        ("countText(1234567)", "1,234,567"),
        ("countText(1234.5678)", "1,234.568"),
        ("countText(0.1 + 0.2)", "0.3"),
        ("countText(9007199254740993n)", "9,007,199,254,740,993"),
        ("countText(1e300)", "1e+300"),
        ("countText(NaN)", "unknown"),
        ("rateText(0.04)", "0.04/s"),
        ("rateText(3.46)", "3.5/s"),
        ("durationText(0.04)", "0.04 ms"),
        ("localText(-62198755200000)", "-000001-01-01 00:00:00"),
        ("localText(253402300800000)", "+010000-01-01 00:00:00"),
        ("localText(9e15)", "9000000000000000"),
    ],
)
def test_numbers_and_times_are_told_as_they_are(in_utc: Console, call: str, told: str) -> None:
    assert in_utc.page.evaluate(f"import('/console/base/format.js').then((all) => all.{call})") == told


def test_years_of_more_than_four_digits_are_whole_on_the_axis(page: Console) -> None:
    page.page.add_init_script(
        "window.drawn = []; const real = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
        "  window.drawn.push(text); real.call(this, text, ...at); };"
    )
    year = 31_556_952_000
    entries = [{"key": "A", "start": 30_000 * year + n * 20 * year, "end": 30_000 * year, "value": n} for n in range(9)]
    stream(page.page, "hourly", entries)
    page.visit("stores/hourly?tab=chart")
    page.page.locator(".plot canvas").wait_for()
    page.page.wait_for_function("() => drawn.some((text) => /^[+]0[0-9]{5}$/.test(text))")


# What is left out


def test_sessions_of_more_keys_than_are_drawn_say_so_and_are_the_newest(page: Console) -> None:
    stream(page.page, "rushes", [window(f"K{n:03}", n, 1) for n in range(212)])
    page.visit("stores/rushes?tab=chart")
    page.page.get_by_text("These are 40 of 212 keys, those with the newest sessions.").wait_for()
    page.page.locator(".chart summary").click()
    keys = page.page.locator(".chart tbody th")
    keys.nth(39).wait_for()
    assert sorted(keys.all_inner_texts()) == [f"K{n:03}" for n in range(172, 212)]


def test_a_heat_map_of_more_keys_than_are_drawn_says_so(page: Console) -> None:
    stream(page.page, "hourly", [window(f"K{n:03}", 0, n) for n in range(41)])
    page.visit("stores/hourly?tab=chart")
    page.page.get_by_text("These are 40 of 41 keys, those with the largest sums.").wait_for()


@pytest.mark.parametrize(
    "store", [pytest.param("hourly", marks=long_only("streams of windows are in the order of time")), "rushes"]
)
def test_of_more_rows_than_are_drawn_the_newest_are(page: Console, store: str) -> None:
    """However they come: streams of sessions are in the order of keys."""
    rows = [window("A" if n < 45_000 else "B", n if n < 45_000 else n - 45_000, 1) for n in range(50_000)]
    stream(page.page, store, rows)
    page.visit(f"stores/{store}?tab=chart")
    page.page.get_by_text("The newest 20,000 of 50,000 rows: choose a shorter time.").wait_for()
    count = "20,000 windows of 1 key" if store == "hourly" else "20,000 sessions of 1 key"
    assert count in (page.page.locator("canvas.strips").get_attribute("aria-label") or "")


def test_of_more_versions_than_are_drawn_the_newest_are(page: Console, served: Served) -> None:
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url) if "/versions" in request.url else None)
    rows = [{"value": {"n": n}, "timestamp": START_MS + n, "valid_to": None} for n in range(20_001, 0, -1)]
    stream(page.page, "airports", rows)
    page.visit("stores/airports?tab=chart&key=JFK")
    page.page.get_by_text("The newest 20,000 rows, and there are more: choose a shorter time.").wait_for()
    assert "between 2 and 20,001" in words(page)
    assert "order=desc" in asked[0]


# From when to when


def test_times_without_a_zone_are_the_readers_own_and_the_address_is_the_same_everywhere(page: Console) -> None:
    page.visit("stores/hourly?tab=chart")
    page.page.get_by_text(re.compile(r"^\d+ rows\.$")).wait_for()
    page.page.fill("#time-from", "2013-02-27 17:00")  # in New York
    with page.page.expect_request("**/v1/stores/hourly/windows?*") as asked:
        page.page.get_by_role("button", name="Show").click()
    assert parse_qs(urlsplit(asked.value.url).query)["from"] == [str(START_MS + HOUR_MS)]
    assert query_of(page)["from"] == [str(START_MS + HOUR_MS)]
    page.page.reload()
    page.page.locator("#time-from").wait_for()
    assert page.page.locator("#time-from").input_value() == "2013-02-27 17:00"


def test_a_time_that_is_none_is_said(page: Console) -> None:
    page.visit("stores/hourly?tab=chart")
    page.page.fill("#time-from", "yesterday")
    page.page.get_by_role("button", name="Show").click()
    page.page.get_by_role("alert").get_by_text("'yesterday' is no time").wait_for()


# Zooming


def drag(page: Console, begin: float, end: float, over: str = ".plot .u-over") -> None:
    """Over a chart, the lines unless another one is given, from one part of its width to another."""
    box, before = page.page.locator(over).first.bounding_box(), None
    while box is None or box != before:  # the page is still being laid out
        page.page.wait_for_timeout(50)
        box, before = page.page.locator(over).first.bounding_box(), box
    y = box["y"] + box["height"] / 2
    page.page.mouse.move(box["x"] + box["width"] * begin, y)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + box["width"] * end, y, steps=5)
    page.page.mouse.up()


def test_a_drag_zooms_by_the_address_back_and_a_double_click_undo_it(page: Console) -> None:
    stream(page.page, "hourly", [window("A", hour, hour) for hour in range(101)])
    page.visit("stores/hourly?tab=chart")
    page.page.locator(".plot canvas").wait_for()
    drag(page, 0.5, 0.75)
    page.page.wait_for_url("**zoom=*")
    begin, end = (int(part) for part in query_of(page)["zoom"][0].split(".."))
    assert abs(begin - (START_MS + 50 * HOUR_MS)) < HOUR_MS
    assert abs(end - (START_MS + 75 * HOUR_MS)) < HOUR_MS
    page.page.get_by_text("Zoomed to 2013-03-0").wait_for()
    low, high = re.findall(r"between (\d+) and (\d+)", words(page))[0]
    assert (abs(int(low) - 50) < 2, abs(int(high) - 75) < 2) == (True, True)
    page.page.go_back()
    page.page.locator(".plot[aria-label*='between 0 and 100']").wait_for()
    page.page.go_forward()
    page.page.locator(f".plot[aria-label*='between {low} and {high}']").wait_for()
    page.page.locator(".plot .u-over").dblclick()
    page.page.locator(".plot[aria-label*='between 0 and 100']").wait_for()
    assert "zoom" not in query_of(page)


def test_a_link_to_a_zoomed_chart_shows_the_same_and_says_how_to_see_all(page: Console) -> None:
    stream(page.page, "hourly", [window("A", hour, 5) for hour in range(101)])
    zoom = f"{START_MS + 20 * HOUR_MS}..{START_MS + 30 * HOUR_MS}"
    page.visit(f"stores/hourly?tab=chart&zoom={zoom}")
    page.page.locator(".plot[aria-label*='2013-02-28 12:00:00 to 2013-02-28 22:00:00']").wait_for()
    box = coloured(page.page.locator(".plot canvas"))
    width = page.page.locator(".plot canvas").evaluate("e => e.width")
    assert max(box) - min(box) > 0.8 * width, "what is zoomed to has all of the width"
    strips = page.page.locator("canvas.strips")
    assert shade_at(strips, 0, 0.02) > 0
    page.page.get_by_role("button", name="Show all").click()
    page.page.locator(".plot[aria-label*='2013-02-27 16:00:00 to 2013-03-03 20:00:00']").wait_for()


def test_a_drag_over_a_heat_map_zooms_it_and_the_lines_and_a_double_click_undoes_it(page: Console) -> None:
    stream(page.page, "hourly", [window("A", hour, hour) for hour in range(101)])
    page.visit("stores/hourly?tab=chart")
    strips = until_drawn(page)
    drag(page, 0.9, 1.2, over="canvas.strips")  # it ends beside it
    page.page.wait_for_url("**zoom=*")
    begin, end = (int(part) for part in query_of(page)["zoom"][0].split(".."))
    width = strips.evaluate("e => e.clientWidth")
    hours = 101 * (0.9 * width - 110) / (width - 112)  # beside the names
    assert abs(begin - (START_MS + hours * HOUR_MS)) < HOUR_MS
    assert end == START_MS + 101 * HOUR_MS
    page.page.locator(".plot[aria-label*='and 100']:not([aria-label*='between 0 '])").wait_for()
    strips.dblclick()
    page.page.locator(".plot[aria-label*='between 0 and 100']").wait_for()


@long_only("a drag that zooms is what the test before shows")
def test_a_click_on_a_heat_map_and_a_drag_over_its_names_zoom_nothing(page: Console) -> None:
    stream(page.page, "hourly", [window("A", hour, hour) for hour in range(3)])
    page.visit("stores/hourly?tab=chart")
    until_drawn(page).click(position={"x": 200, "y": 10})
    drag(page, 0.0, 0.05, over="canvas.strips")
    page.page.locator(".plot[aria-label*='between 0 and 2']").wait_for()
    assert "zoom" not in query_of(page)


@pytest.mark.parametrize(
    "zoom", ["x", "9..1", *(pytest.param(each, marks=long_only("two others are none")) for each in ("5", "1..1", ""))]
)
def test_a_zoom_that_is_none_shows_all(page: Console, zoom: str) -> None:
    stream(page.page, "hourly", [window("A", hour, hour) for hour in range(3)])
    page.visit(f"stores/hourly?tab=chart&zoom={zoom}")
    page.page.locator(".plot[aria-label*='between 0 and 2']").wait_for()
    assert page.page.get_by_role("button", name="Show all").count() == 0
