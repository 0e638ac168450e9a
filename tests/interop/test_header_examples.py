"""What the public headers show as usage compiles as it stands."""
from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

HEADERS = pathlib.Path(__file__).parents[2] / "include"

# The variables that an example takes for granted.
NAMES = {
    "backend.h": """struct muster_params *params; struct muster_backend *backend;
                    struct muster_state state, held; const void *next; size_t size;""",
    "launch.h": """struct muster_launch_config *config; struct muster_launch_result *result;
                   struct muster_entry entry = { 0 }; int rc;""",
    "rendezvous.h": """struct muster_params *params; struct muster_rendezvous *rdzv;
                       struct muster_rendezvous_info info;""",
}


def example_of(header):
    """The indented lines of its first comment, but for those that are words."""
    comment = header.read_text().split("*/", 1)[0]
    lines = [line[2:] for line in comment.splitlines() if line.startswith(" *     ")]
    return "\n".join(line for line in lines if not line.strip().startswith("..."))


def test_every_example_is_known():
    assert {h.name for h in (HEADERS / "muster").glob("*.h") if example_of(h)} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_examples_compile(name):
    code = f"""#include <muster/{name}>
    void example(void); void example(void) {{ struct muster_error err; {NAMES[name]}
    {example_of(HEADERS / "muster" / name)}
    }}"""
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    done = subprocess.run([cc, "-std=gnu17", "-Wall", "-Werror", "-Wno-unused", "-fsyntax-only",
                           f"-I{HEADERS}", "-xc", "-"], input=code, text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
