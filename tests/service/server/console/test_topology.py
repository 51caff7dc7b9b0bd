"""The console's drawing of the topology, in a real Chromium."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.apps import console_app
from support.console.console_browser import Flights
from support.console.console_page import Console, console
from support.console.told import say
from support.processes.running_worker import produce
from support.run.length import long_only

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Locator, Route

Served = tuple[Flights, str]
GRAPH = "/v1/console/graph"
DRAWN = ".topology svg .node"


@pytest.fixture(scope="module")
def opened(browser: Browser, served: Served) -> Iterator[Console]:
    with console(browser, f"{served[1]}/topology", first=DRAWN) as opened:
        yield opened


@pytest.fixture
def page(opened: Console) -> Console:
    """The drawing of what the server really says."""
    opened.page.unroute_all(behavior="ignoreErrors")
    opened.page.set_viewport_size({"width": 1280, "height": 900})
    opened.visit("topology")
    opened.page.locator(DRAWN).first.wait_for()
    return opened


def node(kind: str, name: str, subtopology: int | None = None) -> dict[str, Any]:
    known = {"name": name, "label": f"{name}\nmore of it", "subtopology": subtopology, "internal": False}
    return {"id": f"{kind} {name}", "kind": kind, **known}


def graph(rate: float | None = 12.3) -> dict[str, Any]:
    nodes = [node("topic", "in"), node("operator", "join", 0), node("store", "kept", 0), node("pipeline", "delays")]
    nodes.append(node("global_table", "<b>names</b>"))
    edges = [["topic in", "operator join"], ["operator join", "store kept"], ["topic in", "pipeline delays"]]
    return {"nodes": nodes, "edges": edges, "rates": {"in": rate}}


def large(count: int) -> dict[str, Any]:
    """A chain of operators, each with a store."""
    stores = [node("store", f"store-of-number-{n}", n) for n in range(count)]
    operators = [node("operator", f"operator-{n}", n) for n in range(count)]
    edges = [[a["id"], b["id"]] for a, b in zip(operators, stores, strict=True)]
    edges += [[a["id"], b["id"]] for a, b in itertools.pairwise(operators)]
    return {"nodes": stores + operators, "edges": edges, "rates": {}}


def fans(count: int) -> dict[str, Any]:
    """Topics with an operator and a store each; three of them write one topic."""
    topics = [node("topic", f"topic-{n}") for n in range(count)]
    operators = [node("operator", f"operator-{n}", n) for n in range(count)]
    stores = [node("store", f"store-of-number-{n}", n) for n in range(count)]
    out = [node("topic", f"out-{n}") for n in range(-(-count // 3))]
    edges = [[a["id"], b["id"]] for a, b in zip(topics, operators, strict=True)]
    edges += [[a["id"], b["id"]] for a, b in zip(operators, stores, strict=True)]
    edges += [[each["id"], out[n // 3]["id"]] for n, each in enumerate(operators)]
    return {"nodes": topics + operators + stores + out, "edges": edges, "rates": {}}


def letters(page: Console) -> float:
    """How many pixels the names are high, at least."""
    scale: float = page.page.locator(".topology svg").evaluate("e => e.clientWidth / e.viewBox.baseVal.width")
    return 12 * scale


def named(page: Console) -> list[str]:
    found: list[str] = page.page.locator(f"{DRAWN} title").all_text_contents()
    return found


def box(found: Locator) -> FloatRect:
    seen = found.bounding_box()
    assert seen is not None
    return seen


def test_the_application_is_drawn_with_what_each_part_is(page: Console) -> None:
    told = named(page)
    assert len(told) == 3 + 1 + 6
    assert "topic departures" in told
    assert "operator depart" in told
    assert "store hourly, window, string → json" in told
    boxes = page.page.locator(".topology .box-name").all_text_contents()
    assert boxes == ["subtopology 0", "subtopology 1", "subtopology 2"]
    legend = page.page.get_by_role("list", name="Legend of shapes").get_by_role("listitem")
    assert legend.all_inner_texts() == ["topic", "operator", "store"]


def test_arrows_out_of_topics_tell_how_many_records_a_second_come(page: Console, served: Served) -> None:
    rates = page.page.locator(".topology .rate")
    page.hurry()
    for turn in range(1_000):  # of thirty seconds, and told from the second look of the server on
        produce(served[0].log, "flights", [(b"N001", b'{"seats": 50, "carrier": "UA"}', console_app.START_MS + turn)])
        with page.page.expect_response(f"**{GRAPH}"):
            pass
        if set(rates.all_text_contents()) - {"0/s"}:
            return
    pytest.fail(f"no rate but {rates.all_text_contents()}")


def test_rates_move_without_another_layout(page: Console) -> None:
    rates = iter((12.3, *[45.6] * 1_000))
    say(page.page, GRAPH, lambda _: graph(next(rates)))
    page.page.reload()
    rate = page.page.locator(".topology .rate").first
    rate.get_by_text("12/s").wait_for()
    page.page.evaluate("document.querySelector('.topology svg .node').dataset.mark = 'here'")
    before = [box(each) for each in page.page.locator(DRAWN).all()]
    page.hurry()
    rate.get_by_text("46/s").wait_for()
    assert page.page.locator(DRAWN).first.get_attribute("data-mark") == "here"
    assert [box(each) for each in page.page.locator(DRAWN).all()] == before


def test_a_rate_that_is_not_known_is_not_drawn(page: Console) -> None:
    say(page.page, GRAPH, graph(None))
    page.page.reload()
    page.page.locator(DRAWN).first.wait_for()
    assert page.page.locator(".topology .rate").count() == 0


def test_stores_and_pipelines_lead_to_their_places_with_the_keyboard_too(page: Console) -> None:
    say(page.page, GRAPH, graph())
    page.page.reload()
    page.page.get_by_role("link", name="pipeline delays, more of it").click()
    page.page.wait_for_url("**/pipelines")
    page.page.go_back()
    link = page.page.get_by_role("link", name="store kept, more of it")
    link.wait_for()
    link.focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/stores/kept")


def test_no_two_kinds_look_the_same_and_names_are_text(page: Console) -> None:
    say(page.page, GRAPH, graph())
    page.page.reload()
    page.page.locator(DRAWN).first.wait_for()
    shapes = page.page.locator(f"{DRAWN} path").evaluate_all(
        "all => all.map((e) => [e.getAttribute('d').replace(/[-\\d.]+/g, ''), getComputedStyle(e).stroke, "
        "getComputedStyle(e).strokeDasharray].join())"
    )
    assert len(set(shapes)) == 5
    assert "global table <b>names</b>, more of it" in named(page)


def test_a_screen_reader_has_a_table_of_the_same(page: Console) -> None:
    say(page.page, GRAPH, graph())
    page.page.reload()
    page.page.get_by_text("The same as a table").click()
    rows = page.page.get_by_role("table", name="Connections").locator("tbody tr")
    rows.nth(2).wait_for()
    told = rows.evaluate_all("all => all.map((row) => [...row.children].map((cell) => cell.textContent))")
    assert told == [
        ["topic in, more of it", "operator join, more of it", "0", "12/s"],
        ["operator join, more of it", "store kept, more of it", "0", ""],
        ["topic in, more of it", "pipeline delays, more of it", "", "12/s"],
    ]


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=long_only("it is between the two others")), 1920])
def test_a_large_topology_is_as_wide_as_its_panel_at_first_and_can_be_read(page: Console, width: int) -> None:
    say(page.page, GRAPH, fans(10))
    page.page.set_viewport_size({"width": width, "height": 900})
    page.page.reload()
    page.page.get_by_role("link", name="store store-of-number-9").wait_for()
    panel = page.page.get_by_role("region", name="Drawing of the topology")
    assert page.page.locator(DRAWN).count() == 34
    assert panel.evaluate("e => e.scrollWidth <= e.clientWidth"), "no part of it is beside the panel"
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert letters(page) >= 6
    assert "zoom" not in page.page.url, "it fits whatever the window"


def test_one_that_is_too_large_to_be_read_scrolls_and_can_be_made_to_fit(page: Console) -> None:
    say(page.page, GRAPH, large(16))
    page.page.reload()
    page.page.get_by_role("link", name="store store-of-number-15").wait_for()
    panel = page.page.get_by_role("region", name="Drawing of the topology")
    assert letters(page) >= 6
    assert panel.evaluate("e => e.scrollWidth > e.clientWidth")
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.page.get_by_role("button", name="Fit").click()
    page.page.wait_for_url("**/topology?zoom=*")
    fits = "([w, h]) => { const e = document.querySelector('.topology'); return e[w] <= e[h]; }"
    page.page.wait_for_function(fits, arg=["scrollWidth", "clientWidth"])
    page.page.wait_for_function(fits, arg=["scrollHeight", "clientHeight"])


@long_only("another test has it fit in windows of two widths")
def test_it_fits_anew_in_another_window(page: Console) -> None:
    say(page.page, GRAPH, fans(4))
    page.page.reload()
    page.page.locator(DRAWN).first.wait_for()
    page.page.set_viewport_size({"width": 390, "height": 900})
    fits = "document.querySelector('.topology').scrollWidth <= document.querySelector('.topology').clientWidth"
    page.page.wait_for_function(f"() => innerWidth === 390 && {fits}")


def test_the_keyboard_scrolls_zooms_and_reaches_what_is_out_of_sight(page: Console) -> None:
    say(page.page, GRAPH, large(16))
    page.page.reload()
    page.page.get_by_role("button", name="Fit").wait_for()
    page.page.get_by_role("button", name="Larger").focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**?zoom=70")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Drawing of the topology"
    page.page.keyboard.press("ArrowRight")
    page.page.wait_for_function("() => document.querySelector('.topology').scrollLeft > 0")
    for _ in range(16):
        page.page.keyboard.press("Tab")
    panel = box(page.page.get_by_role("region", name="Drawing of the topology"))
    last = box(page.page.locator(".topology a:focus"))
    assert panel["x"] <= last["x"] <= last["x"] + last["width"] <= panel["x"] + panel["width"] + 1
    assert panel["y"] <= last["y"] <= last["y"] + last["height"] <= panel["y"] + panel["height"] + 1
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/stores/store-of-number-15")


@long_only("it is a moment that few people meet")
def test_nothing_can_be_made_larger_before_it_is_drawn(page: Console) -> None:
    say(page.page, GRAPH, large(16))
    held: list[Route] = []
    page.page.route("**/dagre-*.js", lambda route: held.append(route))
    page.page.reload()
    page.page.get_by_text("Drawing …").wait_for()
    larger = page.page.get_by_role("button", name="Larger")
    assert larger.count() == 0
    held[0].continue_()
    larger.click()
    page.page.wait_for_url("**?zoom=70")


def test_the_zoom_is_in_the_address(page: Console) -> None:
    say(page.page, GRAPH, graph())
    page.page.reload()
    page.page.locator(DRAWN).first.wait_for()
    wide = box(page.page.locator(".topology svg"))["width"]
    page.page.get_by_role("button", name="Larger").click()
    page.page.wait_for_url("**?zoom=140")
    page.page.reload()
    page.page.locator(DRAWN).first.wait_for()
    assert box(page.page.locator(".topology svg"))["width"] == pytest.approx(1.4 * wide, rel=0.01)
    page.page.get_by_role("button", name="140 %").click()
    page.page.wait_for_url("**/topology")


def test_what_cannot_be_had_is_said(page: Console) -> None:
    say(page.page, GRAPH, {"title": "no", "status": 503, "detail": "The server is closing."}, status=503)
    page.page.reload()
    page.page.get_by_role("alert").get_by_text("The server is closing.").wait_for()


def test_an_application_that_declares_nothing_is_told_what_to_write(page: Console) -> None:
    say(page.page, GRAPH, {"nodes": [], "edges": [], "rates": {}})
    page.page.reload()
    page.page.get_by_text('app.topic("…")').wait_for()
