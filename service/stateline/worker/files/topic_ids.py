"""Which topics a task's stores were made from: `<task>/topics.json`, topic → topic id. On disk: never change.

A topic that is deleted and created anew has another id. Its offsets begin again, so that nothing which speaks of the
old ones holds any longer: a table of it is rebuilt, and other stores forget how far into it they had come. A changelog
that was created anew is refused.
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
    """The topics among `ids` that had another id when `remember` was called last. Unknown ones are not among them."""
    before = known(directory)
    return [topic for topic, topic_id in ids.items() if before.get(topic, topic_id) != topic_id]


def unchanged(directory: Path, ids: Mapping[str, str]) -> list[str]:
    """The topics among `ids` that had the same id when `remember` was called last. Unknown ones are not among them."""
    before = known(directory)
    return [topic for topic, topic_id in ids.items() if before.get(topic) == topic_id]


def known(directory: Path) -> dict[str, str]:
    """As `remember` was told last; empty before, and where it cannot be read."""
    try:
        found: dict[str, str] = orjson.loads((directory / _NAME).read_bytes())
    except FileNotFoundError:
        return {}
    except orjson.JSONDecodeError as error:
        logger.warning("%s cannot be read and is written again: %s", directory / _NAME, error)
        return {}
    return found


def remember(directory: Path, ids: Mapping[str, str]) -> None:
    """The stores of this task are of these topics from now on."""
    path = directory / _NAME
    content = orjson.dumps(dict(sorted(ids.items())), option=orjson.OPT_INDENT_2)
    if not path.exists() or path.read_bytes() != content:
        publish(path, content, sync=True)
