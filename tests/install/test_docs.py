"""The documents say nothing that is not there: files, functions, links. Needs sources alone: `make check` runs it."""
from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def find(path: str) -> Path | None:
    """`io/store.c` is below src; anything may also be named from the top."""
    for base in (ROOT / "src", ROOT):
        if (base / path).exists():
            return base / path
    return None


def defines(source: Path, function: str) -> bool:
    """A definition, or a declaration in a header; a macro counts."""
    pattern = rf"^(?:[a-zA-Z_][\w\s*]*[\s*])?{re.escape(function)}\(|^#define {function}\("
    return re.search(pattern, source.read_text(), re.M) is not None


def test_nobody_is_told_to_install_another_projects_package() -> None:
    """On PyPI ours is muster-run; the name muster is somebody else's."""
    sources = [*(ROOT / "docs/man").iterdir(), ROOT / "python/README.md", *(ROOT / "src").rglob("*.c")]
    told = [(str(path), line) for path in [*DOCUMENTS, *sources]
            for line in re.findall(r"pip3? install[^`\n]*", path.read_text())]
    assert len(told) >= 5
    assert [t for t in told if re.search(r"[\s\"']muster(?![\w-])", t[1])] == []


def test_architecture_names_what_exists() -> None:
    """`dir/file.c` must exist; `function()` must be in the file named last before it, or, where
    it is what another calls, anywhere in src."""
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    everywhere = {name for p in (ROOT / "src").rglob("*.[ch]")
                  for name in re.findall(r"^(?:[a-zA-Z_][\w *]*[ *])?(\w+)\(", p.read_text(), re.M)}
    source, files, functions, missing = None, 0, 0, []
    for verb, token in re.findall(r"(calls\s+|passes\s+|)`([^`\n]+)`", text):
        if re.fullmatch(r"[\w.]+(/[\w.-]+)+\.(c|h|py|txt)", token):
            files += 1
            source = find(token)
            if source is None:
                missing.append(token)
        elif m := re.fullmatch(r"(\w+)\(\)", token):
            functions += 1
            if not (m[1] in everywhere if verb else source is not None and defines(source, m[1])):
                missing.append(f"{token} in {source and source.relative_to(ROOT)}")
    assert missing == []
    assert files >= 15 and functions >= 15, "the page of hops has been emptied"


def body_of(function: str, source: Path) -> str | None:
    """What stands between the braces of a function, or None if it is not defined there."""
    pattern = rf"^(?:[a-zA-Z_][\w\s*]*[\s*])?{re.escape(function)}\([^;{{}}]*\)\n\{{\n(.*?)^\}}"
    found = re.search(pattern, source.read_text(), re.M | re.S)
    return found[1] if found else None


def test_walks_follow_the_calls() -> None:
    """In a walk, "`file` `f()` calls `g()`" is a call in the body of f, and "passes" a mention:
    a walk stays true when functions are renamed, split or called by others."""
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    source, edges, wrong = None, 0, []
    token = r"`(?P<file>[\w.]+(?:/[\w.-]+)+\.[ch])`|`(?P<a>\w+)\(\)`\s+(?P<verb>calls|passes)\s+`(?P<b>\w+)\(\)`"
    for m in re.finditer(token, text):
        if m["file"]:
            source = find(m["file"])
            continue
        edges += 1
        body = source and body_of(m["a"], source)
        if body is None:
            wrong.append(f"{m['a']}() is not defined in {source and source.relative_to(ROOT)}")
        elif not re.search(rf"\b{m['b']}\b" + (r"\(" if m["verb"] == "calls" else ""), body):
            wrong.append(f"{m['a']}() does not mention {m['b']}()")
    assert wrong == []
    assert edges >= 20, "the walks have been emptied"


def test_each_weakness_has_its_test() -> None:
    """`path::name` is a test there; `path` alone is a file."""
    text = (ROOT / "docs/DIFFERENCES.md").read_text().partition("# Weaknesses")[2]
    named = re.findall(r"`((?:tests|bench)/[^`:]+)(?:::(\w+))?`", text)
    missing = [f"{path}::{name}" for path, name in named if not (ROOT / path).is_file() or
               name and f"\ndef {name}(" not in (ROOT / path).read_text()]
    assert missing == []
    assert len(named) >= 30


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    dead = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
            if "://" not in target and not (path.parent / target).exists()]
    assert dead == []


def test_the_library_page_names_what_is_declared() -> None:
    text = (ROOT / "docs/man/libmuster.3").read_text()
    headers = "".join(p.read_text() for p in (ROOT / "include/muster").glob("*.h"))
    named = set(re.findall(r"\bmuster_[a-z_]+(?= ?[\" ]*\(\))", text))
    assert len(named) >= 15
    assert [n for n in sorted(named) if not re.search(rf"\b{n}\(", headers)] == []
    for header in (ROOT / "include/muster").glob("*.h"):
        assert f"muster/{header.name}" in text


def messages(guide: str) -> list[str]:
    """The first column of each table of messages."""
    text = (ROOT / "docs/guides" / guide).read_text()
    found: list[str] = []
    for table in re.findall(r"^\| message[^\n]*\n\| ---[^\n]*\n((?:\|[^\n]*\n)+)", text, re.M):
        found += [row.split("|")[1].strip().strip("`") for row in table.splitlines()]
    return found


def literals() -> str:
    """Every text in the sources of the product, adjacent literals joined, %s and such as a
    blank that matches anything."""
    code = "".join(p.read_text() for p in [*(ROOT / "src").rglob("*.[ch]"),
                                           *(ROOT / "include").rglob("*.h")])
    code = re.sub(r'"\s*(?:PRI[a-zA-Z0-9]+\s*)?"', "", code)
    return code


@pytest.mark.parametrize("guide,least", [("troubleshooting.md", 10), ("etcd.md", 10)])
def test_every_message_in_a_guide_can_be_printed(guide: str, least: int) -> None:
    """Word by word between what varies: `...`, capitals that stand for a number, quotes."""
    code, rows, unknown = literals(), messages(guide), []
    for row in rows:
        for alternative in row.split(" / "):
            parts = re.split(r"\.\.\.|\b[NM]\b|=|'|\(|\)|\d+", alternative)
            if not all(part.strip(" :,;") in code for part in parts):
                unknown.append(alternative)
    assert unknown == []
    assert len(rows) >= least, "the table has been emptied"


def test_changes_speak_of_this_version() -> None:
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGES.md").read_text(), re.M)
    assert headings[0] == version
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", h) for h in headings)


def figures(walk: str) -> list[int]:
    """Hops are calls, files those that it comes through, returns how often it comes back to one."""
    seen, returns, here = set(), 0, None
    for path in re.findall(r"`([\w.]+(?:/[\w.-]+)+\.c)`", walk):
        returns += path != here and path in seen
        seen.add(path)
        here = path
    return [len(re.findall(r"`\w+\(\)`\s+calls\s+`\w+\(\)`", walk)), len(seen), returns]


def test_the_walk_of_a_join_has_the_figures_that_it_says() -> None:
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    walk = text[text.index("### A join on our own coordinator"):].split("Where the store is torchrun's")[0]
    answer = text[text.index("### From the rank to the agent's answer"):].split("\n### ")[0]
    said = [[int(n) for n in m] for m in re.findall(r"(\d+) hops, (\d+) files, (\d+) returns", walk)]
    assert said == [figures(walk), figures(walk + answer)]
    assert said[0][1] <= 18 and said[0][2] <= 12


def kinds_in_the_protocol(heading: str) -> dict[str, tuple[int, int]]:
    """The tables below a heading: how each kind is numbered, and how many fields it has."""
    text = (ROOT / "docs/PROTOCOL.md").read_text().partition(f"## {heading}")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|([^|]*)\|", text, re.M)
    return {name: (int(number), len([f for f in fields.split(",") if f.strip()])) for number, name, fields in rows}


def kinds_in_the_source(header: str, source: str, kinds: str, prefix: str) -> dict[str, tuple[int, int]]:
    listed = re.search(rf"#define {kinds}\(X\)(.*?)\n\n", (ROOT / "src" / header).read_text(), re.S)[1]
    names = re.findall(r"\bX\((\w+)\)", re.sub(r"/\*.*?\*/", "", listed, flags=re.S))
    layout = re.search(r"layout\[.*?\n};", (ROOT / "src" / source).read_text(), re.S)[0]
    fields = {name: len(row.split(",")) for name, row in re.findall(rf"\[{prefix}(\w+)\] = \{{([^}}]*)\}}", layout)}
    return {name: (number, fields.get(name, 0)) for number, name in enumerate(names) if name != "NONE"}


def test_the_protocol_lists_the_messages_of_the_rendezvous() -> None:
    assert kinds_in_the_protocol("The rendezvous") == kinds_in_the_source(
        "rendezvous/core/coordinator_wire.h", "rendezvous/core/coordinator_wire.c", "COORD_KINDS", "COORD_")


def test_the_protocol_lists_the_messages_of_the_job_channel() -> None:
    assert kinds_in_the_protocol("The job channel") == kinds_in_the_source(
        "job/core/job_wire.h", "job/core/job_wire.c", "JOB_KINDS", "JOB_")


def test_make_help_names_every_target() -> None:
    targets = re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
    help_ = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in help_.splitlines()] == targets


def test_no_document_promises_an_index_that_does_not_have_it() -> None:
    published = (ROOT / "packaging/published").read_text().split("\n")[-2] == "yes"
    files = subprocess.run(["git", "ls-files", "*.md", "src/*.c", "docs/man", "python/pyproject.toml"], cwd=ROOT,
                           capture_output=True, text=True, check=True).stdout.split()
    promise = re.compile(r"pip install [\"']?muster-run|muster-run\[")
    found = {f for f in files if promise.search((ROOT / f).read_text())}
    assert {"README.md", "python/README.md"} <= found if published else not found
