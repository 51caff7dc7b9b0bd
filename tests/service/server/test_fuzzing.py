"""Schemathesis over the server's own OpenAPI document, every check on: what it promises the server does, whatever it is
sent.

In the document that it works from, stores and keys are those that exist, or else most requests would end at the first
look. `FUZZ_EXAMPLES` sets how many examples each operation gets: 400 make more than 20,000 requests.
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
import pytest

from console_browser import served_flights

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "12"))
KEYS = ["N001", "JFK", "LGA", "3", '["JFK","SFO"]']
STORES = ["aircraft", "airports", "hourly", "rushes", "distances", "routes"]
# No schema can say which queries a store's kind answers, how its keys are written, and where its input stands.
REFUSED = ["400", "401", "403", "404", "405", "409", "410", "412", "421", "422", "429", "503"]
SETTINGS = f"""
checks.positive_data_acceptance.expected-statuses = {["2xx", *REFUSED]}
checks.negative_data_rejection.expected-statuses = {REFUSED}
"""
# An endless answer: test_changes has its cases.
ENDLESS = "/v1/stores/{store}/changes"


@pytest.mark.timeout(3600)
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
    assert sent > EXAMPLES * 20, f"{sent} requests are too few to mean anything"


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
    text = httpx.get(f"{url}/metrics", timeout=30).text
    return [line for line in text.splitlines() if line.startswith("stateline_http_requests_total{")]


def _requests(url: str) -> int:
    counts = (re.search(r" ([\d.e+]+)$", line) for line in _outcomes(url))
    return sum(int(float(found[1])) for found in counts if found)
