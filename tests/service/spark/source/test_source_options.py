"""The options of the format: what they mean, and what is refused before anybody is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateline.client.lean.snapshot_rows import PartAddress
from stateline.spark.reading.source_options import SNAPSHOT_OPTIONS, SourceOptions, is_of_changes, read_options
from stateline_store import ConfigurationError, InvalidArgumentError

URL = "http://localhost:8000"
DOCUMENT = Path(__file__).parents[4] / "docs" / "spark.md"


def options(environment: dict[str, str] | None = None, /, **given: str) -> SourceOptions:
    return read_options({"url": URL, "store": "orders", **given}, environment or {})


def test_case_and_underscores_of_names_do_not_count() -> None:
    for name in ("token_file", "tokenFile", "TOKENFILE", "tokenfile"):
        assert options(None, **{name: "/t"}).server.token_file == "/t"


def test_the_cut_has_the_store_whatever_else_is_named() -> None:
    assert options().stores == ("orders",)
    assert options(stores="a, b,a").stores == ("a", "b", "orders")


def test_a_token_comes_from_the_option_before_the_environment_and_shows_nowhere() -> None:
    environment = {"STATELINE_TOKEN": "of-environment"}
    assert options(environment).server.token == "of-environment"
    assert options(environment, token="of-option").server.token == "of-option"
    assert options(environment, token_file="/t").server.token is None
    assert "of-option" not in repr(options(token="of-option"))


def test_streams_of_changes_are_told_by_an_option_that_snapshots_refuse() -> None:
    assert is_of_changes({"Changes": "TRUE"})
    assert not is_of_changes({"changes": "false"})
    assert options(changes="false").store == "orders"
    with pytest.raises(InvalidArgumentError, match="readStream"):
        options(changes="true")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"store": " "}, "store is missing"),
        ({"url": ""}, "url is missing"),
        ({"url": "localhost:8000"}, "no address"),
        ({"url": "http://ann:secret@host"}, "a name or a password"),
        ({"url": f"{URL},ftp://x"}, "no address"),
        ({"prefx": "a"}, "There is no option 'prefx'"),
        ({"token": "a", "token_file": "b"}, "leave out one"),
        ({"token_file": "a", "tokenFile": "b"}, "given twice"),
        ({"snapshot": "0" * 24, "pin": "a"}, "leave out pin"),
        ({"snapshot": "x"}, "24 hexadecimal digits"),
        ({"pin": "x" * 65}, "65 characters"),
        ({"ttl_s": "0"}, "ttl_s='0'"),
        ({"ttl_s": "1.5"}, "ttl_s='1.5'"),
        ({"retry_s": "nan"}, "retry_s='nan'"),
        ({"max_age_s": "-1"}, "max_age_s='-1'"),
        ({"split_bytes": "0"}, "split_bytes='0': a number of bytes"),
        ({"keys": "a,b"}, r"keys='a,b' is no list in JSON: '\[\"a\", \"b\"\]' is one"),
        ({"keys": '"a"'}, "no list in JSON"),
        ({"keys": '["a"]', "upper": "b", "prefix": "a"}, "leave out upper and prefix, or keys"),
        ({"lease": "forever"}, "driver or ttl"),
        ({"renew": "yes"}, "true or false"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_showing_secrets(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says) as raised:
        options(None, **given)
    assert "secret" not in str(raised.value)


def test_every_option_is_in_the_document() -> None:
    table = DOCUMENT.read_text(encoding="utf-8").partition("## Options")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    shown = {name.strip(" `") for row in rows for name in row.split(",")}
    assert shown == set(SNAPSHOT_OPTIONS) - {"changes"}


def test_a_part_is_asked_of_its_node_and_of_the_others_behind_it() -> None:
    server = options(url="http://a,http://b/").server
    assert PartAddress("/p").at(server) is server
    assert PartAddress("/p", "http://b/p").at(server).urls == ("http://b", "http://a")
    assert PartAddress("/p", "http://c/p").at(server).urls == ("http://c", "http://a", "http://b/")


def test_a_token_for_https_is_not_sent_without() -> None:
    server = options(url="https://a", token="secret").server
    with pytest.raises(ConfigurationError, match=r"node\.url"):
        PartAddress("/p", "http://b/p").at(server)
    assert PartAddress("/p", "https://b/p").at(server).token == "secret"
