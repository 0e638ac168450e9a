"""Runs the steps of .github/workflows/release.yml here, in order, each as its runner does: bash -e.

usage: release_steps.py TAG [FIRST]   FIRST: begin with the step whose name or text begins so

Steps that are actions (`uses:`) are left out: this folder is the checkout. A `gh` of our own stands
in for GitHub's: it writes its arguments, one a line, to the file gh.log.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github/workflows/release.yml"
GH = """#!/bin/sh
printf '%s\\n' "$@" >gh.log
"""


def steps() -> list[dict[str, str]]:
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    return [s for s in job["steps"] if "run" in s]


def main(tag: str, first: str = "") -> int:
    github = {"token": "a token", "repository": "somebody/muster", "ref_name": tag}
    todo = steps()
    while first and not (todo[0].get("name") or todo[0]["run"]).startswith(first):
        todo.pop(0)
    with tempfile.TemporaryDirectory() as tools:
        gh = Path(tools, "gh")
        gh.write_text(GH)
        gh.chmod(0o755)
        base = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}", GITHUB_REF_NAME=tag)
        for step in todo:
            env = {key: re.sub(r"\$\{\{ github\.(\w+) \}\}", lambda m: github[m[1]], value)
                   for key, value in step.get("env", {}).items()}
            print("release_steps:", step.get("name") or step["run"], flush=True)
            if subprocess.run(["bash", "-ec", step["run"]], env=base | env).returncode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
