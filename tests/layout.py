#!/usr/bin/env python3
"""The plan of the house holds: what is core, who may include whom, how full a room may be.

`layout.py CORE_SOURCE...` gets the sources that are built into core, and fails with a line
for each rule that is broken:
  - core is exactly src/base and src/**/core;
  - core includes nothing but core;
  - includes between the rooms of src/ (its folders, each with its core) form no cycle, and
    each path is written from src/;
  - no room includes the `_int.h` of another;
  - no function has more than 7 parameters and no struct more than 50 fields, but for options,
    signatures that are given (libraries' callbacks, the public API) and the few in TOO_LARGE;
  - no folder has more than 50 files, and at most 22 headers are called `_int.h`;
  - the keys of --rdzv-conf are read by way of their table, rendezvous/core/conf_table.c;
  - unit tests lie in a folder that is named after a room;
  - each row of SECURITY.md's "Who can do what" names tests that exist.
"""
from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
FULL, SHARED = 50, 22
PARAMETERS, FIELDS = 7, 50
GIVEN = {"http_on_request", "no_debuginfo", "__wrap_gethostbyaddr_r",  # callbacks of libraries, calls of libc
         "muster_params_new", "muster_store_compare_set", "set", "foreign_set", "etcd_state_set",  # muster/*.h
         "options"}  # a field for each option
# May only become fewer.
TOO_LARGE = {"auth_server_open", "auth_client_answer", "blocking_call_run", "params_init", "async_store_compare_set",
             "attempt_start", "agent", "c10d", "rdzv"}


def is_core(path: Path) -> bool:
    parts = path.relative_to(SRC).parts
    return parts[0] == "base" or "core" in parts[:-1]


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.M)


def folder(path: Path) -> str:
    return str(path.relative_to(SRC).parent)


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0]


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of rooms that reach each other (Tarjan's strongly connected parts)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in sorted(edges.get(node, ())):
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            part = []
            while True:
                part.append(stack.pop())
                if part[-1] == node:
                    break
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def plain(source: str) -> str:
    """Without comments, texts and preprocessor lines."""
    source = re.sub(r"/\*.*?\*/", " ", source, flags=re.S)
    source = re.sub(r'"(?:\\.|[^"\\])*"', '""', source)
    return re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*$", "", source, flags=re.M)


def parts(text: str) -> int:
    """How many there are between the commas that are not in brackets."""
    depth, count = 0, 1
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        count += c == "," and depth == 0
    return count


def struct_body(text: str, start: int) -> str:
    depth, at = 1, start
    while depth and at < len(text):
        depth += (text[at] == "{") - (text[at] == "}")
        at += 1
    return text[start:at - 1]


def sizes(source: str) -> list[tuple[str, int, int, str]]:
    """Each function's parameters and each struct's fields: name, how many, how many may be, of what."""
    text = plain(source)
    function = r"^[a-zA-Z_][\w\s*]*?[\s*](\w+)\(((?:[^()]|\([^()]*\))*)\)\s*(?:__attribute__\(\(.*?\)\)\s*)?[{;]"
    found = [(m[1], parts(m[2]), PARAMETERS, "parameters") for m in re.finditer(function, text, re.M)]
    for m in re.finditer(r"\bstruct (\w+)\s*\{", text):
        members = [re.sub(r".*\{", "", d.replace("}", ""), flags=re.S).strip() for d in struct_body(text, m.end()).split(";")]
        found.append((m[1], sum(parts(d) for d in members if d), FIELDS, "fields"))
    return found


def too_large(sources: list[Path]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {name} has {n} {what}, at most {most} may be: give it a struct of its own"
            for path in sources for name, n, most, what in sizes(path.read_text())
            if n > most and name not in GIVEN | TOO_LARGE]


def promises() -> list[str]:
    """What is wrong with the last column of SECURITY.md's table."""
    text = (ROOT / "SECURITY.md").read_text().partition("## Who can do what")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    tests = "".join(p.read_text() for end in ("py", "c") for p in (ROOT / "tests").rglob(f"*.{end}"))
    out = [] if len(rows) >= 10 else ["SECURITY.md: its table is not where it was"]
    for row in rows:
        named = re.findall(r"`([^`]+)`", row[-1])
        missing = [n for n in named if not ((ROOT / n).exists() if "/" in n else re.search(rf"\b{re.escape(n)}\(", tests))]
        if not named or missing:
            out.append(f"SECURITY.md: '{row[0]}' is shown by no test{': ' if missing else ''}{', '.join(missing)}")
    return out


def broken(core_sources: set[Path]) -> list[str]:
    out = []
    sources = sorted(p for p in SRC.rglob("*.[ch]"))
    expected = {p for p in sources if p.suffix == ".c" and is_core(p)}
    for path in sorted(expected ^ core_sources):
        out.append(f"{path.relative_to(ROOT)}: in core by {'path' if path in expected else 'meson.build'} only")

    edges: dict[str, set[str]] = {}
    why: dict[tuple[str, str], str] = {}
    for path in sources:
        here = room(path)
        for name in includes(path):
            target = SRC / name
            if not target.exists():
                if (ROOT / "include" / name).exists() or "/" not in name and (path.parent / name).exists():
                    continue
                if not name.endswith((".inc", ".h")) or "/" in name:
                    out.append(f"{path.relative_to(ROOT)}: includes {name}, which is not below src/")
                continue
            if is_core(path) and not is_core(target):
                out.append(f"{path.relative_to(ROOT)}: core includes {name}, which is not core")
            if room(target) != here:
                edges.setdefault(here, set()).add(room(target))
                why.setdefault((here, room(target)), f"{path.relative_to(SRC)} includes {name}")
                if name.endswith("_int.h"):
                    out.append(f"{path.relative_to(ROOT)}: includes {name}, which belongs to another room")
    for part in cycles(edges):
        out.append("rooms include each other: " + ", ".join(part))
        out += [f"    {why[a, b]}" for a in part for b in part if (a, b) in why]

    count: dict[str, int] = {}
    for path in sources:
        count[folder(path)] = count.get(folder(path), 0) + 1
    out += [f"src/{name}: {n} files; a subject of its own may be hiding there"
            for name, n in count.items() if n > FULL]
    shared = [p for p in sources if p.name.endswith("_int.h")]
    if len(shared) > SHARED:
        out.append(f"{len(shared)} headers are called _int.h, at most {SHARED} may be: each says "
                   "that one thought lies in several files")
    for path in sources:
        keys = re.findall(r'\bparams_(?:get|str|int|float|bool)\(\s*[^;,]+,\s*"(\w+)"', path.read_text())
        out += [f"{path.relative_to(ROOT)}: reads the key '{key}' past conf_table.h, where keys are "
                "declared, documented and checked" for key in keys]
    rooms = {p.name for p in SRC.iterdir() if p.is_dir()}
    for path in sorted((ROOT / "tests/unit").iterdir()):
        if path.is_dir() and path.name not in rooms:
            out.append(f"tests/unit/{path.name}: there is no room src/{path.name}")
    return out + too_large(sources) + promises()


def start_files() -> list[str]:
    """The files that are linked side by side for a start."""
    return [f"src/start.txt: {line} is not there" for line in (ROOT / "src/start.txt").read_text().split()
            if not (ROOT / line).is_file()]


def main() -> int:
    core_sources = {Path(p).resolve() for p in sys.argv[1:]}
    if not core_sources:
        print("layout: no core sources were given: the test would look at nothing")
        return 1
    lines = broken(core_sources) + start_files()
    for line in lines:
        print(line)
    return 1 if lines else 0


sys.exit(main())
