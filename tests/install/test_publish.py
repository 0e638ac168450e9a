"""packaging/publish: a line says where muster can be had, and documents and packages say the same; see also test_docs.py."""
from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ("README.md", "python/README.md")
HOME = "https://example.org/people/muster"


def published(key: str) -> str:
    return re.search(rf"^{key}: (.*)", (ROOT / "packaging/published").read_text(), re.M)[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What it takes to publish: the documents and packaging/, with Python's part beside them."""
    for name in ("packaging", "python"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "meson.build"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def publish(tree: Path, *words: str, **lines: str) -> subprocess.CompletedProcess[str]:
    file = tree / "packaging/published"
    for key, value in lines.items():
        file.write_text(re.sub(rf"^{key}: .*", f"{key}: {value}", file.read_text(), flags=re.M))
    return subprocess.run([tree / "packaging/publish", *words], capture_output=True, text=True)


def texts(tree: Path) -> list[str]:
    return [(tree / name).read_text() for name in README]


def test_one_line_turns_a_sentence_on(copy: Path) -> None:
    before = texts(copy)
    assert publish(copy, "--check", home=HOME, index="yes").returncode == 1 and texts(copy) == before
    assert publish(copy).returncode == 0
    readme, python = texts(copy)
    line = f"    curl -fLo muster {HOME}/releases/latest/download/muster-$(uname -m) && chmod +x muster\n"
    assert line in readme and "    pip install muster-run\n" in readme and "    pip install muster-run\n" in python
    assert publish(copy, "--check").returncode == 0
    assert publish(copy, home=published("home"), index=published("index")).returncode == 0
    assert texts(copy) == before


@pytest.mark.parametrize(("key", "value"), [("home", "example.org"), ("home", HOME + "/"), ("index", "soon")])
def test_what_cannot_be_is_refused(copy: Path, key: str, value: str) -> None:
    done = publish(copy, **{key: value})
    assert done.returncode == 1 and f"publish: {key} is " in done.stderr


def metadata(tree: Path) -> dict[str, object]:
    said = subprocess.run([ROOT / "build/wheelvenv/bin/python", "-m", "hatchling", "metadata"], cwd=tree / "python",
                          capture_output=True, text=True, check=True).stdout
    return json.loads(said)


def test_the_wheel_names_the_address_when_there_is_one(copy: Path) -> None:
    publish(copy, home="none", maintainer="Ada <ada@example.org>")
    assert not metadata(copy).get("urls")
    publish(copy, home=HOME)
    assert metadata(copy)["urls"] == {"Homepage": HOME, "Source": HOME, "Changes": f"{HOME}/blob/main/CHANGES.md"}
    assert metadata(copy)["authors"] == [{"name": "Ada"}]
