"""The site that `make docs` makes has every page, and links lead to headings, there as on GitHub. MkDocs itself is not
needed: `make docs` is strict besides."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML brings no types of its own

from test_docs import DOCUMENTS, ROOT

PAGES = [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]


def _hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = _hooks()


def pages_of(nav: Any) -> Iterator[str]:
    """Every page that is in it, however deep."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Those of a page's headings, as GitHub makes them; of equal headings the later ones are not counted."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return frozenset(HOOKS.slug(heading) for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE))


def test_every_page_is_in_the_navigation_once() -> None:
    nav = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    reference = {HOOKS.reference_page(module) for module in HOOKS.REFERENCE}
    assert sorted(nav) == sorted(pages | reference | set(HOOKS.OUTSIDE.values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_headings_that_there_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text):
        there = (page.parent / target).resolve() if target else page
        assert anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_stay_where_the_site_can_follow(page: Path) -> None:
    """To pages and images of docs/, and to what is brought in from outside."""
    brought = {ROOT / name for name in HOOKS.OUTSIDE} | {ROOT / "LICENSE"}
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8")):
        there = (page.parent / target).resolve()
        assert there in brought or there.is_relative_to(ROOT / "docs"), target


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("What happens when …", "what-happens-when-"),
        ("`stateline.client`: errors", "statelineclient-errors"),
        ("Keys & values", "keys--values"),
        ("Put [here](there.md)", "put-here"),
    ],
)
def test_anchors_are_githubs(heading: str, anchor: str) -> None:
    assert HOOKS.slug(heading) == anchor


def test_the_reference_has_the_modules_that_are_for_applications() -> None:
    for module in HOOKS.REFERENCE:
        assert importlib.util.find_spec(module) is not None, module
