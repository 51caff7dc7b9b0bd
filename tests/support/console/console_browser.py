"""A real Chromium for tests of the console, and the application that it looks at: worker, server, data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from stateline.log.embedded import EmbeddedLog
from support import TESTS
from support.apps import console_app
from support.console.chromium_package import ChromiumPackageError, Executable, packaged_chromium
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.running_worker import configured, create, eventually, produce, running
from support.run.patience import HANGING_S, PATIENT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Nothing that asks a server of its own, and no sandbox: tests run as root in containers.
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")


class BrowserMissingError(Exception):
    """No Chromium, or nothing to drive it with; the message says what to install."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window: this machine's, else npm's. Raises `BrowserMissingError` where there is neither."""
    installed = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise BrowserMissingError(f"Playwright is missing ({error}): install the dev requirements.") from error
    try:
        found = packaged_chromium() if installed is None else Executable(Path(installed), dict(os.environ))
    except ChromiumPackageError as error:
        raise BrowserMissingError(f"Chromium is missing ({error}): install it (Debian: chromium).") from error
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.path, env=dict(found.environment), args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Flights:
    """The application of `console_app` with its worker, a log to write to, and servers that start and stop."""

    def __init__(self, directory: Path, commit_interval_ms: int) -> None:
        self.log = EmbeddedLog(directory / "log.db")
        topics = ("flights", "departures", "airport-status")
        create(self.log, dict.fromkeys(topics, console_app.PARTITIONS))
        self.config = configured(console_app.app, directory, commit__interval__ms=commit_interval_ms)
        self.directory = directory

    def fill(self) -> None:
        """Write what the tests look at."""
        hostile = (console_app.HOSTILE_KEY.encode(), b'{"seats": 1}', console_app.START_MS)
        quoted = (b'it\'s a "key" & $HOME/..', b'"<b>bold</b>"', console_app.START_MS)
        produce(self.log, "flights", [*console_app.aircraft_records(60), hostile, quoted])
        produce(self.log, "airport-status", console_app.status_records())
        produce(self.log, "departures", console_app.departure_records(60))

    @contextmanager
    def server(self, port: int, *settings: str) -> Iterator[str]:
        """The address of a server that answers."""
        given = (f"state.dir={self.directory}", f"server.port={port}", PATIENT, *settings)
        command = ["-q", "serve", "support.apps.console_app:app", *(f"--set={setting}" for setting in given)]
        process = Forked(command, cwd=TESTS, env=os.environ, output=2)
        url = f"http://127.0.0.1:{port}"
        try:
            with httpx.Client(base_url=url, timeout=HANGING_S) as client:  # making one takes longer than a request
                eventually(lambda: process.poll() is not None or _is_ready(client), "the server is ready")
            assert process.poll() is None, "the server ended at once"
            yield url
            assert process.poll() is None, f"the server ended by itself with {process.returncode}"
        finally:
            process.terminate()
            process.wait(timeout=HANGING_S)


@contextmanager
def flights(directory: Path, commit_interval_ms: int = 100) -> Iterator[Flights]:
    """The application with a worker that runs, and its data on the way into the stores."""
    made = Flights(directory, commit_interval_ms)
    with running(console_app.app, made.config, made.log):
        made.fill()
        yield made


@contextmanager
def served_flights(directory: Path) -> Iterator[tuple[Flights, str]]:
    """The same with a server, once everything that was written is committed."""
    with flights(directory) as made, made.server(free_port()) as url:
        with httpx.Client(base_url=url, timeout=HANGING_S) as client:
            eventually(lambda: _committed(client) == 62 + 3 + 60, "all records are committed")
        yield made, url


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def _committed(client: httpx.Client) -> int:
    """How many records of all topics are committed."""
    found = 0
    for store in ("aircraft", "airports", "hourly"):
        committed = client.get(f"/v1/stores/{store}/position").json()["committed"].values()
        found += sum(offset + 1 for p in committed for topic in p.values() for offset in topic.values())
    return found
