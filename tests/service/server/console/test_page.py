"""What is the same at every place of the console: a server that is gone, a token."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING

import httpx

from stateline.server.guard.tokens import hash_of
from support.console.console_browser import Flights, flights
from support.console.console_page import console
from support.processes.ports import free_port
from support.run.patience import HANGING_S

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

Served = tuple[Flights, str]


def test_a_server_that_is_gone_leaves_the_last_state_and_comes_back_by_itself(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    with flights(tmp_path) as made, contextlib.ExitStack() as last:
        with made.server(port) as url:
            opened = last.enter_context(console(browser, url))
        page = opened.page
        opened.hurry()
        page.locator("#connection", has_text="Not connected since").wait_for()
        page.get_by_role("alert").get_by_text("The server does not answer.").first.wait_for()
        page.locator("main.stale .card", has_text="aircraft").get_by_text("timestamped key value").wait_for()
        last.enter_context(made.server(port))
        page.locator("#connection", has_text=re.compile("^Connected")).wait_for()
        page.locator("main:not(.stale)").wait_for()


def test_a_token_is_asked_for_and_kept_for_the_tab_only(browser: Browser, served: Served, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    entry = {"name": "ops", "sha256": hash_of("s3cret").hex(), "role": "admin"}
    tokens.write_text(json.dumps({"tokens": [entry]}))
    tokens.chmod(0o600)
    with served[0].server(free_port(), f"server.tokens.file={tokens}") as url, browser.new_context() as context:
        context.set_default_timeout(1000 * HANGING_S)
        page = context.new_page()
        page.goto(f"{url}/settings")
        field = page.get_by_label("The server wants a token")
        field.fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("rejects this token").wait_for()
        field.fill("s3cret")
        page.keyboard.press("Enter")
        page.get_by_text("server.tokens.file", exact=True).wait_for()
        assert page.evaluate("[localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
        assert "s3cret" not in page.content()
        links = page.locator("footer a").evaluate_all("all => all.map((a) => a.href)")
        assert [page.request.get(link).status for link in links] == [200, 200], "none that wants the token in a header"


def test_a_part_that_cannot_be_loaded_is_said_and_the_others_go_on(browser: Browser, served: Served) -> None:
    with console(browser, served[1]) as opened:
        page = opened.page
        page.route("**/console/*/places/settings.js", lambda route: route.abort())
        page.get_by_role("link", name="Settings").click()
        page.get_by_role("alert").get_by_text("This part of the page could not be loaded").wait_for()
        page.get_by_role("link", name="Stores", exact=True).click()
        page.get_by_role("table", name="Stores").wait_for()


def test_every_link_of_the_page_leads_somewhere(browser: Browser, served: Served) -> None:
    with console(browser, served[1]) as opened:
        links = opened.page.locator("header a, footer a").evaluate_all("all => all.map((a) => a.href)")
        assert len(links) > 15
        for link in links:
            assert opened.page.request.get(link).status == 200, link


def test_a_tab_that_was_open_across_an_upgrade_says_so_and_its_links_load_the_page_anew(
    browser: Browser, served: Served
) -> None:
    with console(browser, served[1]) as opened:
        page = opened.page
        page.evaluate("window.isOld = true")

        look = httpx.get(f"{served[1]}/v1/console").json() | {"files": "@0123456789abcdef"}
        page.route("**/v1/console", lambda route: route.fulfill(json=look))
        opened.hurry()
        page.get_by_text("The server has another version of this page.").wait_for()
        page.get_by_role("link", name="Settings").click()
        page.wait_for_function("window.isOld === undefined")


def test_an_answer_that_was_cut_off_is_said_and_looking_goes_on(browser: Browser, served: Served) -> None:
    with console(browser, served[1]) as opened:
        page = opened.page
        page.route("**/v1/console", lambda route: route.fulfill(content_type="application/json", body='{"stores": ['))
        opened.hurry()
        page.get_by_role("alert").get_by_text("The answer cannot be read").first.wait_for()
        page.unroute("**/v1/console")
        page.locator("#connection", has_text=re.compile("^Connected")).wait_for()
