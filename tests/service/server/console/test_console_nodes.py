"""The console's nodes, in a real Chromium: who has what, and a rebalance as it goes. What the server says of others is
put into its answers here; `tests/integration/test_told_of_nodes.py` has real ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from service.server.console.test_console_accessibility import CONTRAST
from stateline.dsl.app import App
from support.console.console_browser import Flights
from support.console.console_page import Console, console
from support.console.told import change_look, say
from support.processes.served_here import served_here

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Served = tuple[Flights, str]


def node(**tasks: tuple[str, int | None, int]) -> dict[str, Any]:
    """A node that is reached, with role, lag and what is left of a restore of each task; "left" is a standby that
    nobody follows."""
    found = {
        task.removeprefix("t"): {
            "role": "standby" if role == "left" else role,
            "followed": role == "standby",
            "generation": 1,
            "lag_records": lag,
            "restore_remaining": left,
        }
        for task, (role, lag, left) in tasks.items()
    }
    since = int(time.time() * 1000) - 200_000
    told = {"url": "http://two:8000", "version": "0.1.0", "rack": None, "reached": True}
    return {**told, "reached_at_ms": since, "fault": None, "tasks": found}


class Shown:
    """An open page of the nodes, and what its server says of them."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] | None = None
        self.page: Any = None

    def open(self, page: Console) -> None:
        self.page = page.page
        change_look(page.page, lambda _: {"cluster": self.cluster})
        page.hurry()

    def say(self, **nodes: dict[str, Any]) -> None:
        self.cluster = {"node": "one", "nodes": nodes, "tasks": ["0_0", "0_1"]}

    def wait_for(self, name: str, fact: str, text: str) -> None:
        """Until the card of this node says so."""
        card = self.page.locator(".card", has=self.page.get_by_role("heading", name=name, exact=True))
        card.locator("div", has=self.page.get_by_text(fact, exact=True)).locator("dd", has_text=text).wait_for()

    def wait_for_note(self, text: str) -> None:
        self.page.locator("#settled", has_text=text).wait_for()

    def rows(self) -> list[list[str]]:
        found: list[list[str]] = (
            self.page.get_by_role("table")
            .locator("tbody tr")
            .evaluate_all("all => all.map(row => [...row.children].map(cell => cell.textContent))")
        )
        return found


@pytest.fixture(scope="module")
def shown(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    made = Shown()
    with (
        served_here(tmp_path_factory.mktemp("n"), app=App("flights-app")) as here,
        console(browser, f"{str(here.client.base_url).rstrip('/')}/nodes", first=".nothing") as page,
    ):
        page.page.get_by_text("This node runs alone").wait_for()
        page.page.get_by_text("No worker has run here").wait_for()
        made.open(page)
        yield made


def test_a_rebalance_is_seen_until_it_has_settled(shown: Shown) -> None:
    shown.say(one=node(t0_0=("active", 0, 0), t0_1=("standby", 12, 0)), two=node(t0_1=("active", 0, 0)))
    shown.wait_for_note("Settled: each of 2 tasks has its owner.")
    assert shown.rows() == [["0_0", "active", "", ""], ["0_1", "standby, 12 behind", "active", ""]]
    shown.wait_for("one (this one)", "Tasks", "1 active, 1 standby")
    shown.wait_for("one (this one)", "Lag", "12")
    shown.wait_for("two", "Reached", "for 3 min")
    assert shown.page.get_by_role("link", name="http://two:8000").first.get_attribute("href") == "http://two:8000/"

    gone = node() | {"reached": False, "fault": "two:8001 cannot be reached: <b>no</b>", "reached_at_ms": None}
    shown.say(one=node(t0_0=("active", 0, 0), t0_1=("left", None, 0)), two=gone)
    shown.wait_for_note("Not settled: 1 of 2 tasks without an owner.")
    assert shown.rows()[1] == ["0_1", "left", "", "no owner, was on two"]
    shown.wait_for("one (this one)", "Tasks", "1 active, 1 left behind")
    shown.wait_for("one (this one)", "Lag", "0")
    note = shown.page.locator(".card.bad .note")
    assert note.inner_text() == "two:8001 cannot be reached: <b>no</b>"
    shown.wait_for("two", "Tasks", "unknown")

    shown.say(one=node(t0_0=("active", 0, 0), t0_1=("restoring", None, 1234)), two=gone)
    shown.wait_for_note("Not settled: 1 being restored, 1,234 offsets left.")
    assert shown.rows()[1][1] == "restoring, 1,234 left"
    shown.wait_for("one (this one)", "To restore", "1,234")

    shown.say(one=node(t0_0=("active", 0, 0), t0_1=("restoring", None, 1000)), two=gone)
    shown.wait_for("one (this one)", "To restore", "1,000, about ")
    assert shown.rows()[1][1].startswith("restoring, 1,000 left, about ")

    shown.say(one=node(t0_0=("active", 0, 0), t0_1=("active", 0, 0)), two=gone)
    shown.wait_for_note("Settled")
    assert shown.rows()[1][3].startswith("from two to one, ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nodes_can_be_read_in_both_colours_and_on_a_phone(shown: Shown, scheme: Any) -> None:
    long = node() | {"reached": False, "fault": "x" * 400, "url": None}
    shown.say(one=node(t0_0=("active", 0, 0)), **{"n" * 60: long})
    shown.page.locator(".card .note", has_text="xxxx").wait_for()
    shown.page.emulate_media(color_scheme=scheme)
    seen, failing = shown.page.evaluate(CONTRAST)
    assert seen > 20
    assert failing == []
    shown.page.set_viewport_size({"width": 360, "height": 740})
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_node_alone_shows_its_workers_with_their_tasks(browser: Browser, served: Served) -> None:
    with console(browser, f"{served[1]}/nodes") as page:
        card = page.page.locator(".card", has=page.page.get_by_role("heading", name="worker-0", exact=True))
        card.get_by_text("6 running", exact=True).wait_for()
        card.get_by_text("0_0, 0_1, 1_0, 1_1, 2_0, 2_1").wait_for()
        page.page.get_by_role("link", name="Nodes", exact=True).wait_for()


def test_a_worker_that_has_ended_is_said_with_what_becomes_of_its_tasks(browser: Browser, served: Served) -> None:
    with console(browser, f"{served[1]}/nodes") as page:
        ended = {"instance": "worker-7", "pid": 4711, "alive": False, "reachable": False, "tasks": {}}
        say(page.page, "/v1/instances", {"instances": [ended]})
        page.hurry()
        card = page.page.locator(".card.bad", has_text="worker-7")
        card.get_by_text("It has ended. Its tasks move to other workers").wait_for()


def test_a_restore_on_a_node_alone_tells_how_long_it_takes(browser: Browser, served: Served) -> None:
    left = iter(range(9000, 0, -5))

    def restoring(said: dict[str, Any]) -> dict[str, Any]:
        first, *others = said["stores"]
        return {"stores": [first | {"states": {"restoring": 2}, "lag": next(left)}, *others]}

    with console(browser, f"{served[1]}/nodes") as page:
        change_look(page.page, restoring)
        page.hurry()
        table = page.page.get_by_role("table", name="Stores being restored")
        table.locator("tr", has_text="aircraft").get_by_text("about ").wait_for()
