"""`console_imports.py` finds what the console's scripts must not import."""

from __future__ import annotations

import pytest

from console_imports import imports, mistakes, wrong_names


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("base/a.js", "parts/b.js"),
        ("parts/a.js", "places/store.js"),
        ("places/key/a.js", "places/store/b.js"),
        ("places/key/a.js", "places/store.js"),
        ("console.js", "places/store/b.js"),
    ],
)
def test_an_import_from_above_or_of_another_place_is_a_mistake(path: str, name: str) -> None:
    assert [*mistakes({path: {name}})] == [f"{path} imports {name}: move what both need to base or parts."]


def test_scripts_that_import_each_other_are_a_mistake() -> None:
    (line,) = mistakes({"base/a.js": {"base/b.js"}, "base/b.js": {"base/c.js"}, "base/c.js": {"base/a.js"}})
    assert line.startswith("These import each other: base/")


def test_the_consoles_own_imports_are_found_and_right() -> None:
    found = imports()
    assert "base/json.js" in found["parts/rows.js"]
    assert "places/key/level.js" in found["places/key/moment.js"]
    assert [*mistakes(found), *wrong_names()] == []
