"""What Grafana and its Infinity plugin make of a query before they send it.

Grafana's page replaces a dashboard's variables: `${name:json}` of one that may have several values is a JSON array.
Names that it does not know stay. Then the plugin replaces the bounds of the time range, as milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)(?::(\w+))?\}")


def sent(text: str, variables: Mapping[str, Sequence[str]], from_ms: int, to_ms: int) -> str:
    """Return this text of a query as the plugin sends it."""

    def value(found: re.Match[str]) -> str:
        name, form = found[1] or found[2], found[3] or "glob"
        if name not in variables:
            return found[0]
        values = list(variables[name])
        assert form in ("json", "glob")
        if form == "json":
            return json.dumps(values, separators=(",", ":"), ensure_ascii=False)
        return "{" + ",".join(values) + "}" if len(values) > 1 else values[0]

    replaced = _VARIABLE.sub(value, text)
    return replaced.replace("${__timeFrom}", str(from_ms)).replace("${__timeTo}", str(to_ms))


def asked(client: httpx.Client, target: Mapping[str, Any], body: str) -> list[dict[str, Any]]:
    """Return the rows that the server answers to this target, with this body."""
    options = target["url_options"]
    assert (target["type"], target["parser"], target["source"]) == ("json", "backend", "url")
    assert (options["method"], options["body_type"]) == ("POST", "raw")
    headers = {"Content-Type": options["body_content_type"], "Authorization": "Bearer unused"}
    answer = client.post(target["url"], content=body.encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()
    return rows
