"""SELECTs: rows of a store, totals, and two stores joined, at any node. Rows may be shared, and as old as is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from support.oracles.cluster_askers import PROBLEM, Asker
from support.oracles.cluster_oracle import KEPT, Question
from support.oracles.cluster_values import told

_SELECTS = {
    "counts": "select key, value from counts",
    "newest": "select key, value from newest",
    "windows": 'select key, epoch_ms(start) as start, epoch_ms("end") as "end", value from windows',
    "sessions": 'select key, epoch_ms(start) as start, epoch_ms("end") as "end", value from sessions',
    "latest": "select key, epoch_ms(timestamp) as timestamp, value from versions",
}
_TOTALS = "select count(*) as n, sum((value->>0)::bigint) as times, max((value->>1)::bigint) as most from counts"
_JOINED = "select key, c.value as counts, n.value as newest from counts c full join newest n using (key)"
_REFUSALS = {**KEPT, "TOO_MANY_REQUESTS": 429, "SQL_TIMEOUT": 504}
_WAIT_MS = 1_000
_AGES_MS = (0, 0, 100, 500, 1_000, 3_000)


def sql_rows(asker: Asker) -> None:
    """All rows, or those of some keys; now, or with a bound."""
    shape = asker.chance.choice([*_SELECTS])
    keys = tuple(asker.chance.sample(asker.keys, 3)) if asker.chance.random() < 0.5 else ()
    bound = {"position_bound": asker.bound, "wait_ms": str(_WAIT_MS)} if asker.chance.random() < 0.3 else {}
    named = ", ".join(f"'{key}'" for key in keys)
    sql = f"{_SELECTS[shape]} where key in ({named})" if keys else _SELECTS[shape]
    if (asked := _ask(asker, shape, sql, keys, bound)) is not None:
        question, answer = asked
        offsets = _check_offsets(asker, question, answer["position"])
        asker.oracle.check_rows(question, offsets, told(shape, answer["rows"]))


def sql_totals(asker: Asker) -> None:
    """A row that all rows make."""
    if (asked := _ask(asker, "counts", _TOTALS)) is not None:
        question, answer = asked
        offsets = _check_offsets(asker, question, answer["position"])
        rows = asker.oracle.expected.rows("counts", (), offsets).values()
        most = {"n": len(rows), "times": sum(n for n, _ in rows), "most": max((m for _, m in rows), default=None)}
        if rows and answer["rows"] != [most]:
            asker.oracle.fail("wrong", f"{answer['rows']}, to be answered: {most} at {offsets}: {question}")


def sql_joined(asker: Asker) -> None:
    """Rows of two stores, each at its Position, or both at one."""
    if (asked := _ask(asker, "counts", _JOINED)) is None:
        return
    question, answer = asked
    if answer["cut"] and answer["positions"]["counts"] != answer["positions"]["newest"]:
        asker.oracle.fail("wrong", f"a cut is of two moments: {answer}")
    for store, position in answer["positions"].items():
        of_store = Question(question.node, store, (), question.terms, question.sent_s, question.received_s)
        offsets = _check_offsets(asker, of_store, position)
        rows = [{"key": row["key"], "value": row[store]} for row in answer["rows"] if row[store] is not None]
        asker.oracle.check_rows(of_store, offsets, told(store, rows))


def _ask(
    asker: Asker, shape: str, sql: str, keys: tuple[str, ...] = (), terms: Mapping[str, str] | None = None
) -> tuple[Question, dict[str, Any]] | None:
    """Return an answer, and what was asked; None for a node that is away, and for a refusal."""
    terms = {"max_age_ms": str(asker.chance.choice(_AGES_MS)), **(terms or {})}
    node, sent_s = asker.node(), time.monotonic()
    body = {"sql": sql, "details": "all", **{name: json.loads(each) for name, each in terms.items()}}
    answer = asker.get(node, "/v1/sql", body=body)
    if answer is None:
        return None
    if answer.headers["content-type"].startswith(PROBLEM):
        asker.oracle.refused(answer.status_code, answer.json(), _REFUSALS)
        return None
    asker.asked["SQL answers"] += 1
    return asker.question(node, shape, keys, terms, sent_s), answer.json()


def _check_offsets(asker: Asker, question: Question, position: Mapping[str, Mapping[str, int]]) -> dict[int, int]:
    """Return the offsets of this Position: of all partitions, at the bound, or else no older than what was known when
    the question was sent, less the age that it accepts."""
    offsets = asker.offsets(position)
    asker.oracle.check_whole(question, offsets)
    if not question.bound:
        accepted_s = int(question.terms["max_age_ms"]) / 1000
        asker.oracle.check_fresh(replace(question, sent_s=question.sent_s - accepted_s), offsets)
    for p, offset in question.bound.get(asker.topic, {}).items():
        if offsets.get(int(p), -1) < offset:
            asker.oracle.fail("backward", f"partition {p} is before its bound {offset}: {question} {offsets}")
    return offsets


SQL: Mapping[Callable[[Asker], None], int] = {sql_rows: 6, sql_totals: 3, sql_joined: 3}
"""How often what is asked, beside what has one answer."""
