"""All entries of a store: page after page, each of another node, and as one stream of lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from support.oracles.cluster_askers import PROBLEM, Asker
from support.oracles.cluster_oracle import REFUSALS
from support.oracles.cluster_values import Rows, told

_SCANS = {
    "counts": "counts/range",
    "newest": "newest/range",
    "latest": "versions/range",
    "windows": "windows/windows",
    "sessions": "sessions/sessions",
}


def pages(asker: Asker) -> None:
    """Every page is of the state of the first one, whoever is asked for it; all of them are all there was."""
    shape = asker.chance.choice([*_SCANS])
    node, path, sent_s = asker.node(), f"/v1/stores/{_SCANS[shape]}", time.monotonic()
    terms = {"limit": str(asker.chance.choice((7, 25, 150)))}
    answer = asker.get(node, path, terms)
    if answer is None:
        return
    question, body = asker.question(node, shape, (), terms, sent_s), answer.json()
    if answer.status_code != 200:
        asker.oracle.refused(answer.status_code, body, REFUSALS)
        return
    position, rows = body["position"], told(shape, body["entries"])
    asker.oracle.check_whole(question, asker.offsets(position))
    asker.oracle.check_fresh(question, asker.offsets(position))
    while cursor := body.get("cursor"):
        answer = asker.get(asker.node(), path, {**terms, "cursor": cursor})
        if answer is None:
            break
        body = answer.json()
        if answer.status_code != 200:
            asker.oracle.refused(answer.status_code, body)
            break
        if body["position"] != position:
            asker.oracle.fail("wrong", f"a page is of {body['position']}, the first one of {position}: {question}")
        more = told(shape, body["entries"])
        if not more or rows.keys() & more.keys():
            asker.oracle.fail("wrong", f"a page has nothing, or what another one had: {question} {body}")
        rows |= more
    is_whole = answer is not None and answer.status_code == 200
    asker.asked["pages to their end"] += is_whole
    asker.oracle.check_rows(question, asker.offsets(position), rows, whole=is_whole)


def stream(asker: Asker) -> None:
    """Lines of JSON, all of one state; a stream that breaks off has no end."""
    shape = asker.chance.choice([*_SCANS])
    node, path, sent_s = asker.node(), f"/v1/stores/{_SCANS[shape]}", time.monotonic()
    lines: list[str] = []
    is_whole, position = False, "{}"
    with asker.stream(node, path, {}, {"Accept": "application/x-ndjson"}) as answer:
        if answer is None:
            return
        if answer.headers["content-type"].startswith(PROBLEM):
            asker.oracle.refused(answer.status_code, answer.json(), REFUSALS)
            return
        position = answer.headers["Stateline-Position"]
        for line in answer.iter_lines():
            lines.append(line)
        is_whole = True
    asker.asked["streams to their end"] += is_whole
    question, offsets = asker.question(node, shape, (), {}, sent_s), asker.offsets(json.loads(position))
    if is_whole:
        rows: Rows = told(shape, map(json.loads, lines))
        asker.oracle.check_whole(question, offsets)
        asker.oracle.check_fresh(question, offsets)
        asker.oracle.check_rows(question, offsets, rows)


SCANS: Mapping[Callable[[Asker], None], int] = {pages: 6, stream: 6}
"""How often what is asked, beside what is asked once."""
