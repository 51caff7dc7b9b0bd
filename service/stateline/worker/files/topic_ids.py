"""Which topics a task's stores were made from: `<task>/topics.json`, topic → topic id. On disk: never change.

A topic that is deleted and created again has another id, and its offsets begin again. Its tables are rebuilt, and other
stores forget their Position in it. A changelog that was created again is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import orjson

from stateline.deployment.json_files import publish

logger = logging.getLogger(__name__)

_NAME = "topics.json"


def recreated(directory: Path, ids: Mapping[str, str]) -> list[str]:
    """Return the topics among `ids` that had another id at the last `remember`."""
    before = known(directory)
    return [topic for topic, topic_id in ids.items() if before.get(topic, topic_id) != topic_id]


def unchanged(directory: Path, ids: Mapping[str, str]) -> list[str]:
    """Return the topics among `ids` that had the same id at the last `remember`."""
    before = known(directory)
    return [topic for topic, topic_id in ids.items() if before.get(topic) == topic_id]


def known(directory: Path) -> dict[str, str]:
    """Return the ids of the last `remember`; empty before the first, and for an unreadable file."""
    try:
        found: dict[str, str] = orjson.loads((directory / _NAME).read_bytes())
    except FileNotFoundError:
        return {}
    except orjson.JSONDecodeError as error:
        logger.warning("%s cannot be read and is written again: %s", directory / _NAME, error)
        return {}
    return found


def remember(directory: Path, ids: Mapping[str, str]) -> None:
    path = directory / _NAME
    content = orjson.dumps(dict(sorted(ids.items())), option=orjson.OPT_INDENT_2)
    if not path.exists() or path.read_bytes() != content:
        publish(path, content, sync=True)
