"""The console's pipelines, in a real Chromium: what their drivers say, as it changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from service.server.console.test_console_accessibility import CONTRAST
from service.server.test_pipelines import WRITTEN, app, driver
from support.console.console_page import Console, console
from support.processes.served_here import served_here
from support.run.patience import HANGING_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Shown:
    """An open page, and the driver whose status it shows."""

    def __init__(self, page: Console, directory: Path) -> None:
        self.page = page.page
        self._directory = directory

    def write(self, **changes: Any) -> None:
        """What the driver says from now on."""
        now = int(time.time() * 1000)
        status = WRITTEN | {"batch_at_ms": now, "last_error_at_ms": now - 60_000, "updated_at_ms": now} | changes
        unfinished = self._directory / "status.tmp"
        unfinished.write_text(json.dumps(status))
        unfinished.replace(self._directory / "status.json")

    def wait_for(self, fact: str, text: str, name: str = "delays") -> None:
        """Until the card of this pipeline says so."""
        card = self.page.locator(".card", has=self.page.get_by_role("heading", name=name, exact=True))
        row = card.locator("div", has=self.page.get_by_text(fact, exact=True))
        row.locator("dd", has_text=text).wait_for()


@pytest.fixture(scope="module")
def shown(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """A server without stores beside a driver of one of its two pipelines."""
    state = tmp_path_factory.mktemp("p")
    directory = state / "flights-app" / "pipelines" / "delays"
    directory.mkdir(parents=True)
    with (
        driver(directory),
        served_here(state, app=app()) as here,
        console(browser, f"{str(here.client.base_url).rstrip('/')}/pipelines") as page,
    ):
        page.hurry()
        yield Shown(page, directory)


def test_a_card_tells_how_far_a_pipeline_is(shown: Shown) -> None:
    shown.write(last_error=None)
    shown.wait_for("State", "running")
    shown.wait_for("From", "departures")
    shown.wait_for("To", "delays-out")
    shown.wait_for("Lag", "departures 5, airports 2")
    shown.wait_for("Micro-batch", "3 in 412 ms")
    shown.wait_for("Rows", "900 in, 40 out, 2 left out")
    shown.wait_for("Longest step", "produce, 20 ms")
    shown.wait_for("State", "not running here", name="other")
    shown.page.get_by_role("link", name="Pipelines").wait_for()
    assert shown.page.locator(".card.bad").count() == 0


def test_it_moves_as_the_driver_goes_on(shown: Shown) -> None:
    shown.write(batch_id=4, lag=0, lag_by_topic={"departures": 0, "airports": 0}, state="waiting")
    shown.wait_for("State", "waiting")
    shown.wait_for("Micro-batch", "4 in 412 ms")
    shown.wait_for("Lag", "0")


def test_a_failure_is_told_with_its_reason_and_when_it_starts_again(shown: Shown) -> None:
    in_a_while = int(time.time() * 1000) + 25_000
    shown.write(state="restarting", next_start_at_ms=in_a_while, last_error="<b>no</b>")
    shown.wait_for("State", "restarting in 2")
    note = shown.page.locator(".card.bad .note")
    note.filter(has_text="ago: <b>no</b>").wait_for()
    assert note.locator("b").count() == 0, "an error is no markup"
    shown.write(state="failed", last_error="Missing source topic: departures.")
    shown.wait_for("State", "failed")
    note.filter(has_text="Missing source topic: departures.").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_wrong_can_be_read_in_both_colours(shown: Shown, scheme: Any) -> None:
    shown.write(state="failed", last_error="Missing source topic: departures.")
    shown.wait_for("State", "failed")
    shown.page.emulate_media(color_scheme=scheme)
    seen, failing = shown.page.evaluate(CONTRAST)
    assert seen > 30
    assert failing == []


def test_a_phone_needs_no_scrolling_sideways_for_a_long_error(shown: Shown) -> None:
    shown.write(state="failed", last_error="x" * 400)
    shown.page.locator(".card .note", has_text="xxxx").wait_for()
    before = shown.page.viewport_size
    shown.page.set_viewport_size({"width": 360, "height": 740})
    width = shown.page.evaluate("document.documentElement.scrollWidth")
    if before is not None:
        shown.page.set_viewport_size(before)
    assert width <= 360


def test_an_application_without_pipelines_shows_no_such_place(browser: Browser, tmp_path: Path) -> None:
    from stateline.dsl.app import App

    with (
        served_here(tmp_path, app=App("flights-app")) as here,
        browser.new_context() as context,
    ):
        context.set_default_timeout(1000 * HANGING_S)
        page = context.new_page()
        page.goto(str(here.client.base_url))
        page.locator("#connection", has_text="Connected").wait_for()
        page.get_by_role("link", name="Nodes", exact=True).wait_for()
        assert page.get_by_role("link", name="Pipelines").count() == 0
        page.goto(f"{str(here.client.base_url).rstrip('/')}/pipelines")
        page.get_by_text("This application has no pipelines: app.pipeline(").wait_for()
