"""The rules of the Trace Event Format (Chrome's, which Perfetto imports) for what we write of it.

trace_processor drops slices that overlap on a track without nesting, and events without a number for
their time: what these rules allow is imported whole."""
from __future__ import annotations

# The format's reserved colours that we use.
COLOURS = {"thread_state_running", "thread_state_uninterruptible", "thread_state_sleeping", "thread_state_unknown",
           "thread_state_runnable", "thread_state_iowait", "terrible", "bad", "good", "grey"}


def check_trace(trace: dict):
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events, tracks, named = trace["traceEvents"], {}, set()
    for e in events:
        assert e["ph"] in ("X", "i", "M") and isinstance(e["name"], str) and e["name"], e
        assert all(isinstance(e[k], int) and not isinstance(e[k], bool) and e[k] >= 0 for k in ("pid", "tid", "ts")), e
        assert e["ts"] < 2**53, e  # more does not fit into a number of JavaScript
        if e["ph"] == "M":
            assert e["name"] in ("process_name", "thread_name") and isinstance(e["args"]["name"], str), e
            named.add(e["pid"])
        elif e["ph"] == "i":
            assert e["s"] in ("g", "p", "t"), e
        else:
            assert isinstance(e["dur"], int) and e["dur"] >= 0 and e.get("cname", "good") in COLOURS, e
            tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], -e["dur"], e["ts"] + e["dur"]))
    assert {pid for pid, _ in tracks} <= named, "a track without a name"
    for track, slices in tracks.items():
        open_ends: list[int] = []
        for begin, _, end in sorted(slices):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], (track, "overlaps without nesting", begin, end)
            open_ends.append(end)
