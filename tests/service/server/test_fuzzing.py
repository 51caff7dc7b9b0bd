"""Schemathesis over the server's own OpenAPI document, every check on: what it promises the server does, whatever it is
sent.

In the document that it works from, stores and keys are those that exist, or else most requests would end at the first
look.

`FUZZ_EXAMPLES` sets how many examples each operation gets. Whatever it is, some 2,500 requests cover what the document
has bounds for; to them come about 15 per example, of the operations that have anything to vary. So 20,000 requests are

    FUZZ_EXAMPLES=1300 .venv/bin/pytest -n 0 tests/service/server/test_fuzzing.py

They take about 20 minutes (17 requests per second), because schemathesis takes ever longer to find an example that is
new. Its `--workers` do not help: its threads share one core, and on Python 3.11 hypothesis fails in them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.console.console_browser import served_flights
from support.run.length import long_or_short
from support.run.patience import HANGING_S

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", long_or_short("12", "4")))
COVERING = 2000  # requests that do not depend on it, at least
KEYS = ["N001", "JFK", "LGA", "3", '["JFK","SFO"]']
STORES = ["aircraft", "airports", "hourly", "rushes", "distances", "routes"]
# No schema can say which queries a kind answers, in which formats, how keys are written, and where the input stands.
REFUSED = ["400", "401", "403", "404", "405", "406", "409", "410", "412", "413", "421", "422", "429", "503"]
# On a busy machine any statement may take longer than the shortest `timeout_ms`, 0.1 s.
SQL_TIMEOUT = "504"
SETTINGS = f"""
checks.positive_data_acceptance.expected-statuses = {["2xx", *REFUSED]}
checks.negative_data_rejection.expected-statuses = {REFUSED}

[[operations]]
include-path = "/v1/sql"
checks.positive_data_acceptance.expected-statuses = {["2xx", *REFUSED, SQL_TIMEOUT]}
checks.negative_data_rejection.expected-statuses = {[*REFUSED, SQL_TIMEOUT]}
checks.not_a_server_error.expected-statuses = {["2xx", "3xx", "4xx", SQL_TIMEOUT]}
"""
# An endless answer, for which schemathesis would wait: it has a test of its own.
ENDLESS = "/v1/stores/{store}/changes"
# Text that an HTTP client can send, in a URL and as a header.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
offsets = st.integers() | st.floats() | st.none() | st.text("0123456789-", max_size=5)
topics = st.sampled_from(["flights", "airport-status", "departures", "flights-rushes-changelog", ""]) | texts
positions = st.dictionaries(topics, st.dictionaries(st.sampled_from("0123x") | texts, offsets, max_size=3), max_size=2)
anything = st.recursive(offsets | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner))
begins = st.sampled_from(["latest", "earliest", ""]) | texts | (positions | anything).map(json.dumps)
changes = st.fixed_dictionaries(
    {},
    optional={
        "from": begins,
        "partition": st.sampled_from(["0", "1", "0,1", "99", "-1", ","]) | texts,
        "isolation_level": st.sampled_from(["read_committed", "read_uncommitted"]) | texts,
        "limit": texts,
    },
)


def test_the_server_does_what_its_openapi_document_says(tmp_path: Path) -> None:
    with served_flights(tmp_path) as (_, url):
        document = tmp_path / "openapi.json"
        document.write_text(json.dumps(_of_what_exists(httpx.get(f"{url}/openapi.json").json())))
        before = _requests(url)
        (tmp_path / "schemathesis.toml").write_text(SETTINGS)
        command = [
            str(Path(sys.executable).with_name("st")), "run", str(document), "--url", url, "--checks", "all",
            "--max-examples", str(EXAMPLES), "--phases", "examples,coverage,fuzzing", "--continue-on-failure",
            "--suppress-health-check", "all", "--exclude-path", ENDLESS, "--warnings", "off",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        sent = _requests(url) - before
        failed = {outcome for outcome in _outcomes(url) if "STORE_EXCEPTION" in outcome}
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert not failed
    assert sent > COVERING + EXAMPLES * 12, f"{sent} requests are too few to mean anything"


def test_whatever_a_change_feed_is_asked_for_it_begins_or_says_why_not(tmp_path: Path) -> None:
    statuses = set()
    with served_flights(tmp_path) as (_, url), httpx.Client(base_url=url, timeout=HANGING_S) as client:
        documented = client.get("/openapi.json").json()["paths"][ENDLESS]["get"]["responses"].keys()

        @settings(max_examples=max(EXAMPLES, 12) * 10, deadline=None, suppress_health_check=list(HealthCheck))
        @given(store=st.sampled_from(STORES), given=changes, last=st.none() | begins)
        def ask(store: str, given: dict[str, str], last: str | None) -> None:
            line = "" if last is None else "".join(filter(str.isprintable, last)).strip()
            headers = {} if last is None else {b"Last-Event-ID": line.encode()}
            with client.stream("GET", ENDLESS.format(store=store), params=given, headers=headers) as response:
                assert str(response.status_code) in documented
                statuses.add(response.status_code)
                if response.status_code == 200:
                    assert response.headers["content-type"].startswith("text/event-stream")
                    assert next(response.iter_bytes()).startswith(b"retry: ")
                else:
                    assert response.headers["content-type"] == "application/problem+json"
                    problem = json.loads(response.read())
                    assert problem["status"] == response.status_code != 500, problem

        ask()
    assert {200, 422} <= statuses


def _of_what_exists(document: dict[str, Any]) -> dict[str, Any]:
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path" and parameter["name"] == "store":
                    parameter["schema"] = {"type": "string", "enum": STORES}
                if parameter["in"] == "path" and parameter["name"] == "key":
                    parameter["schema"] = {"anyOf": [{"enum": KEYS}, {"type": "string"}]}
    return document


def _outcomes(url: str) -> list[str]:
    """The server's counters of requests, a line each."""
    text = httpx.get(f"{url}/metrics", timeout=HANGING_S).text
    return [line for line in text.splitlines() if line.startswith("stateline_http_requests_total{")]


def _requests(url: str) -> int:
    counts = (re.search(r" ([\d.e+]+)$", line) for line in _outcomes(url))
    return sum(int(float(found[1])) for found in counts if found)
