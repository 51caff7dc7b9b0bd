"""What `make docs` does beside MkDocs' own: pages that lie outside of docs/, the reference, GitHub's anchors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# The public faces; what else there is may change.
REFERENCE = (
    *("stateline", "stateline.dsl.streams", "stateline.dsl.grouped_tables", "stateline.dsl.cogrouped"),
    *("stateline.serdes", "stateline.stores", "stateline.client"),
    *("stateline.testing", "stateline.spark", "stateline.embedded", "stateline_store.errors"),
)


def reference_page(module: str) -> str:
    """Where the reference of a module is."""
    return f"reference/{module}.md"


def slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading as GitHub makes it."""
    plain = re.sub(r"[`*]|<[^>]+>|\]\([^)]*\)|\[", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", separator)


def on_config(config: MkDocsConfig) -> None:
    config.mdx_configs["toc"]["slugify"] = slug


def on_files(files: Files, config: MkDocsConfig) -> None:
    from mkdocs.structure.files import File

    texts = {page: _within(ROOT / name) for name, page in OUTSIDE.items()}
    texts |= {reference_page(module): f"# `{module}`\n\n::: {module}\n" for module in REFERENCE}
    texts["LICENSE"] = (ROOT / "LICENSE").read_text(encoding="utf-8")
    for at, text in texts.items():
        files.append(File.generated(config, at, content=text))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    for name, at in OUTSIDE.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{re.escape(name)}", rf"](\1{at}", markdown)
    return markdown


def _within(path: Path) -> str:
    """The page, with its links as if it lay in docs/."""
    text = path.read_text(encoding="utf-8").replace("](docs/", "](")
    for name, at in OUTSIDE.items():
        text = text.replace(f"]({name}", f"]({at}")
    return text
