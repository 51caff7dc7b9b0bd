"""An application of a test's own, and its configuration."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from stateline import App
from stateline.config.settings import Config
from support.processes.running_worker import configured


@pytest.fixture
def application_id() -> str:
    return f"app-{uuid4().hex[:8]}"


@pytest.fixture
def config(application_id: str, bootstrap: str, tmp_path: Path) -> Config:
    return configured(App(application_id), tmp_path / "state", bootstrap__servers=bootstrap)
