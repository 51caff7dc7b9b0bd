"""Pages of two origins in a real browser, and what they get of a server: nothing, or what it allows one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stateline.server.guard.tokens import hash_of
from support.console.console_browser import Flights
from support.processes.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Served = tuple[Flights, str]
TOKEN = "stateline_of_the_dashboard"

FETCHED = """async ([url, options]) => {
    try {
        const answer = await fetch(url, options);
        return {type: answer.type, status: answer.status, position: answer.headers.get("Stateline-Position"),
                text: await answer.text()};
    } catch (error) { return String(error); }
}"""
EMBEDDED = """([tag, name, url]) => new Promise(done => {
    const element = document.createElement(tag);
    element.onload = () => done("load");
    element.onerror = () => done("error");
    element[name] = url;
    document.body.append(element);
})"""


class _Blank(BaseHTTPRequestHandler):
    """A page with nothing on it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Elsewhere</title>")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of another web server on this machine: by `localhost` another site, by 127.0.0.1 the same one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Blank)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@contextmanager
def page_at(browser: Browser, url: str) -> Iterator[Page]:
    page = browser.new_page()
    try:
        page.goto(url)
        yield page
    finally:
        page.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_page_elsewhere_learns_nothing_of_a_server_without_tokens(
    browser: Browser, served: Served, elsewhere: int, host: str
) -> None:
    url = served[1]
    with page_at(browser, f"http://{host}:{elsewhere}/") as page:
        statuses: dict[str, int] = {}
        page.on("response", lambda response: statuses.update({response.url: response.status}))
        for mode in ("cors", "no-cors"):
            asked = f"{url}/v1/stores/aircraft/keys/N001?wait_ms={len(mode)}"
            assert "TypeError" in page.evaluate(FETCHED, [asked, {"mode": mode}])
        for tag, name in (("object", "data"), ("script", "src"), ("img", "src")):
            told = [
                page.evaluate(EMBEDDED, [tag, name, f"{url}/v1/stores/aircraft/keys/{k}"]) for k in ("N001", "none")
            ]
            assert told == ["error", "error"], "whether there is such a key shows"
        page.evaluate(EMBEDDED, ["iframe", "src", f"{url}/"])
        framed = next(frame for frame in page.frames if frame is not page.main_frame)
        assert "Stateline" not in framed.content()
        assert {status for asked, status in statuses.items() if asked.startswith(url)} <= {403}, statuses
        page.evaluate("url => { location.href = url }", f"{url}/")
        page.wait_for_selector(".card")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_dashboard_elsewhere_asks_a_server_with_tokens_that_names_its_origin(
    browser: Browser, served: Served, elsewhere: int, tmp_path: Path, host: str
) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(f'{{"tokens": [{{"name": "dashboard", "sha256": "{hash_of(TOKEN).hex()}"}}]}}')
    tokens.chmod(0o600)
    other = {"localhost": "127.0.0.1", "127.0.0.1": "localhost"}[host]
    dashboard, stranger = (f"http://{name}:{elsewhere}" for name in (host, other))
    with served[0].server(free_port(), f"server.tokens.file={tokens}", f"server.cors.origins={dashboard}") as url:
        mine: dict[str, Any] = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
        query = {"method": "POST", "headers": {**mine["headers"], "Content-Type": "application/json"}}
        with page_at(browser, dashboard) as page:
            found = page.evaluate(FETCHED, [f"{url}/v1/stores/aircraft/keys/N001", mine])
            assert (found["type"], found["status"]) == ("cors", 200)
            posted = page.evaluate(FETCHED, [f"{url}/v1/stores/aircraft/query", {**query, "body": '{"type": "count"}'}])
            assert posted["status"] == 200
            lines = {"headers": {**mine["headers"], "Accept": "application/x-ndjson", "Last-Event-ID": "{}"}}
            assert page.evaluate(FETCHED, [f"{url}/v1/stores/aircraft/range", lines])["position"].startswith("{")
            assert page.evaluate(FETCHED, [f"{url}/v1/stores", {}])["status"] == 401
            without_cors = page.evaluate(FETCHED, [f"{url}/", {"mode": "no-cors"}])
            assert "TypeError" in without_cors, "what the page does not read openly it does not get"
        with page_at(browser, stranger) as page:
            assert "TypeError" in page.evaluate(FETCHED, [f"{url}/v1/stores/aircraft/keys/N001", mine])
            assert "TypeError" in page.evaluate(FETCHED, [f"{url}/healthz", {}])
