"""Measure how easy the documentation is to read, and what is too long: `python tests/prose.py [FILE ...]`.

It reads README.md, CONTRIBUTING.md and every page of docs/, without code, tables and headings. It prints one line per
page and the totals, and exits with 1 if a total misses its target. `--long` lists sentences over 30 words. `--quiet`
prints only missed targets. Without files it also checks these limits:

| what                                     | at most                          |
|------------------------------------------|----------------------------------|
| words per sentence, mean                 | 15                               |
| sentences over 30 words                  | 5 %                              |
| words per paragraph, mean                | 40                               |
| which, that, what, … (`_PRONOUNS`)       | 22 per 1,000 words               |
| words of a page of docs/, counted alike  | 2,500; of a decision 300         |
| lines of CHANGELOG.md                    | 150                              |
| lines of a product file                  | 300, except those in LONG_FILES  |
| docstrings that begin with "As"          | 0                                |
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG_SENTENCE_WORDS = 30
TARGETS = {
    "words per sentence": 15.0,
    "long sentences, %": 5.0,
    "words per paragraph": 40.0,
    "pronouns per 1,000": 22.0,
}
PAGE_WORDS, DECISION_WORDS, CHANGELOG_LINES, FILE_LINES = 2500, 300, 150, 300
# Product files over the limit: a file that is short now leaves this list, and no other joins it.
LONG_FILES = {
    "service/stateline/": (
        "client/async_client client/client client/requests client/results config/settings dsl/app "
        "dsl/declarations dsl/streams log/embedded_consumer log/interface log/kafka_admin log/kafka_consumer "
        "log/kafka_producer processes/supervisor processing/store_views query/kinds query/wire serde/plain "
        "server/changes/rows server/nodes/nodes server/queries/routes server/snapshots/routes "
        "server/state/group_watch server/state/partitions server/state/workers "
        "spark/drivers/several_pipelines worker/loop/worker worker/queries/query_socket "
        "worker/standbys/standby_assignment worker/standbys/standby_tasks"
    ),
    "store/stateline_store/": ("reads/queries snapshots/snapshot_directory"),
}

_PRONOUNS = frozenset(("which", "that", "what", "whose", "who", "those", "these"))
_FENCE = re.compile(r"^ *(```|~~~)")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'*`]*\s+(?=[A-Z`*\[(\"'])")
_WORD = re.compile(r"[A-Za-z0-9][\w'’./:=-]*")
_CODE = re.compile(r"``.+?``|`[^`]*`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_AS = re.compile(r'"""As ')
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf)\.", re.IGNORECASE)


@dataclass
class Prose:
    """The paragraphs of a text, each as its sentences, each of them a list of words."""

    paragraphs: list[list[list[str]]] = field(default_factory=list)

    @property
    def sentences(self) -> list[list[str]]:
        """All sentences, in order."""
        return [sentence for paragraph in self.paragraphs for sentence in paragraph]

    @property
    def words(self) -> list[str]:
        """All words, in order."""
        return [word for sentence in self.sentences for word in sentence]

    def figures(self) -> dict[str, float]:
        """The figures that `TARGETS` names; 0 for a text without sentences."""
        words, sentences = self.words, self.sentences
        pronouns = sum(word.lower() in _PRONOUNS for word in words)
        return {
            "words per sentence": _ratio(len(words), len(sentences)),
            "long sentences, %": _ratio(100 * sum(len(s) > LONG_SENTENCE_WORDS for s in sentences), len(sentences)),
            "words per paragraph": _ratio(len(words), len(self.paragraphs)),
            "pronouns per 1,000": _ratio(1000 * pronouns, len(words)),
        }


def prose_of(text: str) -> Prose:
    """Return the prose of a Markdown text: no code, tables, headings, HTML or indented blocks."""
    found = Prose()
    for plain in paragraphs(text):
        sentences = [_WORD.findall(s) for s in _SENTENCE_END.split(_ABBREVIATIONS.sub(r"\1", plain))]
        if kept := [sentence for sentence in sentences if sentence]:
            found.paragraphs.append(kept)
    return found


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs and items of lists, with `code` for each code, and links without their targets."""
    return [_LINK.sub(r"\1", _CODE.sub("code", each)) for each in _paragraphs(text.splitlines())]


def pages() -> list[Path]:
    """The files that the targets are of."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def mistakes(root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each page or file of this tree that is too long, and each docstring that refers elsewhere."""
    for page in sorted((root / "docs").rglob("*.md")):
        limit = PAGE_WORDS if page.name == "README.md" or page.parent.name != "decisions" else DECISION_WORDS
        if (words := len(prose_of(page.read_text(encoding="utf-8")).words)) > limit:
            yield f"{page.relative_to(root)} has {words} words, over {limit}: make two pages of it."
    if (lines := len((root / "CHANGELOG.md").read_text(encoding="utf-8").splitlines())) > CHANGELOG_LINES:
        yield f"CHANGELOG.md has {lines} lines, over {CHANGELOG_LINES}: join entries."
    known = {f"{at}{name}.py" for at, names in LONG_FILES.items() for name in names.split()}
    for file in sorted(path for at in ("service", "store") for path in (root / at).rglob("*.py")):
        text, name = file.read_text(encoding="utf-8"), str(file.relative_to(root))
        is_long = text.count("\n") > FILE_LINES
        if is_long and name not in known:
            yield f"{name} has {text.count(chr(10))} lines, over {FILE_LINES}: make two modules of it."
        if name in known and not is_long:
            yield f"{name} is short now: leave it out of LONG_FILES in tests/prose.py."
        for found in _AS.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{name}:{line}: the docstring begins with 'As': say what it does."
    yield from (f"{name} is gone: leave it out of LONG_FILES." for name in sorted(known) if not (root / name).exists())


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Paragraphs and items of lists, each in one line."""
    open_lines: list[str] = []
    in_code = in_list = False
    for line in [*lines, ""]:
        if _FENCE.match(line):
            in_code = not in_code
            line = ""
        if in_code:
            continue
        item = _LIST_ITEM.match(line)
        indented = line.startswith("    ") and not in_list and not open_lines
        skipped = not line.strip() or indented or line.lstrip().startswith(("|", "#", "<", "---", "!!!", "???", "{%"))
        if (skipped or item) and open_lines:
            yield " ".join(open_lines)
            open_lines = []
        if not skipped:
            open_lines.append(_LIST_ITEM.sub("", line).strip().removeprefix("> "))
        in_list = bool(item) or (in_list and (not line.strip() or line.startswith(" ")))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _line(name: str, prose: Prose) -> str:
    return f"{name:<34} {len(prose.words):>7}  " + "  ".join(f"{value:>6.1f}" for value in prose.figures().values())


def main(arguments: list[str]) -> int:
    """Print the figures of these files, or of all pages; 1 if a total misses its target."""
    named = [Path(each).resolve() for each in arguments if not each.startswith("--")]
    files = named or pages()
    everything, shown = Prose(), list[str]()
    shown.append(f"{'page':<34} {'words':>7}  " + "  ".join(f"{name}" for name in TARGETS))
    for path in files:
        prose = prose_of(path.read_text(encoding="utf-8"))
        everything.paragraphs += prose.paragraphs
        shown.append(_line(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path), prose))
        if "--long" in arguments:
            for sentence in prose.sentences:
                if len(sentence) > LONG_SENTENCE_WORDS:
                    shown.append(f"    {len(sentence)}: {' '.join(sentence)}")
    shown.append(_line("all", everything))
    if "--quiet" not in arguments:
        print("\n".join(shown))
    missed = [name for name, value in everything.figures().items() if round(value, 1) > TARGETS[name]]
    if missed:
        print(f"Over the target: {', '.join(f'{name} (at most {TARGETS[name]:g})' for name in missed)}.")
    wrong = [] if named else list(mistakes())
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if missed or wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
