"""Writes all that a worker can see of itself as JSON into a file: run once by a plain
interpreter and once by a warm one, both must say the same."""
import json
import locale
import os
import re
import resource
import signal
import sys

fds = sorted(int(n) for n in os.listdir("/proc/self/fd"))  # before anything else is opened
if os.environ.get("PROBE_IMPORTS"):
    for name in os.environ["PROBE_IMPORTS"].split(","):
        __import__(name)


def stream(s):
    raw = getattr(s.buffer, "raw", s.buffer)
    return {"encoding": s.encoding, "errors": s.errors, "line_buffering": s.line_buffering,
            "write_through": s.write_through, "newlines": s.newlines, "mode": s.mode, "name": s.name,
            "buffer": type(s.buffer).__name__, "raw": type(raw).__name__, "raw_mode": raw.mode,
            "raw_name": raw.name, "closefd": raw.closefd, "fileno": s.fileno(), "seekable": s.seekable(),
            "isatty": s.isatty(), "tell": bool(s.tell()) if s.seekable() else None,
            "same": s is getattr(sys, f"__{s.name[1:-1]}__")}


def frames():
    out, frame = [], sys._getframe(1)
    while frame:
        out.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    return out


def status(*names):
    with open("/proc/self/status") as f:
        rows = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
    return {n: rows[n] for n in names}


def threads():
    out = {}
    if "torch" in sys.modules:
        import torch
        out["torch"] = torch.get_num_threads()
        out["interop"] = torch.get_num_interop_threads()
    return out


def first_variable():
    """Where it is, seen from the end of the command line: setproctitle and others look for the words in front of it."""
    import ctypes

    with open("/proc/self/stat") as f:
        arg_end, env_start = [int(n) for n in f.read().rpartition(") ")[2].split()[46:48]]
    environ = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    return env_start - arg_end, environ[0] - arg_end


main = sys.modules["__main__"]
me = os.getpid()
facts = {
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "flags": list(sys.flags),
    "executable": sys.executable, "prefix": [sys.prefix, sys.base_prefix, sys.exec_prefix],
    "warnoptions": sys.warnoptions, "xoptions": sys._xoptions, "dont_write": sys.dont_write_bytecode,
    "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path], "path_hooks": len(sys.path_hooks),
    "main": {k: str(main.__dict__.get(k)) for k in ("__name__", "__file__", "__package__", "__doc__", "__cached__")},
    "main_spec": str(main.__spec__ and main.__spec__.name), "main_names": sorted(main.__dict__),
    "frames": frames(), "environ": dict(os.environ), "environ_order": list(os.environ),
    "proc_environ": open("/proc/self/environ").read().split("\0"),
    "c_environ": os.popen("env").read().splitlines(),
    "first_variable": first_variable(),
    "cmdline": open("/proc/self/cmdline").read().split("\0"), "comm": open("/proc/self/comm").read(),
    "exe": os.readlink("/proc/self/exe"), "cwd": os.getcwd(), "umask": os.umask(os.umask(0)),
    "locale": locale.setlocale(locale.LC_ALL), "encoding": sys.getfilesystemencoding(),
    "signals": {s: str(signal.getsignal(s)).split(" at ")[0] for s in sorted(signal.valid_signals()) if s < 32},
    "masks": status("SigBlk", "SigIgn", "SigCgt", "Threads", "Cpus_allowed", "NoNewPrivs", "Seccomp"),
    "streams": [stream(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "fds": fds,
    "links": [re.sub(r"\d+", "", os.readlink(f"/proc/self/fd/{n}")).rpartition("/")[2] for n in (0, 1, 2)],
    "session": os.getsid(0) == me, "group": os.getpgrp() == me,
    "parent": open(f"/proc/{os.getppid()}/comm").read(), "nice": os.nice(0),
    "limits": [resource.getrlimit(i) for i in range(10)], "affinity": sorted(os.sched_getaffinity(0)),
    "recursion": sys.getrecursionlimit(), "switch": sys.getswitchinterval(),
    "gc": (__import__("gc").isenabled(), __import__("gc").get_threshold()),
    "trace": (str(sys.gettrace()), str(sys.getprofile())), "faulthandler": __import__("faulthandler").is_enabled(),
    "hooks": (str(sys.excepthook).split(" at ")[0], str(sys.displayhook).split(" at ")[0]),
    "site": sorted(set(dir(__builtins__)) & {"exit", "quit", "help", "copyright"}),
    "site_modules": [m for m in ("sitecustomize", "usercustomize") if m in sys.modules], "threads": threads(),
    "main_thread": __import__("threading").main_thread().native_id == me,
    "interactive": hasattr(sys, "ps1"), "audit": __debug__,
    "process": __import__("multiprocessing").current_process().name,
}
with open(os.environ["PROBE_OUT"] + "." + os.environ["RANK"], "w") as f:
    json.dump(facts, f, default=str)
