"""How `stateline check` shows its report: sections for people, one object for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from stateline.cli.check.drawings import as_lines
from stateline.cli.check.findings import Finding, Report
from stateline.cli.table import Row, as_text
from stateline.model.graph import Edge


def report_as_text(report: Report) -> str:
    """Topology, settings, topics, stores, each with what was found; the last line says whether a start would work."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield from as_lines(report.parts)
    yield from _listed(report.of_settings)
    yield from ("", as_text(report.topics, as_json=False), *_listed(report.of_topics))
    stores: list[Row] = [
        {
            "store": row["store"],
            "kind": row["kind"],
            "part": row["subtopology"],
            "on this disk": _here(row),
            "would be read": row["begins"],
            "records at most": row["records"],
        }
        for row in report.stores
    ]
    yield from ("", as_text(stores, as_json=False), *_listed(report.of_stores))
    yield from ("", _summary(report))


def _as_json(finding: Finding) -> Row:
    return {"level": finding.level, "message": finding.message}


def _here(row: Row) -> str:
    return f"{row['partitions_here']} of {'?' if row['partitions'] is None else row['partitions']}"


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
    """The same, with all members."""
    return json.dumps(
        {
            "application_id": report.application_id,
            "would_start": report.would_start,
            "topology": [
                {
                    "title": part.title,
                    "nodes": [asdict(drawn) for drawn in part.drawn],
                    "edges": [_edge(edge) for edge in part.edges],
                }
                for part in report.parts
            ],
            "topics": report.topics,
            "stores": report.stores,
            "findings": {
                "settings": [_as_json(finding) for finding in report.of_settings],
                "topics": [_as_json(finding) for finding in report.of_topics],
                "stores": [_as_json(finding) for finding in report.of_stores],
            },
        },
        indent=2,
        ensure_ascii=False,
    )


def _edge(edge: Edge) -> dict[str, str]:
    return {"from": edge.start.key, "to": edge.end.key, "kind": edge.kind}
