"""Real Prometheus on a host of its own watches a job through a killed worker, a partition and a lost host:
its counters add up with the event log, and every query of the dashboard and of the alerts has an answer."""
from __future__ import annotations

import json
import re
import signal
import time
import urllib.parse
from pathlib import Path

import yaml
from rig import MUSTER, ROOT, Host, Process, Rig, clock
from test_run import CONF, ENV, WORKER, up

TOKEN = "0123456789abcdef0123456789abcdef"
EXAMPLES = ROOT / "examples/observability"


def node(host: Host, tmp: Path) -> Process:
    return host.start([MUSTER, "run", "--nnodes=2:3", "--nproc-per-node=2", "--rdzv-backend=c10d",
                       "--rdzv-endpoint=node1:29400", "--rdzv-id=job", f"--rdzv-conf={CONF}", "--max-restarts=5",
                       f"--event-log-handler=file:{tmp}/{host.name}.jsonl", "--status-http=0.0.0.0:9464",
                       WORKER, str(tmp)], MUSTER_TOKEN=TOKEN, **ENV)


def prometheus(host: Host, tmp: Path, key: str, targets: list[str]) -> Process:
    (tmp / "key").write_text(key)
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())  # the one that users are given
    config["global"]["scrape_interval"] = "200ms"
    config["rule_files"] = [str(EXAMPLES / "alerts.yml")]
    scrape, = config["scrape_configs"]
    scrape["static_configs"] = [{"targets": targets}]
    scrape["authorization"] = {"credentials_file": str(tmp / "key")}
    (tmp / "prometheus.yml").write_text(yaml.safe_dump(config))
    p = host.start(["prometheus", f"--config.file={tmp}/prometheus.yml", f"--storage.tsdb.path={tmp}/tsdb",
                    "--web.listen-address=127.0.0.1:9090"])
    p.wait_for("Server is ready to receive web requests", 120)
    return p


def ask(host: Host, query: str) -> list[tuple[dict, float]]:
    said = json.loads(host.run(["curl", "-s", "http://127.0.0.1:9090/api/v1/query?" + urllib.parse.urlencode({"query": query})]))
    assert said["status"] == "success", (query, said)
    return [(r["metric"], float(r["value"][1])) for r in said["data"]["result"]]


def until(holds, what, patience=90):
    by = clock() + patience
    while not (found := holds()):
        assert clock() < by, what() if callable(what) else what
        time.sleep(0.1)
    return found


def dashboard() -> list[str]:
    board = (EXAMPLES / "grafana-dashboard.json").read_text()
    found = re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', board)
    assert len(found) > 10
    return [json.loads(f'"{q}"').replace("$instance", ".*") for q in found]


def alerts() -> list[str]:
    groups = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def test_prometheus_through_kills_and_a_partition(tmp_path: Path) -> None:
    with Rig(4) as rig:
        first, watcher = rig[0], rig[3]
        nodes = [node(h, tmp_path) for h in rig.hosts[:3]]
        pids = up(nodes, 6)
        link = first.run([MUSTER, "status", "--url", str(nodes[0].pid)]).strip()
        prometheus(watcher, tmp_path, link.partition("?key=")[2], [f"{h.ip4}:9464" for h in rig.hosts[:3]])
        at = f'{{instance="{first.ip4}:9464"}}'

        def value(name: str) -> float | None:
            return next((v for _, v in ask(watcher, name + at)), None)
        until(lambda: value("muster_job_ranks") == 6 and len(ask(watcher, "up == 1")) == 3, "three scrapes")

        nodes[0].host.run(["kill", "-9", str(pids[1])])  # a worker
        up(nodes, 6, times=2)
        until(lambda: value("muster_job_restarts_total") == 1, "a restart")

        rig.part([rig[0], rig[1], watcher], [rig[2]])  # a partition: the third host is lost
        up(nodes[:2], 4)
        until(lambda: value("muster_job_nodes_lost_total") == 1, lambda: ask(watcher, "muster_job_nodes_lost_total"))
        until(lambda: len(ask(watcher, "up == 0")) == 1, "a target that is away")
        rig.heal()
        until(lambda: len(ask(watcher, "up == 0")) == 0 or nodes[2].popen.poll() is not None, "it is back, or has ended")

        # Every query that users are given has an answer here; those of alerts that do not fire have none.
        until(lambda: all(ask(watcher, q) for q in dashboard()), lambda: [q for q in dashboard() if not ask(watcher, q)])
        for q in alerts():
            ask(watcher, q)

        def same() -> bool:
            told = json.loads(first.run([MUSTER, "status", "--json", str(nodes[0].pid)]))["job"]
            seen = [value(f"muster_job_{k}") for k in ("restarts_total", "round", "nodes_lost_total")]
            return told["state"] == "running" and [told["restarts"], told["round"], told["nodes_lost"]] == seen
        until(same, "metrics and status that tell the same")
        restarts = value("muster_job_restarts_total")
        (tmp_path / "stop").touch()
        assert nodes[0].wait(90) == 0 and nodes[1].wait(90) == 0, nodes[0].output() + nodes[1].output()
        if nodes[2].popen.poll() is None:
            nodes[2].signal(signal.SIGTERM)
        events = [json.loads(line) for line in (tmp_path / "node1.jsonl").read_text().splitlines()]
        counted = {e["metadata"]["agent_restarts"] for e in events if e["source"] == "WORKER"}
        assert max(counted) == restarts, (counted, restarts)
