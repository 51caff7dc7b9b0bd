"""What `stateline check` found: values that are shown as text or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stateline.cli.table import Row
from stateline.model.graph import GraphPart

Level: TypeAlias = Literal["refused", "unknown", "warning", "note"]
"""A start would be refused; whether it would is not known; it would work, and warn; it would work, and do this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence or two, with what to do next. `declared_otherwise` is the store of one that says so."""

    level: Level
    message: str
    declared_otherwise: str | None = None


def once_per_store(findings: Iterable[Finding]) -> list[Finding]:
    """Without those that say again, of another partition, that a store is declared otherwise."""
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
    """All of it. A row of `topics` is as `stateline topics` shows it; one of `stores` says what this disk has of the
    store, and what would be restored."""

    application_id: str
    parts: Sequence[GraphPart]
    of_settings: Sequence[Finding]
    topics: Sequence[Row]
    of_topics: Sequence[Finding]
    stores: Sequence[Row]
    of_stores: Sequence[Finding]

    @property
    def findings(self) -> list[Finding]:
        """Of settings, then of topics, then of stores."""
        return [*self.of_settings, *self.of_topics, *self.of_stores]

    @property
    def would_start(self) -> bool:
        """Whether nothing is known that a start would be refused for, and all could be looked at."""
        return not any(finding.level in ("refused", "unknown") for finding in self.findings)
