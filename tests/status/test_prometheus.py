"""Real Prometheus scrapes a job: its formats, restarts that add up with the event log."""
from __future__ import annotations

import json
import subprocess
import urllib.parse
from urllib.parse import urlparse

import pytest
from trace_rules import check_trace
from watched import get, running, start, stop, until, url


def check_format(text: str):
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr and not done.stdout, done.stderr + done.stdout


@pytest.fixture
def prometheus(tmp_path):
    opened = []

    def run(target: str) -> str:
        config = tmp_path / "prometheus.yml"
        config.write_text(f"global: {{scrape_interval: 200ms}}\nscrape_configs:\n- job_name: muster\n"
                          f"  static_configs: [{{targets: ['{target}']}}]\n")
        log = (tmp_path / "prometheus.log").open("w")
        p = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/tsdb",
                              "--web.listen-address=127.0.0.1:0", "--log.level=debug"], stderr=log, stdout=log)
        opened.append(p)

        def listening():
            for line in (tmp_path / "prometheus.log").read_text().splitlines():
                if "Listening on" in line and "address=" in line:
                    return line.partition("address=")[2].split()[0]
            return None
        base = "http://" + until(listening, "Prometheus")
        until(lambda: get(base + "/-/ready")[0] == 200, "Prometheus to answer")  # It listens before it does.
        return base
    yield run
    for p in opened:
        p.terminate()
        p.wait(30)


def ask(base: str, query: str):
    code, _, text = get(base + "/api/v1/query?" + urllib.parse.urlencode({"query": query}))
    assert code == 200, text
    return [(r["metric"], float(r["value"][1])) for r in json.loads(text)["data"]["result"]]


def test_counts_restarts_as_the_event_log_does(tmp_path, prometheus):
    events = tmp_path / "events.jsonl"
    j = start(tmp_path, "--standalone", "--max-restarts", "3", "--event-log-handler", f"file:{events}")
    try:
        running(j)
        at = urlparse(url(j))
        base = prometheus(f"{at.hostname}:{at.port}")
        until(lambda: ask(base, "muster_job_ranks") == [] or ask(base, "muster_job_ranks")[0][1] == 2, "a scrape")
        check_format(get(url(j) + "metrics")[2])
        for i in range(2):
            until((tmp_path / f"began.0.{i}").exists)
            (tmp_path / "fail.0").touch()
            until((tmp_path / f"began.0.{i + 1}").exists)
        until(lambda: [v for _, v in ask(base, "muster_job_restarts_total")] == [2.0], "two restarts")
        until(lambda: [v for _, v in ask(base, "sum(muster_worker_up)")] == [2.0], "workers that run")
        check_trace(json.loads(get(url(j) + "trace.json")[2]))  # of a job with two restarts
        state = ask(base, "muster_job_state == 1")
        assert [m["muster_job_state"] for m, _ in state] == ["running"]
        assert ask(base, "up") and ask(base, "up")[0][1] == 1
        started = [json.loads(line) for line in events.read_text().splitlines()]
        restarts = {e["metadata"]["agent_restarts"] for e in started if e["source"] == "WORKER"}
        assert max(restarts) == 2  # the event log says the same
    finally:
        (tmp_path / "end").touch()
        stop(j)
