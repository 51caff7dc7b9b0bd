"""The console for keyboard, screen reader, small screens, and both colour schemes, in a real Chromium."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.console.console_browser import Flights
from support.console.console_page import Console, console

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Served = tuple[Flights, str]

NAMED_ROLES = {
    *("button", "textbox", "combobox", "checkbox", "slider", "link", "image", "img", "table", "region"),
    *("navigation", "columnheader", "rowheader", "heading", "spinbutton", "DisclosureTriangle"),
}

# Text against what is behind it, both blended over the page as opacity says: the least ratio of WCAG 2.
CONTRAST = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const over = (top, below, alpha) => below.map((c, i) => top[i] * alpha + c * (1 - alpha));
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const chain = (e) => (e ? [...chain(e.parentElement), e] : []);
  const page = channels(getComputedStyle(document.body).backgroundColor);
  const failing = [];
  let seen = 0;
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || !e.checkVisibility() || e.closest("title, option, noscript, .skip")) continue;
    let back = page, opacity = 1;
    for (const parent of chain(e)) {
      const style = getComputedStyle(parent);
      const [r, g, b, a = 1] = channels(style.backgroundColor);
      back = over([r, g, b], back, a);
      opacity *= Number(style.opacity);
    }
    const style = getComputedStyle(e);
    const own = channels(e instanceof SVGElement ? style.fill : style.color).slice(0, 3);
    const [x, y] = [light(over(own, page, opacity)), light(over(back, page, opacity))].sort((a, b) => b - a);
    const ratio = (x + 0.05) / (y + 0.05);
    seen += 1;
    if (ratio < 4.5) failing.push(`${e.tagName} ${e.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return [seen, failing];
}"""

# What Tab should reach, in the order of the document.
REACHABLE = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
  .filter((e) => e.checkVisibility()).map((e, i) => (e.dataset.order = String(i)))"""
FOCUSED = """() => {
  const e = document.activeElement, style = getComputedStyle(e);
  return [e.dataset.order ?? "", style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
}"""


@pytest.fixture(scope="module")
def page(browser: Browser, served: Served) -> Iterator[Console]:
    with console(browser, served[1]) as opened:
        yield opened


def show(page: Console, store: str) -> None:
    """Show as much of a store as there is: an answer, its keys or its history."""
    page.choose(store)
    query, values = {"aircraft": ("range", {"limit": "3"}), "airports": ("versions", {"key": "JFK"})}.get(
        store, ("count", {})
    )
    page.ask(query, **values)
    page.page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    for form in ("moment", "window"):
        key = page.page.locator(f"#{form}-key")
        if key.is_visible():
            key.fill("JFK")
            page.page.keyboard.press("Enter")
            page.page.locator(f"#{form}-table table").wait_for()
    if page.page.locator("#browse-form").is_visible():
        page.page.locator("#browse-form button").click()
        page.page.locator("#browse-result table").wait_for()


def nodes(page: Console) -> list[dict[str, Any]]:
    """What a screen reader is given, as the browser computes it."""
    session = page.page.context.new_cdp_session(page.page)
    found: list[dict[str, Any]] = session.send("Accessibility.getFullAXTree")["nodes"]
    return [node for node in found if not node.get("ignored")]


@pytest.mark.parametrize("store", ["aircraft", "airports", "hourly", "rushes"])
def test_everything_that_is_used_or_told_has_a_name(page: Console, store: str) -> None:
    show(page, store)
    roles: Counter[str] = Counter()
    nameless = []
    for node in nodes(page):
        role, name = node["role"]["value"], node.get("name", {}).get("value", "")
        roles[role] += 1
        if role in NAMED_ROLES and not name.strip():
            nameless.append(node)
    assert nameless == []
    assert roles["main"] == roles["banner"] == roles["contentinfo"] == 1
    assert roles["navigation"] == 2
    assert {"button", "textbox", "combobox", "table", "region", "image"} <= roles.keys()


def test_headings_go_down_one_level_at_a_time_and_no_id_is_given_twice(page: Console) -> None:
    levels = page.page.locator("h1, h2, h3, h4").evaluate_all("all => all.map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = page.page.locator("[id]").evaluate_all("all => all.map((e) => e.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("stale", [False, True])
def test_text_has_enough_contrast(page: Console, scheme: Any, stale: bool) -> None:
    page.page.emulate_media(color_scheme=scheme)
    show(page, "airports")
    page.ask("versioned_key", key="JFK", wait_ms="-1")  # a problem, in its colour
    if stale:
        page.page.route("**/v1/console*", lambda route: route.abort())
        page.page.locator("body.stale #alert:not(:empty)").wait_for()
    seen, failing = page.page.evaluate(CONTRAST)
    page.page.unroute_all(behavior="wait")
    page.page.locator("body:not(.stale)").wait_for()
    assert seen > 50
    assert failing == []


@pytest.mark.parametrize("store", ["aircraft", "airports", "hourly"])
def test_tab_reaches_everything_in_order_and_shows_where_it_is(page: Console, store: str) -> None:
    show(page, store)
    expected = page.page.evaluate(REACHABLE)
    page.page.keyboard.press("Tab")  # the keyboard is used from now on: that shows where the focus is
    page.page.locator(".skip").focus()
    reached, invisible = [], []
    for _ in expected:
        order, outlined = page.page.evaluate(FOCUSED)
        page.page.keyboard.press("Tab")
        reached.append(order)
        if not outlined:
            invisible.append(order)
    assert reached == expected
    assert invisible == []


def test_what_moves_with_each_look_is_not_announced(page: Console) -> None:
    show(page, "aircraft")
    page.page.evaluate(
        """() => {
          window.announced = [];
          const live = document.querySelectorAll("[role=status], [role=alert], [aria-live], output");
          const note = (all) => window.announced.push(...all.map((m) => m.target.textContent));
          const observer = new MutationObserver(note);
          for (const e of live) observer.observe(e, {childList: true, characterData: true, subtree: true});
        }"""
    )
    before = page.card("aircraft", "Last commit")
    for _ in range(3):
        with page.page.expect_response("**/v1/console*"):
            pass
    page.page.locator(".card").first.locator("dd").filter(has_not_text=before).last.wait_for()
    assert page.page.evaluate("window.announced") == []


def test_the_focus_stays_where_it_is_while_the_page_moves(page: Console) -> None:
    page.choose("aircraft")
    page.page.evaluate("document.activeElement.dataset.mark = 'here'")
    for _ in range(2):
        with page.page.expect_response("**/v1/console*"):
            pass
    assert page.page.evaluate("document.activeElement.dataset.mark") == "here"


def test_the_first_tab_leads_past_the_navigation(page: Console) -> None:
    page.page.reload()
    page.page.locator(".card").first.wait_for()
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    assert page.page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("store", ["aircraft", "airports", "hourly", "rushes"])
def test_a_phone_needs_no_scrolling_sideways(page: Console, store: str) -> None:
    page.page.set_viewport_size({"width": 360, "height": 740})
    show(page, store)
    assert page.page.evaluate("document.scrollingElement.scrollWidth") == 360
    small = page.page.locator("button, input, select, textarea, summary").evaluate_all(
        """all => all.filter((e) => e.checkVisibility() && e.type !== "checkbox")
          .filter((e) => e.getBoundingClientRect().height < 24).map((e) => e.outerHTML)"""
    )
    assert small == []
    page.page.set_viewport_size({"width": 1280, "height": 900})
