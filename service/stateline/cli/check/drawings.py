"""The graph of an application as text, as Graphviz' DOT, and as a Mermaid flowchart. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from stateline.model.graph import Drawn, DrawnKind, Edge, GraphPart

_DOT_SHAPES: dict[DrawnKind, str] = {
    "topic": "box",
    "store": "cylinder",
    "table": "cylinder",
    "global table": "cylinder",
    "processor": "ellipse",
    "operator": "ellipse",
    "pipeline": "component",
}
_MERMAID_SHAPES: dict[DrawnKind, tuple[str, str]] = {
    "topic": ("[", "]"),
    "store": ("[(", ")]"),
    "table": ("[(", ")]"),
    "global table": ("[(", ")]"),
    "processor": ("([", "])"),
    "operator": ("([", "])"),
    "pipeline": ("[[", "]]"),
}


_MERMAID_SPECIAL = '#"<>&;`'


def as_lines(parts: Sequence[GraphPart]) -> Iterator[str]:
    """A tree for each topic that comes in: ``→`` for where records flow, ``─`` for a store that is read or written.
    What stands elsewhere already is followed by ``…``."""
    for part in parts:
        yield part.title
        followed: set[Drawn] = set()
        for entry in part.entries:
            yield f"  {_named(entry)}"
            yield from _below(part, entry, "    ", followed)


def _below(part: GraphPart, start: Drawn, indent: str, followed: set[Drawn]) -> Iterator[str]:
    followed.add(start)
    for edge in part.edges:
        if edge.start != start:
            continue
        end = edge.end
        goes_on = edge.kind == "flow" and end not in part.entries and any(each.start == end for each in part.edges)
        again = " …" if goes_on and end in followed else ""
        yield f"{indent}{'→' if edge.kind == 'flow' else '─'} {_named(end)}{again}"
        if goes_on and not again:
            yield from _below(part, end, f"{indent}    ", followed)


def _named(drawn: Drawn) -> str:
    name = drawn.name if drawn.kind == "operator" else f"{drawn.kind} {drawn.name}"
    return f"{name} ({drawn.note})" if drawn.note else name


def as_dot(application_id: str, parts: Sequence[GraphPart]) -> str:
    """For ``dot -Tsvg``. Each part but for its topics is a cluster."""
    names, homes = _names(parts), _homes(parts)
    lines = [f"digraph {_quoted(application_id)} {{", "  rankdir=LR;", "  node [fontname=Helvetica];"]
    lines += [f"  {names[topic]} {_dot_label(topic)};" for topic in names if topic.kind == "topic"]
    for number, part in enumerate(parts):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(part.title)};"]
        lines += [f"    {names[each]} {_dot_label(each)};" for each in part.drawn if homes.get(each) == number]
        lines += ["  }"]
    for edge in _edges(parts):
        undirected = " [dir=none]" if edge.kind == "uses" else ""
        lines.append(f"  {names[edge.start]} -> {names[edge.end]}{undirected};")
    return "\n".join([*lines, "}"])


def as_mermaid(parts: Sequence[GraphPart]) -> str:
    """For a Markdown block of the language mermaid."""
    names, homes = _names(parts), _homes(parts)
    lines = ["flowchart LR"]
    lines += [f"  {names[topic]}{_mermaid_label(topic)}" for topic in names if topic.kind == "topic"]
    for number, part in enumerate(parts):
        lines += [f'  subgraph part{number}["{_mermaid_text(part.title)}"]']
        lines += [f"    {names[each]}{_mermaid_label(each)}" for each in part.drawn if homes.get(each) == number]
        lines += ["  end"]
    for edge in _edges(parts):
        lines.append(f"  {names[edge.start]} {'---' if edge.kind == 'uses' else '-->'} {names[edge.end]}")
    return "\n".join(lines)


def _names(parts: Sequence[GraphPart]) -> dict[Drawn, str]:
    """Node → a name that either language takes."""
    return {drawn: f"n{n}" for n, drawn in enumerate(dict.fromkeys(each for part in parts for each in part.drawn))}


def _homes(parts: Sequence[GraphPart]) -> dict[Drawn, int]:
    """Node → the number of its part, of all but topics. A global table's own comes after those that look it up."""
    return {each: number for number, part in enumerate(parts) for each in part.drawn if each.kind != "topic"}


def _edges(parts: Sequence[GraphPart]) -> Iterator[Edge]:
    yield from dict.fromkeys(edge for part in parts for edge in part.edges)


def _dot_label(drawn: Drawn) -> str:
    return f"[shape={_DOT_SHAPES[drawn.kind]}, label={_quoted(_labelled(drawn))}]"


def _mermaid_label(drawn: Drawn) -> str:
    before, after = _MERMAID_SHAPES[drawn.kind]
    return f'{before}"{_mermaid_text(_labelled(drawn)).replace(chr(10), "<br/>")}"{after}'


def _labelled(drawn: Drawn) -> str:
    return f"{drawn.name}\n{drawn.note}" if drawn.note else drawn.name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # DOT escapes quotes, backslashes and ends of lines as JSON does


def _mermaid_text(text: str) -> str:
    """Mermaid knows HTML's entities by ``#`` and nothing else that escapes."""
    return "".join(f"#{ord(character)};" if character in _MERMAID_SPECIAL else character for character in text)
