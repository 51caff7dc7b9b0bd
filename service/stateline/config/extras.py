"""Packages that a part of Stateline needs and a plain ``pip install stateline`` does not bring."""

from __future__ import annotations

import importlib.util
from typing import Literal

from stateline_store import ConfigurationError

Extra = Literal["spark", "otel"]

# What must be there, of pyproject's optional dependencies. PySpark refuses to run Python functions without the others.
_PACKAGES: dict[Extra, tuple[str, ...]] = {
    "spark": ("pyspark", "pandas", "google.protobuf"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}


def need_extra(extra: Extra, what: str) -> None:
    """Look whether the packages of this extra are installed; none is imported. `what` needs them, as people call it,
    in the plural.

    Raises `ConfigurationError`, which names those that are missing and what to install.
    """
    if missing := [package for package in _PACKAGES[extra] if not _is_installed(package)]:
        raise ConfigurationError(f"{what} need {', '.join(missing)}, not installed here: run `{install_line(extra)}`.")


def install_line(extra: Extra) -> str:
    """What to type to have it. Where Stateline is installed already, pip adds what is missing."""
    return f"pip install 'stateline[{extra}]'"


def extra_of(module: str) -> Extra | None:
    """The extra that brings a module which an application's own code has failed to import; None if none does."""
    return "spark" if module.partition(".")[0] == "pyspark" else None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of a package inside one that is missing
        return False
