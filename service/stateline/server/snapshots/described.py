"""A snapshot as answers show it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from stateline.server.snapshots.asked_nodes import AskedNodes
from stateline.server.snapshots.cluster import KeptSnapshot
from stateline.server.snapshots.operations import PATH
from stateline_store import Position
from stateline_store.snapshots.checkpoints import CheckpointPart


def described(found: KeptSnapshot, nodes: AskedNodes) -> dict[str, Any]:
    """The JSON. Where there are several nodes, parts say which one keeps them, and their URLs as far as they are known:
    of one alone the path is right at whatever address it was asked."""
    snapshot = found.snapshot
    stores: dict[str, dict[int, Any]] = {}
    position = Position()
    for each in found.nodes:
        for part in each.parts:
            position = position.merge(part.position)
            stores.setdefault(part.store, {})[part.partition] = _part(found, each.node, part, nodes)
    return {
        "id": snapshot.id,
        "created_at": snapshot.created_at_ms,
        "expires_at": snapshot.expires_at_ms,
        "position": position.to_json(),
        "stores": {store: {str(p): parts[p] for p in sorted(parts)} for store, parts in stores.items()},
    }


def _part(found: KeptSnapshot, node: str, part: CheckpointPart, nodes: AskedNodes) -> dict[str, Any]:
    path = f"{PATH}/{found.snapshot.id}/stores/{quote(part.store, safe='')}/partitions/{part.partition}"
    several: dict[str, str] = {}
    if nodes.shown is not None or found.snapshot.elsewhere:
        url = nodes.url(node)
        several = {"node": node} if url is None else {"node": node, "url": url + path}
    return {
        "path": path,
        **several,
        "position": part.position.to_json(),
        "commit": part.commit,
        "committed_at_ms": part.committed_at_ms,
    }
