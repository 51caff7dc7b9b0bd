"""Check packages that parts of Stateline need and a plain ``pip install stateline`` does not install."""

from __future__ import annotations

import importlib.util
from typing import Literal

from stateline_store import ConfigurationError

Extra = Literal["spark", "otel", "sql", "backup", "delta", "mcp"]

# Required parts of pyproject's optional dependencies. PySpark runs no Python functions without the others.
_PACKAGES: dict[Extra, tuple[str, ...]] = {
    "spark": ("pyspark", "pandas", "google.protobuf"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "sql": ("duckdb",),
    "backup": ("obstore",),
    "delta": ("deltalake", "duckdb", "obstore"),
    "mcp": ("mcp",),
}


def need_extra(extra: Extra, what: str) -> None:
    """Raise `ConfigurationError` if packages of this extra are missing, with the command that installs them. Imports
    none. `what` names in the plural what needs them."""
    if missing := [package for package in _PACKAGES[extra] if not _is_installed(package)]:
        raise ConfigurationError(f"{what} need {', '.join(missing)}, not installed here: run `{install_line(extra)}`.")


def lacks(extra: Extra) -> bool:
    """Whether a package of this extra is missing. Imports none."""
    return not all(map(_is_installed, _PACKAGES[extra]))


def install_line(extra: Extra) -> str:
    """The command that installs it, also beside an installed Stateline."""
    return f"pip install 'stateline[{extra}]'"


def extra_of(module: str) -> Extra | None:
    """The extra with a module that the application's code failed to import."""
    return "spark" if module.partition(".")[0] == "pyspark" else None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that contains it is missing
        return False
