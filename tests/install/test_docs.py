"""The documents say nothing that is not there: files, messages, links. Needs sources alone: `make check` runs it."""
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


def test_nobody_is_told_to_install_another_projects_package() -> None:
    """On PyPI ours is muster-run; the name muster is somebody else's."""
    sources = [*(ROOT / "docs/man").iterdir(), ROOT / "python/README.md", *(ROOT / "src").rglob("*.c")]
    told = [(str(path), line) for path in [*DOCUMENTS, *sources]
            for line in re.findall(r"pip3? install[^`\n]*", path.read_text())]
    assert len(told) >= 5
    assert [t for t in told if re.search(r"[\s\"']muster(?![\w-])", t[1])] == []


def test_architecture_names_files_that_exist() -> None:
    """Files alone: functions there may be renamed without a word in the document."""
    text = re.sub(r"```.*?```", "", (ROOT / "docs/ARCHITECTURE.md").read_text(), flags=re.S)
    named = re.findall(r"`([\w.]+(?:/[\w.-]+)+\.(?:c|h|py|txt))`", text)
    assert [path for path in named if find(path) is None] == []
    assert len(set(named)) >= 15, "the walks have been emptied"


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


def test_the_protocol_lists_the_messages_of_the_session() -> None:
    kinds = kinds_in_the_source("job/core/wire.h", "job/core/wire.c", "MSG_KINDS", "MSG_")
    assert kinds_in_the_protocol("The session") == kinds
    assert len(kinds) <= 28


def test_make_help_names_every_target() -> None:
    targets = re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
    help_ = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in help_.splitlines()] == targets


def test_the_documents_say_what_is_published() -> None:
    done = subprocess.run([ROOT / "packaging/publish", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_document_promises_an_address_or_an_index_that_does_not_have_it() -> None:
    said = dict(re.findall(r"^(\w+): (.*)", (ROOT / "packaging/published").read_text(), re.M))
    files = subprocess.run(["git", "ls-files", "*.md", "src/*.c", "docs/man", "python", "examples", "packaging/deb"],
                           cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found: dict[str, list[str]] = {"index": [], "home": []}
    for name in files:
        text = (ROOT / name).read_text(errors="replace")
        if re.search(r"pip install [\"']?muster-run|muster-run\[", text):
            found["index"].append(name)
        if re.search(r"https?://[\w./-]*muster", text):
            found["home"].append(name)
    assert said["index"] == "yes" or not found["index"]
    assert said["home"] != "none" or not found["home"]
