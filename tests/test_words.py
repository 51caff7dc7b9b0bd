"""One word per idea: class names of the product, and idioms in pages, messages and docstrings (`docs/glossary.md`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import prose

ROOT = Path(__file__).parents[1]
MODULES = [
    path
    for at in ("service", "store")
    for path in sorted((ROOT / at).rglob("*.py"))
    if "project_template" not in path.parts
]
# One idea in two places: classes of these modules show an idea of another module to users.
SHOWN_AGAIN = {
    "client/client.py": "Scan Snapshot",
    "client/feed.py": "Change",
    "client/nodes.py": "Nodes",
    "client/requests.py": "Query",
    "client/results.py": (
        "Entry Instance Page PartitionAnswer Pipeline PipelineStatus Subtopology Topology Version Window"
    ),
    "client/terms.py": "Terms",
    "processing/store_views.py": "Version",
    "testing/records.py": "Record",
}
IDIOMS = re.compile(
    r"\b(go(es)? on with|anew|lets? go of|stands? (at|still)|comes? to (be|have|nothing|what)|told of|nix"
    r"|takes? the way of|to be had|begins? again where)\b",
    re.IGNORECASE,
)
# A sentence that begins with a pronoun in place of a noun; a question may.
NAMELESS = re.compile(r"(?:^|(?<=[.!?:] ))(?:What|Who|Whoever|Of)\b[^.?!]*(?:[.!]|$)")


@cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def classes(module: Path) -> Iterator[ast.ClassDef]:
    for node in tree_of(module).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def docstrings(module: Path) -> Iterator[str]:
    """The paragraphs of the docstrings, without code and tables."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from prose.paragraphs(ast.get_docstring(node) or "")


def messages(module: Path) -> Iterator[tuple[int, str]]:
    """Line and text of the sentences in the code, without docstrings."""
    nodes = list(ast.walk(tree_of(module)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    yield from (
        (text.lineno, text.value) for text in texts if isinstance(text.value, str) and text.value.count(" ") > 1
    )


def unclear(text: str) -> list[str]:
    return [found[0] for pattern in (IDIOMS, NAMELESS) for found in pattern.finditer(text)]


def test_a_class_name_means_one_thing() -> None:
    shown = {(f"service/stateline/{at}", name) for at, names in SHOWN_AGAIN.items() for name in names.split()}
    homes: dict[str, set[str]] = {}
    for module in MODULES:
        for found in classes(module):
            # The client's errors are the store's, with the answer.
            if not any(ast.unparse(base) == f"errors.{found.name}" for base in found.bases):
                homes.setdefault(found.name, set()).add(str(module.relative_to(ROOT)))
    own = {name: sorted(each for each in at if (each, name) not in shown) for name, at in homes.items()}
    assert {name: at for name, at in own.items() if len(at) > 1} == {}
    stale = {(at, name) for at, name in shown if at not in homes.get(name, ()) or not own[name]}
    assert stale == set(), "leave out those that have one meaning now"


def test_the_check_finds_long_pages_and_files_and_docstrings_that_refer_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        ("docs", "page.md"): "word " * 2500 + "more",
        ("docs", "short.md"): "word " * 2500,
        ("docs/decisions", "it.md"): "word " * 301,
        ("", "CHANGELOG.md"): "- an entry\n" * 151,
        ("service", "long.py"): "x = 1\n" * 301,
        ("store", "known.py"): "x = 1\n" * 301,
        ("store", "shrunk.py"): '"""As `known`."""\n',
    }
    for (folder, name), text in texts.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    monkeypatch.setattr(prose, "LONG_FILES", {"store/": "known shrunk gone"})
    assert [line.partition(":")[0].rpartition("/")[2] for line in prose.mistakes(tmp_path)] == [
        "it.md has 301 words, over 300",
        "page.md has 2501 words, over 2500",
        "CHANGELOG.md has 151 lines, over 150",
        "long.py has 301 lines, over 300",
        "shrunk.py is short now",
        "shrunk.py",
        "gone.py is gone",
    ]


def test_pages_name_things_and_have_no_idioms() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {words}"
        for path in prose.pages()
        for paragraph in prose.paragraphs(path.read_text(encoding="utf-8"))
        for words in unclear(paragraph)
    }
    assert found == set()


def test_docstrings_name_things_and_have_no_idioms() -> None:
    found = {
        f"{module.relative_to(ROOT)}: {words}"
        for module in MODULES
        for paragraph in docstrings(module)
        for words in unclear(paragraph)
    }
    assert found == set()


def test_messages_name_things_and_have_no_idioms() -> None:
    found = {
        f"{module.relative_to(ROOT)}:{line}: {words}"
        for module in MODULES
        for line, text in messages(module)
        for words in unclear(text)
    }
    assert found == set()
