"""Recognise a driver that ``spark-submit`` has started."""

from __future__ import annotations

import os


def is_submitted() -> bool:
    """Whether ``spark-submit`` has started this process, and with it the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
