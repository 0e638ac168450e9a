"""Sizes that can be read off the source: `bench/count size` runs it.

- message kinds: the entries of the lists `*_KINDS(X)` in the wires of rendezvous and job (`*wire*.h`);
  NONE, which is no message, does not count. Handshake and lanes, which are no part of it, neither.
- lines: of every .c and .h in src/, by room, and of tests/: .c, .h and .py, and scripts that say
  python3 or bash in their first line. Comments and blank lines count.
- functions with more than 7 parameters: definitions and declarations in src/, each name once.
- structs with more than 50 fields: each declared name counts; a struct inside it counts as one field.
  Those whose names end in opts, options, config or conf are options and are told apart.
"""
from __future__ import annotations

import re
from pathlib import Path

MOST_PARAMETERS, MOST_FIELDS = 7, 50
WIRES = ("src/job", "src/rendezvous", "src/record")


def without_comments(text: str) -> str:
    """The same lines, without comments, strings and continuations."""
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n\\]", " ", m[0]), text, flags=re.S)
    text = re.sub(r"//.*", "", text)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"'(\\.|[^'\\])+'", "0", text)


def sources(tree: Path) -> list[Path]:
    return sorted(p for p in (tree / "src").rglob("*.[ch]"))


def kinds(tree: Path) -> dict[str, list[str]]:
    found = {}
    for wire in sorted(p for room in WIRES for p in (tree / room).rglob("*wire*.h")):
        text = without_comments(wire.read_text())
        for name, body in re.findall(r"#define (\w*KINDS)\(X\)((?:.*\\\n)*.*)", text):
            entries = [e for e in re.findall(r"\bX\((\w+)", body) if e != "NONE"]
            found[f"{wire.relative_to(tree)} {name}"] = entries
    return found


def top_level_commas(text: str) -> list[str]:
    parts, depth, at = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[at:i])
            at = i + 1
    return [*parts, text[at:]]


def matching(text: str, at: int, pair: str) -> int:
    """The index after the one that closes what opens at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i + 1
    return len(text)


def long_lists(tree: Path) -> dict[str, int]:
    """Functions with too many parameters: place and name, and how many."""
    found: dict[str, int] = {}
    for path in sources(tree):
        text = re.sub(r"^#.*(?:\\\n.*)*", "", without_comments(path.read_text()), flags=re.M)
        for m in re.finditer(r"^(?:[A-Za-z_][\w \t*]*[\s*])(\w+)\(", text, flags=re.M):
            end = matching(text, m.end() - 1, "()")
            inside = text[m.end():end - 1]
            after = text[end:end + 40].lstrip()
            count = len(top_level_commas(inside)) if inside.strip() not in ("", "void") else 0
            if count > MOST_PARAMETERS and (after[:1] in "{;" or after.startswith("__attribute")):
                found.setdefault(f"{path.relative_to(tree)} {m[1]}", count)
    by_name: dict[str, int] = {}
    for place, count in found.items():
        name = place.split()[1]
        if not any(p.split()[1] == name for p in by_name):
            by_name[place] = count
    return by_name


def fields_of(body: str) -> int:
    body = re.sub(r"^\s*#.*", "", body, flags=re.M)
    count = at = 0
    while at < len(body):
        brace, semi = body.find("{", at), body.find(";", at)
        if semi < 0:
            break
        if 0 <= brace < semi:  # a struct, union or enum inside
            semi = body.find(";", matching(body, brace, "{}"))
            count += 1
        elif body[at:semi].strip():
            count += len(top_level_commas(body[at:semi]))
        at = semi + 1
    return count


def wide_structs(tree: Path) -> dict[str, int]:
    found = {}
    for path in sources(tree):
        text = without_comments(path.read_text())
        for m in re.finditer(r"^struct (\w+)\s*\{", text, flags=re.M):
            fields = fields_of(text[m.end():matching(text, m.end() - 1, "{}") - 1])
            if fields > MOST_FIELDS:
                found[f"{path.relative_to(tree)} {m[1]}"] = fields
    return found


def is_options(place: str) -> bool:
    return bool(re.search(r"(opts|options|config|conf)$", place))


def lines_of(paths: list[Path]) -> int:
    return sum(p.read_bytes().count(b"\n") for p in paths)


def tests_of(tree: Path) -> list[Path]:
    def counts(p: Path) -> bool:
        if not p.is_file() or p.is_symlink() or {"golden", "corpus", "__pycache__"} & set(p.parts):
            return False
        if p.suffix in (".c", ".h", ".py"):
            return True
        with p.open("rb") as f:
            first = f.readline(80)
        return not p.suffix and first.startswith(b"#!") and (b"python3" in first or b"bash" in first)
    return sorted(p for p in (tree / "tests").rglob("*") if counts(p))


def measure(tree: Path, show: bool) -> dict[str, str]:
    messages, lists, structs = kinds(tree), long_lists(tree), wide_structs(tree)
    if show:
        for where, names in messages.items():
            print(f"{where}: {len(names)}: {' '.join(names)}")
        for place, count in (*lists.items(), *structs.items()):
            print(f"{place}: {count}")
        return {}
    rooms: dict[str, list[Path]] = {}
    for path in sources(tree):
        rooms.setdefault(path.relative_to(tree / "src").parts[0], []).append(path)
    options = sum(is_options(place) for place in structs)
    return {
        "message kinds": str(sum(map(len, messages.values()))),
        f"functions with more than {MOST_PARAMETERS} parameters": str(len(lists)),
        f"structs with more than {MOST_FIELDS} fields, and those of options": f"{len(structs) - options}, {options}",
        "lines of src/": f"{lines_of(sources(tree)):,}",
        "lines of tests/": f"{lines_of(tests_of(tree)):,}",
        **{f"lines of src/{room}": f"{lines_of(paths):,}" for room, paths in rooms.items()},
    }
