"""The addresses of the console. All of them show one page, which reads its own address."""

from __future__ import annotations

import re

_PLACES = ("stores", "queries", "sql", "pipelines", "topology", "nodes", "snapshots", "failures", "settings")

# As routes. `name` and not `store`: whoever opens one has read nothing of the store yet. The root is the last: metrics
# call all of them by its path.
PAGES = ("/stores/{name}/keys/{key:stateline_key}", "/stores/{name}", *(f"/{place}" for place in _PLACES), "/")
FILES = "/console/{path:path}"

_PAGE = re.compile(rf"/(?:{'|'.join(_PLACES)})?|/stores/[^/]+(?:/keys/[\s\S]*)?")


def is_console_page(path: str) -> bool:
    """Return whether the console's page is at this path, decoded or not."""
    return _PAGE.fullmatch(path) is not None


def is_of_console(path: str) -> bool:
    """Return whether this path is the page's, or may be one of its files."""
    return is_console_page(path) or (path.startswith("/console/") and path != "/console/")
