"""The dashboard for Grafana is what Grafana's own types say that a dashboard and its panels are: the TypeScript
compiler checks it. tests/hosts/test_scraped.py asks a real Prometheus its queries."""
from __future__ import annotations

import json
import subprocess
from pathlib import Path

from watched import ROOT

NODE = ROOT / "build" / "node"
BOARD = ROOT / "examples/observability/grafana-dashboard.json"
RAW = "@grafana/schema/dist/esm/raw/composable"
# A text in JSON stands for the enumeration's value of that text; what is left out has a default.
HEAD = f"""\
import type {{ AnnotationQuery, Dashboard, DataQuery }} from "@grafana/schema";
import type {{ Options as stat }} from "{RAW}/stat/panelcfg/x/StatPanelCfg_types.gen";
import type {{ Options as timeseries }} from "{RAW}/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
type Mark = AnnotationQuery<DataQuery & {{ expr: string }}> & {{ titleFormat?: string }}; // Prometheus' own fields
type Board = Omit<Dashboard, "annotations"> & {{ annotations: {{ list: Mark[] }} }};
type Json<T> = T extends string ? `${{T}}` : T extends object ? {{ [K in keyof T]?: Json<T[K]> }} : T;
"""


def findings(where: Path, board: dict) -> list[str]:
    parts = [f"export const board: Board = {json.dumps(board)};"]
    for p in board["panels"]:
        parts.append(f"export const panel{p['id']}: Json<{p['type']}> = {json.dumps(p['options'])};")
    (where / "board.ts").write_text(HEAD + "\n".join(parts) + "\n")
    (where / "node_modules").symlink_to(NODE / "node_modules")
    done = subprocess.run([str(NODE / "node_modules/.bin/tsc"), "--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext",
                           "board.ts"], cwd=where, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 or done.stdout, done.stderr
    return done.stdout.splitlines()


def test_grafana_knows_every_part_of_it(tmp_path: Path) -> None:
    assert findings(tmp_path, json.loads(BOARD.read_text())) == []


def test_a_part_that_grafana_does_not_know_is_found(tmp_path: Path) -> None:
    board = json.loads(BOARD.read_text())
    board["panels"][0]["options"]["textMode"] = "shout"
    found = findings(tmp_path, board)
    assert len(found) == 1 and "shout" in found[0], found
