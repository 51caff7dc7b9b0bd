"""Show the report of `stateline check`: as sections for people, or as a JSON object. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from stateline.cli.table import Row, as_text
from stateline.model.graph import Drawn, GraphPart
from stateline_store import CallerError

Level: TypeAlias = Literal["refused", "unknown", "warning", "note"]
"""A start would be refused; whether it would is not known; it would work, and warn; it would work, and do this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One or two sentences with the next step. `declared_otherwise` names the store whose declaration has changed."""

    level: Level
    message: str
    declared_otherwise: str | None = None


def refused_by(*checks: Callable[[], object]) -> Iterator[Finding]:
    """Yield a finding for each check that raises `CallerError`."""
    for check in checks:
        try:
            check()
        except CallerError as error:
            yield Finding("refused", str(error))


def once_per_store(findings: Iterable[Finding]) -> list[Finding]:
    """Keep one finding per store whose declaration has changed: each of its partitions has the same."""
    told: set[str] = set()
    kept = []
    for finding in findings:
        store = finding.declared_otherwise
        if store is None or store not in told:
            kept.append(finding)
        if store is not None:
            told.add(store)
    return kept


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `stateline check`. `topics` has the rows of `stateline topics`. `stores` has a row per store: its
    state on this disk, and what a start would restore."""

    application_id: str
    parts: Sequence[GraphPart]
    of_settings: Sequence[Finding]
    topics: Sequence[Row]
    of_topics: Sequence[Finding]
    stores: Sequence[Row]
    of_stores: Sequence[Finding]

    @property
    def findings(self) -> list[Finding]:
        return [*self.of_settings, *self.of_topics, *self.of_stores]

    @property
    def would_start(self) -> bool:
        """Whether nothing is refused and nothing is unknown."""
        return not any(finding.level in ("refused", "unknown") for finding in self.findings)


def report_as_text(report: Report) -> str:
    """Topology, settings, topics and stores, each with its findings. The last line says whether a start would work."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield from topology_tree(report.parts)
    yield from _listed(report.of_settings)
    yield from ("", as_text(report.topics, as_json=False), *_listed(report.of_topics))
    stores: list[Row] = [
        {
            "store": row["store"],
            "kind": row["kind"],
            "part": row["subtopology"],
            "on this disk": f"{row['partitions_here']} of {'?' if row['partitions'] is None else row['partitions']}",
            "would be read": row["begins"],
            "records at most": row["records"],
        }
        for row in report.stores
    ]
    yield from ("", as_text(stores, as_json=False), *_listed(report.of_stores))
    yield from ("", _summary(report))


def topology_tree(parts: Sequence[GraphPart]) -> Iterator[str]:
    """A tree below each input topic: `→` for the flow of records, `─` for a store that is read or written. `…` follows
    a node whose own tree is shown elsewhere."""
    for part in parts:
        yield part.title
        followed: set[Drawn] = set()
        for entry in part.entries:
            yield f"  {_named(entry)}"
            yield from _below(part, entry, "    ", followed)


def _below(part: GraphPart, start: Drawn, indent: str, followed: set[Drawn]) -> Iterator[str]:
    followed.add(start)
    for edge in part.edges:
        if edge.start != start:
            continue
        end = edge.end
        goes_on = edge.kind == "flow" and end not in part.entries and any(each.start == end for each in part.edges)
        again = " …" if goes_on and end in followed else ""
        yield f"{indent}{'→' if edge.kind == 'flow' else '─'} {_named(end)}{again}"
        if goes_on and not again:
            yield from _below(part, end, f"{indent}    ", followed)


def _named(drawn: Drawn) -> str:
    name = drawn.name if drawn.kind == "operator" else f"{drawn.kind} {drawn.name}"
    return f"{name} ({drawn.note})" if drawn.note else name


def _listed(findings: Sequence[Finding]) -> Iterator[str]:
    if findings:
        yield ""
    yield from (f"{finding.level}: {finding.message}" for finding in findings)


def _summary(report: Report) -> str:
    levels = [finding.level for finding in report.findings]
    counts = [(levels.count("refused"), "reason"), (levels.count("warning"), "warning")]
    counted = ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count)
    if "refused" in levels:
        return f"{report.application_id} would not start: {counted}."
    if "unknown" in levels:
        return f"Whether {report.application_id} would start is not known: see above."
    return f"{report.application_id} would start{f': {counted}' if counted else ''}."


def report_as_json(report: Report) -> str:
    findings = {"settings": report.of_settings, "topics": report.of_topics, "stores": report.of_stores}
    return json.dumps(
        {
            "application_id": report.application_id,
            "would_start": report.would_start,
            "topology": [
                {
                    "title": part.title,
                    "nodes": [asdict(drawn) for drawn in part.drawn],
                    "edges": [{"from": e.start.key, "to": e.end.key, "kind": e.kind} for e in part.edges],
                }
                for part in report.parts
            ],
            "topics": report.topics,
            "stores": report.stores,
            "findings": {
                part: [{"level": finding.level, "message": finding.message} for finding in found]
                for part, found in findings.items()
            },
        },
        indent=2,
        ensure_ascii=False,
    )
