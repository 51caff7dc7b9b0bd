"""The documentation of the API as a page of plain HTML, which needs no Internet.

FastAPI's own page loads its scripts from a CDN. This one is made from the same OpenAPI document.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{background:#8882;padding:.1em .3em}table{border-collapse:collapse}td{padding:.2em 1em .2em 0;"
    "vertical-align:top}:root{color-scheme:light dark}"
)


_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

OWN_FILES_ALONE = "default-src 'self'; base-uri 'self'; form-action 'self'; object-src 'none'"
"""Content security policy of pages: no script, style or connection but to this server. Sent beside the policy of every
answer (`answer_headers`)."""
PAGE_HEADERS = {"Content-Security-Policy": OWN_FILES_ALONE, "Referrer-Policy": "no-referrer"}
DOCS_HEADERS = {**PAGE_HEADERS, "Content-Security-Policy": f"{OWN_FILES_ALONE}; style-src 'sha256-{_STYLE_HASH}'"}
"""The same for the documentation, whose style is in the page."""


def docs_page(document: Mapping[str, Any], root: str) -> str:
    """Return the OpenAPI document as a page. `root` is the server's root, as a relative URL from the page's address."""
    parts = [
        _operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    link = f'<p>The same for machines: <a href="{escape(root)}openapi.json">openapi.json</a> (OpenAPI 3.1).</p>'
    title = escape(document["info"]["title"])
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f"{head}<h1>{title}</h1>{link}{''.join(parts)}</html>"


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parameters = _rows((p["name"], p["description"]) for p in operation["parameters"])
    responses = _rows((status, r["description"]) for status, r in operation["responses"].items())
    body = "".join(map(_body, _bodies(operation)))
    return (
        f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
        f"{parameters}{body}{responses}"
    )


def _bodies(operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    body = operation.get("requestBody")
    if not body:
        return []
    schema = body["content"]["application/json"]["schema"]
    return list(schema.get("oneOf", (schema,)))


def _body(kind: Mapping[str, Any]) -> str:
    members = f"<p>Body: <code>{escape(', '.join(kind['properties']))}</code>"
    named = kind["properties"].get("type", {}).get("const")
    return members + (f" with type <code>{escape(named)}</code></p>" if named else "</p>")


def _rows(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td><code>{escape(a)}</code><td>{escape(b)}" for a, b in pairs)
    return f"<table>{rows}</table>"
