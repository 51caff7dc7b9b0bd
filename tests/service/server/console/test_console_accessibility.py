"""The console for keyboard, screen reader, small and large screens, and both colour schemes, in a real Chromium."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from support.console.console_browser import Flights
from support.console.console_page import Console, console
from support.run.length import long_only, long_or_short

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Served = tuple[Flights, str]

PLACES = (
    *("", "stores", "stores/aircraft", "stores/airports", "stores/hourly", "stores/rushes"),
    *("stores/aircraft/keys/N001", "stores/airports/keys/JFK", "stores/hourly/keys/JFK", "stores/rushes/keys/JFK"),
    *("queries", "sql", "topology", "pipelines", "nodes", "snapshots", "failures", "settings"),
)
TABS = (
    *("stores/aircraft?open=N001", "stores/aircraft?tab=changes&from=earliest", "stores/aircraft?tab=partitions"),
    *("stores/hourly?tab=chart", "stores/rushes?tab=chart", "stores/airports?tab=chart"),
    *(
        "sql?q=select+*,+null+as+nothing+from+hourly+join+rushes+using+(key)",
        "sql?q=select+keyy+from+hourly",
        "sql?q=select+*+from+hourly&view=chart",
    ),
)
ALL = [*PLACES, *TABS]
# Those that have the most kinds of elements: the others are made of the same parts.
RICHEST = [
    *("", "stores/aircraft?open=N001", "stores/airports/keys/JFK", "stores/hourly?tab=chart", "queries", "topology"),
    *("nodes", "sql?q=select+*,+null+as+nothing+from+hourly+join+rushes+using+(key)"),
]
WIDTHS = (360, 390, 1280, 1920)
SCHEMES: tuple[Any, ...] = ("light", "dark")
# Until what follows the window's size and colours has followed.
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
AXE = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .flatMap((found) => found.nodes.map((node) => `${found.id}: ${node.html.slice(0, 200)}`))"""

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
  .filter((e) => e.checkVisibility() && e.tabIndex >= 0 && !e.disabled).map((e, i) => (e.dataset.order = String(i)))"""
FOCUSED = """() => {
  const e = document.activeElement, style = getComputedStyle(e);
  return [e.dataset.order ?? "", style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
}"""

# What is wider than the window, or than the card or panel that it is in, and does not scroll by itself.
OUTSIDE = """() => {
  const shown = (e) => e.checkVisibility() && !e.closest(".unseen, .skip");
  const room = (e) => {
    for (let parent = e.parentElement; parent; parent = parent.parentElement) {
      if (getComputedStyle(parent).overflowX !== "visible" && parent !== document.body) return null;
      if (parent.matches(".card, .panel, body")) return parent;
    }
    return null;
  };
  return [...document.querySelectorAll("body *")].filter(shown).flatMap((e) => {
    const parent = room(e);
    if (parent === null) return [];
    const [own, around] = [e.getBoundingClientRect(), parent.getBoundingClientRect()];
    const fits = own.left >= around.left - 1 && own.right <= around.right + 1 && own.right <= innerWidth + 1;
    return fits || own.width === 0 ? [] : [`${e.outerHTML.slice(0, 100)} ${own.left}-${own.right}`];
  });
}"""
SMALL = """() => [...document.querySelectorAll("button, input, select, textarea, summary")]
  .filter((e) => e.checkVisibility() && e.type !== "checkbox" && !e.closest(".unseen"))
  .filter((e) => e.getBoundingClientRect().height < 24).map((e) => e.outerHTML.slice(0, 100))"""


@pytest.fixture(scope="module")
def page(browser: Browser, served: Served) -> Iterator[Console]:
    with console(browser, served[1]) as opened:
        yield opened


def show(page: Console, place: str) -> None:
    """Go there, until all that is asked for at first has come; with everything that folds open."""
    page.page.goto(f"{page.url.rstrip('/')}/{place}", wait_until="load")
    page.page.locator("main h1").wait_for()
    if "tab=changes" in place:  # a feed has no end
        page.page.locator("#feed", has_text="Connected.").wait_for()
        page.page.locator(".tabulator-row").first.wait_for()
    else:
        page.page.wait_for_load_state("networkidle")
    page.page.get_by_text("Loading …").or_(page.page.get_by_text("Drawing …")).first.wait_for(state="detached")
    page.page.evaluate("document.querySelectorAll('main details').forEach((d) => (d.open = true))")
    page.page.wait_for_function("() => [...document.querySelectorAll('main details')].every((d) => d.open)")


@pytest.fixture(scope="module", params=long_or_short(ALL, RICHEST))
def place(request: pytest.FixtureRequest, page: Console) -> Console:
    """The page there, for one test after the other."""
    page.page.emulate_media(color_scheme="light")
    show(page, request.param)
    return page


def test_axe_finds_nothing(place: Console) -> None:
    place.page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    for scheme in SCHEMES:
        place.page.emulate_media(color_scheme=scheme)
        place.page.evaluate(TWO_FRAMES)
        if scheme == SCHEMES[0]:  # what axe finds depends on no colours but for the contrast
            assert place.page.evaluate(AXE) == []
        seen, failing = place.page.evaluate(CONTRAST)
        assert seen > 15
        assert failing == [], scheme


def test_nothing_is_wider_than_its_panel_or_the_window(place: Console) -> None:
    for width in WIDTHS:
        place.page.set_viewport_size({"width": width, "height": 900})
        place.page.evaluate(TWO_FRAMES)
        assert place.page.evaluate("document.documentElement.scrollWidth") == width
        assert place.page.evaluate(OUTSIDE) == [], width
        assert place.page.evaluate(SMALL) == []
    place.page.set_viewport_size({"width": 1280, "height": 900})


def test_headings_go_down_one_level_at_a_time_and_no_id_is_given_twice(place: Console) -> None:
    levels = place.page.locator("h1, h2, h3, h4").evaluate_all("all => all.map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = place.page.locator("[id]").evaluate_all("all => all.map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_tab_reaches_everything_in_order_and_shows_where_it_is(place: Console) -> None:
    place.page.clock.install()  # what moves by itself would be something else to reach
    expected = place.page.evaluate(REACHABLE)
    place.page.keyboard.press("Tab")  # the keyboard is used from now on: that shows where the focus is
    place.page.locator(".skip").focus()
    reached, invisible = [], []
    for _ in expected:
        order, outlined = place.page.evaluate(FOCUSED)
        place.page.keyboard.press("Tab")
        reached.append(order)
        if not outlined:
            invisible.append(order)
    assert reached == expected
    assert invisible == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_known_of_the_past_only_can_be_read(page: Console, scheme: Any) -> None:
    page.page.emulate_media(color_scheme=scheme)
    show(page, "")
    page.page.route("**/v1/console*", lambda route: route.abort())
    page.hurry()
    page.page.locator("main.stale").wait_for()
    seen, failing = page.page.evaluate(CONTRAST)
    page.page.unroute_all(behavior="wait")
    page.page.locator("main:not(.stale)").wait_for()
    assert seen > 50
    assert failing == []


def test_what_moves_with_each_look_is_not_announced(page: Console) -> None:
    show(page, "")
    page.page.evaluate(
        """() => {
          window.announced = [];
          const live = document.querySelectorAll("[role=status], [role=alert], [aria-live], output");
          const note = (all) => window.announced.push(...all.map((m) => m.target.textContent));
          const observer = new MutationObserver(note);
          for (const e of live) observer.observe(e, {childList: true, characterData: true, subtree: true});
        }"""
    )
    fact = page.page.locator(".card").first.locator("div", has_text="Last commit").locator("dd")
    before = fact.inner_text()
    page.hurry()
    for _ in range(3):
        with page.page.expect_response("**/v1/console"):
            pass
    page.page.locator(".card").first.locator("dd").filter(has_not_text=before).last.wait_for()
    assert page.page.evaluate("window.announced") == []


@pytest.mark.parametrize(
    "place", ["", pytest.param("stores", marks=long_only("the overview moves as much")), "topology"]
)
def test_the_focus_stays_where_it_is_while_the_page_moves(page: Console, place: str) -> None:
    show(page, place)
    page.page.locator("main a, main summary").last.focus()
    page.page.evaluate("document.activeElement.dataset.mark = 'here'")
    page.hurry()
    for _ in range(2):
        with page.page.expect_response("**/v1/console"):
            pass
    assert page.page.evaluate("document.activeElement.dataset.mark") == "here"


def test_the_first_tab_leads_past_the_navigation(page: Console) -> None:
    show(page, "")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    assert page.page.evaluate("document.activeElement.id") == "main"
