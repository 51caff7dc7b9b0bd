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
    """One or two sentences with the next step. `declared_otherwise` names the store whose declaration has changed."""

    level: Level
    message: str
    declared_otherwise: str | None = None


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
