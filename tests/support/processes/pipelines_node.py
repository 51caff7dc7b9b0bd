"""Whether a node may run an application's pipelines."""

from __future__ import annotations

from stateline.config.settings import Config
from stateline.deployment.pipelines.node import be_pipelines_node
from stateline_store import ConfigurationError


def refusal(of: Config) -> str:
    """Why pipelines do not run there; empty where they do."""
    try:
        be_pipelines_node(of)
    except ConfigurationError as error:
        return str(error)
    return ""
