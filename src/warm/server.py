# server.py - the interpreter that imports once and from which workers are forked.
#
# muster puts this file, under the name sitecustomize, into a zip file in memory and
# that file in front of PYTHONPATH; so `site` imports it after the interpreter has set
# itself up and before it runs the script. Two stages:
#
#   1. `python -u -c STUB script args` with MUSTER_WARM_SERVER=1: that we run at all
#      shows that this Python heeds PYTHONPATH and site. Only then does this process
#      become `python -u script args` by exec. If we do not run, STUB ends it: the script
#      never runs by accident.
#   2. MUSTER_WARM_SERVER=2: import the modules, then wait for the guard's requests. In
#      the server this module never ends. In a forked worker it does, and the interpreter
#      goes on to the script as in any other process: __main__, sys.path[0], -m and
#      tracebacks are its own work, and no frame of ours is below them.
#
# Descriptors: 3 the guard's socket (see src/process/guard_wire.h), 4 a socket for lines to
# the agent (see src/warm/core/warm_core.h), 5 the zip file.

import os
import sys

CONTROL, STATUS, ZIP = 3, 4, 5
ZIP_PATH = "/proc/self/fd/5"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SIGKILL = 9
PR_SET_PDEATHSIG, PR_SET_NAME, PR_GET_NAME = 1, 15, 16
PR_SET_MM, PR_SET_MM_MAP, PR_GET_TID_ADDRESS = 35, 14, 40
PR_SET_PTRACER = 0x59616D61
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
SIGCHLD = 17
# What the reader of stacks uses where ptrace is forbidden: see src/stacks/collect.c.
SIGURG, STACKS_FD = 23, 251
FLAG_SESSION = 1
# Number of clone(2), and whether the thread pointer is its fourth argument.
CLONE_CALL = {"x86_64": (56, False), "aarch64": (220, True), "riscv64": (220, True)}
OWN_VARIABLES = (b"PYTHONPATH",) + tuple(n.encode() for n in THREAD_VARIABLES)
IDLE_S = 2.0  # without a request before the sources are looked at


class Refuse(Exception):
    """Why there is no server, or no fork, in one line."""


def tell(kind, *words):
    text = " ".join([kind] + [str(w) for w in words])
    text = text.replace("\n", " ").replace("\r", " ")
    try:
        os.write(STATUS, text.encode("utf-8", "replace")[:2000] + b"\n")
    except OSError:
        pass


# --- becoming the script's interpreter ------------------------------------------------


def command_line():
    with open("/proc/self/cmdline", "rb") as f:
        return f.read().split(b"\0")[:-1]


def first_stage():
    """A wrapper may have put flags of its own in front of -u: they are the workers', too."""
    words, script = command_line(), sys.argv[1:]
    before = words[: len(words) - len(script) - 3]  # python and flags; then -u -c STUB
    os.environ["MUSTER_WARM_SERVER"] = "2"
    os.environ["MUSTER_WARM_FLAGS"] = str(len(before) - 1)
    os.execv(sys.executable, before + [b"-u"] + script)


# --- what a plain interpreter would have found ----------------------------------------


class Given:
    """What we changed of the environment, and how the worker shall find it."""

    def __init__(self):
        self.original = dict(os.environb)
        self.argv = command_line()
        take = os.environ.pop
        self.flags = self.argv[1 : 1 + int(take("MUSTER_WARM_FLAGS", "0") or 0)]
        take("MUSTER_WARM_SERVER")
        self.optional = take("MUSTER_WARM_OPTIONAL", "") == "1"
        self.memory_kb = int(take("MUSTER_WARM_MEMORY_KB", "0") or 0)
        self.learn = take("MUSTER_WARM_LEARN", "") == "1"
        self.files = take("MUSTER_WARM_FILES", "")
        self.tracer = int(take("MUSTER_WARM_TRACER", "0") or 0)
        path = os.environ["PYTHONPATH"]
        if path == ZIP_PATH:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path[len(ZIP_PATH) + 1 :]
        sys.path[:] = [p for p in sys.path if p != ZIP_PATH]
        sys.path_importer_cache.pop(ZIP_PATH, None)
        # In front of the zip file: the environment with which muster started us, and
        # three lists. What is different in the environment by now is the work of a
        # wrapper around the interpreter, and workers would find it so too.
        self.env_size = int(take("MUSTER_WARM_ENV_SIZE", "0") or 0)
        self.lists_size = int(take("MUSTER_WARM_LISTS_SIZE", "0") or 0)
        given = environment_of(os.pread(ZIP, self.env_size, 0).split(b"\0"))
        self.wrapper = difference(given, os.environb, OWN_VARIABLES)
        lists = os.fsdecode(os.pread(ZIP, self.lists_size, self.env_size)).split("\0")
        lists = [names.split(",") if names else [] for names in lists]
        self.modules, self.learned, self.never = lists[:3]
        self.before = dict(os.environb)
        self.imports, self.readers = {}, {}

    def begin_again(self, modules=None, learned=None):
        """Becomes a new server, with other modules if they are given. The requests that
        the guard has sent stay in the socket, so that no worker loses anything by it."""
        if modules is not None:
            self.original[b"MUSTER_WARM_LISTS_SIZE"] = self.rewrite(modules, learned)
        for pid in children():
            os.kill(pid, SIGKILL)
            os.waitpid(pid, 0)
        for fd in fds_in_use():
            if fd > ZIP:
                os.close(fd)
        for fd in (CONTROL, STATUS, ZIP):
            os.set_inheritable(fd, True)
        os.execve(sys.executable, self.argv, self.original)

    def rewrite(self, modules, learned):
        """A new file in the place of the old one: lists may be too long for a variable.
        The size of its lists."""
        lists = [os.fsencode(",".join(n)) for n in (modules, learned, self.never)]
        lists = b"\0".join(lists)
        size = os.fstat(ZIP).st_size
        env = os.pread(ZIP, self.env_size, 0)
        rest = self.env_size + self.lists_size
        fd = os.memfd_create("muster-warm")
        with open(fd, "wb", closefd=False) as f:
            f.write(env + lists + os.pread(ZIP, size - rest, rest))
        os.dup2(fd, ZIP)
        return b"%d" % len(lists)

    def note_imports(self):
        """Modules set variables when they are imported: workers have them set."""
        self.imports = difference(self.before, os.environb, ())


def environment_of(entries):
    pairs = (e.partition(b"=") for e in entries)
    return {k: v for k, _, v in pairs if k}


def difference(before, after, without):
    """What changed: name to value, or to None where it is gone. Pure."""
    out = {k: v for k, v in after.items() if before.get(k) != v}
    out.update((k, None) for k in before if k not in after)
    return {k: v for k, v in out.items() if k not in without}


def own_sitecustomize():
    """Imports the user's. Returns what to raise in the end, or None."""
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except BaseException as e:
        e.__traceback__ = e.__context__ = None
        return e
    return None


# --- the C library and the kernel -----------------------------------------------------


class System:
    def __init__(self):
        try:
            import ctypes
        except ImportError as e:
            raise Refuse("this Python has no ctypes (%s)" % e)
        self.ctypes = ctypes
        self.py = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock
        self.number, tls_first = CLONE_CALL.get(os.uname().machine, (0, False))
        if not self.number:
            raise Refuse("no clone() known for " + os.uname().machine)
        # The C library keeps the thread's number in its own memory. The kernel writes
        # the worker's there when it is told where, as fork() does.
        where = ctypes.c_void_p()
        if self.py.prctl(PR_GET_TID_ADDRESS, ctypes.byref(where), 0, 0, 0) != 0:
            raise Refuse("the kernel does not tell where the C library keeps thread ids")
        if ctypes.c_int.from_address(where.value).value != os.getpid():
            raise Refuse("the C library is not one whose fork() is known")
        tid = ctypes.c_void_p(where.value)
        none = ctypes.c_void_p(None)
        flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD
        order = (none, none, none, tid) if tls_first else (none, none, tid, none)
        self.arguments = (ctypes.c_long(self.number), ctypes.c_ulong(flags)) + order
        self.py.syscall.restype = ctypes.c_long
        for name in ("PyOS_BeforeFork", "PyOS_AfterFork_Child", "PyOS_AfterFork_Parent"):
            getattr(self.py, name).restype = None
        name = ctypes.create_string_buffer(16)
        self.py.prctl(PR_GET_NAME, name, 0, 0, 0)
        self.name = name.value
        self.argv0 = command_line()[0]  # a wrapper may have chosen it

    def fork(self):
        """os.fork(), but the child is a child of our parent."""
        robust, size = self.ctypes.c_void_p(), self.ctypes.c_size_t()
        get_list, set_list = {"x86_64": (274, 273)}.get(os.uname().machine, (100, 99))
        self.py.syscall(get_list, 0, self.ctypes.byref(robust), self.ctypes.byref(size))
        self.py.fflush(None)  # or each worker would print what C code has not yet
        self.py.PyOS_BeforeFork()
        pid = self.py.syscall(*self.arguments)
        if pid == 0:
            if robust.value:
                self.py.syscall(set_list, robust, size)
            self.py.PyOS_AfterFork_Child()
            return 0
        errnum = self.ctypes.get_errno()
        self.py.PyOS_AfterFork_Parent()
        if pid < 0:
            raise Refuse("clone(): " + os.strerror(errnum))
        return pid

    def may_be_read(self):
        """Whether the agent will be able to read the memory of a process like us. Some
        machines forbid it to everybody, and some containers forbid the call itself."""
        try:
            with open("/proc/sys/kernel/yama/ptrace_scope") as f:
                if int(f.read()) > 1:
                    return False
        except (OSError, ValueError):
            pass
        c = self.ctypes
        of, to = c.create_string_buffer(1), c.create_string_buffer(1)
        pair = c.c_void_p * 2
        local, remote = pair(c.addressof(to), 1), pair(c.addressof(of), 1)
        one, none = c.c_ulong(1), c.c_ulong(0)
        try:
            read = self.py.process_vm_readv
        except AttributeError:
            return False
        return read(c.c_int(os.getpid()), local, one, remote, one, none) == 1

    def place(self, argv, environ):
        """The words and variables one behind the other, as a new process has them, for
        good. Where they begin, where the variables do, and where they end."""
        c = self.ctypes
        line = b"".join(a + b"\0" for a in argv)
        text = line + b"".join(e + b"\0" for e in environ)
        at = self.allocate(len(text))
        c.memmove(at, text, len(text))
        return at, at + len(line), at + len(text)

    def allocate(self, size):
        self.py.malloc.restype = self.ctypes.c_void_p
        at = self.py.malloc(self.ctypes.c_size_t(size or 1))
        if not at:
            raise MemoryError()
        return at

    def set_environ(self, at, environ):
        """C's variable of that name. Its first is behind the last word of the command
        line: libraries that change what ps shows look for it there."""
        c = self.ctypes
        pointers = []
        for entry in environ:
            pointers.append(at)
            at += len(entry) + 1
        table = (c.c_void_p * (len(pointers) + 1))(*pointers)
        kept = self.allocate(c.sizeof(table))
        c.memmove(kept, table, c.sizeof(table))
        c.c_void_p.in_dll(self.py, "environ").value = kept

    def set_title(self, name, place):
        """What ps and /proc/PID/environ show. The kernel may not be able to."""
        c = self.ctypes
        self.py.prctl(PR_SET_NAME, c.c_char_p(name[:15]), 0, 0, 0)
        with open("/proc/self/stat", "rb") as f:
            stat = [0, 0] + [
                int(x) if x.lstrip(b"-").isdigit() else 0
                for x in f.read().rpartition(b") ")[2].split()
            ]
        words, variables, end = place
        self.py.sbrk.restype = c.c_void_p
        fields = [stat[i - 1] for i in (26, 27, 45, 46, 47)]
        fields += [self.py.sbrk(c.c_long(0)), stat[28 - 1]]
        fields += [words, variables, variables, end, 0]
        self.map = (c.c_uint64 * 13)(*(fields + [0xFFFFFFFF << 32]))
        self.py.prctl(PR_SET_MM, PR_SET_MM_MAP, self.map, c.c_ulong(104), 0)


# --- importing ------------------------------------------------------------------------


def fds_in_use():
    out = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            out[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass
    return out


def problem_of(threads, fds, children, devices=""):
    """Why a process of this shape must not be forked; "" if it may. Pure."""
    if threads > 1:
        return "%d more thread%s" % (threads - 1, "" if threads == 2 else "s")
    if devices:
        return devices
    for fd, what in sorted(fds.items()):
        if what.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")):
            return "an open accelerator (%s)" % what
        if what.startswith("socket:"):
            return "an open socket"
        if what.startswith("anon_inode:"):
            return "an open %s" % what[len("anon_inode:") :].strip("[]")
        if what.startswith("pipe:"):
            return "an open pipe"
        if what.startswith("locked:"):
            return "a locked file (%s)" % what[len("locked:") :]
    if children:
        return "a child process"
    return ""


def devices_in_use():
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu"):  # HIP is torch.cuda too
        module = getattr(torch, name, None)
        try:
            if module is not None and module.is_initialized():
                return "%s is initialised" % name
        except Exception:
            pass
    return ""


def children():
    try:
        with open("/proc/self/task/%d/children" % os.getpid()) as f:
            return [int(pid) for pid in f.read().split()]
    except OSError:
        return []


def locked(fd):
    """Does this process hold a lock on the file? Children would share it, or believe
    that they have it."""
    try:
        with open("/proc/self/fdinfo/%d" % fd) as f:
            return "\nlock:" in f.read()
    except OSError:
        return False


def problem(known):
    fds = {fd: what for fd, what in fds_in_use().items() if fd not in known}
    fds = {fd: "locked:" + what if locked(fd) else what for fd, what in fds.items()}
    threads = len(os.listdir("/proc/self/task"))
    return problem_of(threads, fds, children(), devices_in_use())


# --- variables that modules read ------------------------------------------------------

# What native libraries read when they are loaded, where nobody can see it.
NATIVE = (b"OMP_", b"GOMP_", b"KMP_", b"MKL_", b"OPENBLAS_")
RANK_NAMES = {b"MASTER_ADDR", b"MASTER_PORT", b"ROLE_NAME"} | {
    prefix + name
    for prefix in (b"", b"LOCAL_", b"GROUP_", b"ROLE_")
    for name in (b"RANK", b"WORLD_SIZE")
}


def is_rank(name):
    """Is it different in each worker? Some modules keep it when they are imported
    (lightning has its rank_zero_only.rank), and all workers would have the server's."""
    return name in RANK_NAMES or name.startswith((b"TORCHELASTIC_", b"MUSTER_MASTER_"))


def in_progress(frame):
    """The modules whose import has led to this frame, innermost first."""
    out = []
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = frame.f_globals.get("__name__")
            ours = name in ("__main__", "site", "sitecustomize")
            if not ours and name in sys.modules and name not in out:
                out.append(name)
        frame = frame.f_back
    return out


def caller(frame):
    """Who has asked os.environ: the first frame above that is neither ours nor its own."""
    while frame is not None and frame.f_globals.get("__name__") in (
        "sitecustomize", "warm_server", "os", "_collections_abc", "collections.abc"
    ):
        frame = frame.f_back
    return frame


def has_of(names, packages):
    """Is something of these packages among the values of a namespace? Then whoever's it
    is has imported them, and saw no other value than a plain worker would. Pure."""
    for value in list(names.values()):
        if isinstance(value, type(sys)):
            name = value.__name__
        else:
            made = isinstance(value, (type, type(has_of)))
            name = (value if made else type(value)).__module__
        if isinstance(name, str) and name.partition(".")[0] in packages:
            return True
    return False


class Variables(dict):
    """The table behind os.environ. A module that has read a variable when the server
    imported it does not see what a worker sets later: sees, and says so."""

    def __init__(self, table, readers, told):
        super().__init__(table)
        self.readers = readers  # name: {module: (what it saw, what had led to it)}
        self.told = told  # told(name, modules), once for each name
        self.first = dict(table)
        self.set = set()  # by the script; what imports set, those of a server set, too

    def install(self):
        os.environ._data = os.environb._data = self
        return self

    def remove(self):
        os.environ._data = os.environb._data = dict(dict.items(self))

    def __setitem__(self, key, value):
        if dict.get(self, key) != value:
            self.notice(key, value)
        dict.__setitem__(self, key, value)

    def __delitem__(self, key):
        """Not told: it may be back soon (accelerate has a clear_environment())."""
        dict.__delitem__(self, key)
        if not in_progress(sys._getframe(1)):
            self.set.add(key)

    def differs(self, key):
        """Has the script given it a value that a server would not see?"""
        return key in self.set and dict.get(self, key) != self.first.get(key)

    def notice(self, key, value):
        readers = self.readers.get(key, {})
        if not readers and key.startswith(NATIVE):
            loaded = [n for n in ("torch", "numpy") if n in sys.modules]
            readers = {n: (dict.get(self, key), loaded) for n in loaded[:1]}
        late = {m: led for m, (saw, led) in readers.items() if saw != value}
        packages = {m.partition(".")[0] for led in late.values() for m in led}
        frame = caller(sys._getframe(1))
        imports = bool(in_progress(frame))
        if frame is None or (imports and "-packages/" in frame.f_code.co_filename):
            return
        if late and key not in self.set:
            main = getattr(sys.modules.get("__main__"), "__dict__", {})
            if not has_of(frame.f_globals, packages) and not has_of(main, packages):
                self.told(key, late)
        if not imports:
            self.set.add(key)


class Reads(Variables):
    """The same, and who reads: in the server, and in a worker of which we learn."""

    def __init__(self, table, readers, told, on_read):
        super().__init__(table, readers, told)
        self.on_read = on_read  # on_read(table, name, frame of the reader)
        self.listed = iter(())

    def __iter__(self):
        self.listed = dict.__iter__(self)
        return dict.__iter__(self)

    def read(self, key):
        """But for a copy of all of them, which asks for one after the other."""
        try:
            if next(self.listed, None) == key:
                return
        except RuntimeError:  # It has changed meanwhile.
            pass
        self.listed = iter(())
        self.on_read(self, key, sys._getframe(2))

    def __getitem__(self, key):
        self.read(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key):
        self.read(key)
        return dict.__contains__(self, key)


def warn_late(key, readers):
    """One line on the worker's own stderr, or the server's."""
    name, module = os.fsdecode(key), sorted(readers)[0]
    line = (
        "muster: --warm: %s is set after %s, which reads it, was imported; there it has "
        "no effect. Set it before muster starts, or leave %s out of --warm\n"
    ) % (name, module, module.partition(".")[0])
    try:
        os.write(2, line.encode("utf-8", "replace"))
    except OSError:
        pass


class Barrier:
    """A finder that finds nothing. Ends an import that would reach a module which must
    not be here, and sees whose import has started a thread."""

    class Reached(BaseException):
        pass

    def __init__(self, never):
        self.never = set(never)
        self.reached, self.threads = [], []  # and what had led there, innermost first

    def find_spec(self, name, path=None, target=None):
        if name in self.never:
            self.reached = self.reached or [name] + in_progress(sys._getframe(1))
            raise Barrier.Reached(name)
        if not self.threads and os.stat("/proc/self/task").st_nlink > 3:
            self.threads = in_progress(sys._getframe(1))
        return None


def resident_kb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * (os.sysconf("SC_PAGE_SIZE") // 1024)


def script_directory():
    """What the interpreter will put in front of sys.path for the script, or None."""
    if getattr(sys.flags, "safe_path", False):
        return None
    words = sys.argv
    if words and words[0] in ("-m", "-c"):
        return os.getcwd()
    if not words or not words[0]:
        return None
    path = os.path.realpath(words[0])
    return os.path.dirname(path) if os.path.isfile(path) else path


def show_error(e):
    import traceback

    tb = e.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(ZIP_PATH):
        tb = tb.tb_next
    while tb is not None and "importlib" in tb.tb_frame.f_code.co_filename:
        tb = tb.tb_next
    sys.stderr.write("".join(traceback.format_exception(type(e), e, tb)))
    sys.stderr.flush()


def import_one(name, optional):
    """False: it is not there or fails, and nobody has asked for it by name."""
    import importlib

    try:
        importlib.import_module(name)
    except ImportError as e:
        if optional and (name != "torch" or e.name == "torch"):
            return False
        show_error(e)
        raise Refuse("the module %s does not import: %s" % (name, e))
    except Barrier.Reached:
        return False
    except BaseException as e:
        if optional and name != "torch" and not isinstance(e, MemoryError):
            tell("fails", name, "%s: %s" % (type(e).__name__, e))
            return False
        if isinstance(e, SystemExit):
            raise Refuse("the module %s calls sys.exit(%s)" % (name, e.code))
        show_error(e)
        raise Refuse("the module %s: %s: %s" % (name, type(e).__name__, e))
    return True


def without(given, at, guilty):
    """Begins again without these modules."""
    for name in sorted(guilty):
        tell("never", name)
    first = len(given.modules)
    if at >= first:
        given.begin_again(given.modules, given.learned[: at - first])
    given.begin_again([m for m in given.modules if m not in guilty], given.learned)


def import_all(given, known):
    """What was learned comes last, and ends at the first module that does not do: who
    needs that module too is not known, and each would cost a start of its own."""
    ranks, count = [], 0

    def on_read(table, key, frame):
        led = in_progress(frame)
        if is_rank(key):
            ranks.append((key, led))
        elif led:
            given.readers.setdefault(key, {}).setdefault(led[0], (dict.get(table, key), led))

    def told(key, late):
        warn_late(key, late)
        for name in sorted({m for led in late.values() for m in led}):
            tell("differs", name)

    barrier = Barrier(given.never)
    variables = Reads(os.environ._data, given.readers, told, on_read).install()
    sys.meta_path.insert(0, barrier)
    try:
        for at, name in enumerate(given.modules + given.learned):
            tell("importing", name)
            done = import_one(name, given.optional)
            count += done
            why, guilty = problem(known), barrier.threads
            if ranks:
                names = sorted({os.fsdecode(key) for key, _ in ranks})
                why, guilty = "what it saw of " + " and ".join(names), ranks[0][1]
            if why and guilty and guilty[0] != name:
                why += " (%s)" % guilty[0]
            if barrier.reached:
                guilty = barrier.reached
                tell("needs", name, guilty[0])
            elif why:
                tell("left-out", name, why)
            if why or barrier.reached:
                without(given, at, set(guilty) | {name})
            if done and given.memory_kb and resident_kb() > given.memory_kb:
                raise Refuse("%s takes more than %d MB" % (name, given.memory_kb // 1024))
    finally:
        sys.meta_path.remove(barrier)
        variables.remove()
    if count == 0 and given.optional and not given.learn:
        raise Refuse("there is no torch to import here")


# --- a slow file system ---------------------------------------------------------------


class ReadAhead:
    """An import asks for one file after the other, which takes long where each answer
    does. Of what --warm=auto has learned the files are known beforehand: where they are
    slow to come, they are read by many threads at once, and the imports find them here.
    What is not here is looked for as ever, and all sources' times are kept: nobody need
    ask for them again to know later that a file has changed."""

    SLOW_S = 0.0003  # for a file; one that the kernel has takes a tenth of it
    FEW, THREADS = 64, 32

    def __init__(self, known):
        import importlib

        self.known, self.paths = known, []  # the file that names them, or ""
        self.lib = importlib._bootstrap_external
        self.stat, self.get_data = self.lib._path_stat, self.lib.FileLoader.get_data
        self.suffixes = self.lib.EXTENSION_SUFFIXES
        self.stats, self.data = {}, {}

    def read(self, path):
        """Of a source the compiled code is what is needed, if it is there."""
        try:
            self.stats[path] = self.stat(path)
            for suffix in self.suffixes if path.endswith("/__init__.py") else ():
                os.path.exists(path[:-3] + suffix)  # The import asks; the kernel knows.
            path = self.lib.cache_from_source(path)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError, NotImplementedError):
            return
        try:
            data = os.read(fd, 1 << 24)
            if len(data) == os.fstat(fd).st_size:
                self.data[path] = data
        except OSError:
            pass
        os.close(fd)

    def is_slow(self, paths):
        import time

        took = []
        for path in paths[:: len(paths) // 9 + 1]:
            began = time.monotonic()
            self.read(path)
            took.append(time.monotonic() - began)
        return sorted(took)[len(took) // 2] > self.SLOW_S

    def run(self):
        try:
            with open(self.known, encoding="utf-8") as f:
                if os.fstat(f.fileno()).st_uid == os.geteuid():
                    self.paths = f.read(1 << 20).splitlines()
        except (OSError, ValueError):
            pass
        if len(self.paths) >= self.FEW and self.is_slow(self.paths):
            self.read_all(self.paths)

    def keep(self):
        """The sources, in the order in which they were imported, for the next start."""
        paths = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
        paths = [p for p in paths if isinstance(p, str) and p in self.stats]
        if not self.known or paths == self.paths:
            return
        temp = "%s.%d" % (self.known, os.getpid())
        try:
            os.makedirs(os.path.dirname(temp), 0o700, True)
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="utf-8") as f:
                f.write("\n".join(paths))
            os.rename(temp, self.known)
        except (OSError, ValueError):
            pass
        self.paths = paths

    def read_all(self, paths):
        import _thread
        import time

        todo, ends = paths[::-1], []

        def work(end):
            try:
                while todo:
                    self.read(todo.pop())
            except IndexError:  # Somebody else took the last.
                pass
            finally:
                end.release()

        for _ in range(self.THREADS):
            ends.append(_thread.allocate_lock())
            ends[-1].acquire()
            _thread.start_new_thread(work, (ends[-1],))
        for end in ends:
            end.acquire()
        while len(os.listdir("/proc/self/task")) > 1:  # They are gone a moment later.
            time.sleep(0.001)

    def __enter__(self):
        def stat(path):
            found = self.stats.get(path) or self.stat(path)
            if path.endswith(".py"):
                self.stats[path] = found
            return found

        def get_data(loader, path):
            data = self.data.pop(path, None)
            return self.get_data(loader, path) if data is None else data

        self.lib._path_stat, self.lib.FileLoader.get_data = stat, get_data
        return self

    def __exit__(self, *_):
        self.lib._path_stat, self.lib.FileLoader.get_data = self.stat, self.get_data
        self.data.clear()


# --- sources that change --------------------------------------------------------------


class Sources:
    """The files that were imported. Those of the user are few and looked at before each
    fork; those of packages when nothing is to be done."""

    def __init__(self, stats):
        import sysconfig

        paths = sysconfig.get_paths()
        packages = tuple(
            {os.path.join(os.path.realpath(paths[k]), "") for k in
             ("stdlib", "platstdlib", "purelib", "platlib")}
        )
        self.mine, self.others = {}, {}
        real = {}
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if not isinstance(path, str) or path.startswith(ZIP_PATH):
                continue
            place, name = os.path.split(path)
            if place not in real:
                real[place] = os.path.join(os.path.realpath(place), "")
            theirs = (real[place] + name).startswith(packages) or "-packages/" in path
            stamp = self.stamp(path, stats.get(path))
            (self.others if theirs else self.mine)[path] = stamp

    @staticmethod
    def stamp(path, st=None):
        try:
            st = st or os.stat(path)
        except OSError:
            return None
        return (st.st_mtime_ns, st.st_size)

    def changed(self, files):
        for path, stamp in files.items():
            if self.stamp(path) != stamp:
                return path
        return None


# --- the worker -----------------------------------------------------------------------


class Request:
    def __init__(self, message, ancillary):
        import _struct

        (self.ticket, self.flags, self.argc, self.envc, self.cpus_size, _,
         self.length) = _struct.unpack("=6IQ", message)
        self.fds = []
        for _level, _kind, data in ancillary:
            self.fds += _struct.unpack("=%di" % (len(data) // 4), data)
        if len(self.fds) != 5:
            raise Refuse("a request without its descriptors")

    def close(self):
        for fd in self.fds:
            os.close(fd)

    def read(self):
        body = os.pread(self.fds[0], self.length, 0)
        self.cpus = body[: self.cpus_size]
        texts = body[self.cpus_size :].split(b"\0")
        self.argv = texts[: self.argc]
        self.envp = texts[self.argc : self.argc + self.envc]


def reopen_streams():
    """The three streams as for a new process: the same objects, since handlers may hold
    them, but of what the descriptors are now."""
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        text = getattr(sys, "__%s__" % name)
        if text is None:
            continue
        encoding, errors = text.encoding, text.errors
        binary = text.buffer
        raw = getattr(binary, "raw", binary)
        through = text.write_through
        raw.__init__(fd, "rb" if fd == 0 else "wb", closefd=False)
        raw.name = "<%s>" % name
        if raw is not binary:
            binary.__init__(raw)
        lines = raw is not binary and not through and (fd == 2 or raw.isatty())
        text.__init__(binary, encoding, errors, "\n", lines, through)
        text.mode = "r" if fd == 0 else "w"


def environment_for(given, envp):
    """The variables as the worker was given them, with what a wrapper changed."""
    environ = environment_of(envp)
    for key, value in given.wrapper.items():
        if value is None:
            environ.pop(key, None)
        else:
            environ[key] = value
    return environ


def new_environment(given, environ):
    """os.environ, whose part in C is there already, and what the imports changed."""
    os.environb._data.clear()
    os.environb._data.update(environ)
    for key, value in given.imports.items():
        if value is None:
            os.environb.pop(key, None)
        else:
            os.environb[key] = value


def set_threads():
    """OpenMP and the like read the number of threads when they are loaded, and the
    server has loaded them with one."""
    import re

    def number(*names):
        for name in names:
            m = re.match(r"\s*(\d+)", os.environ.get(name, ""))
            if m and int(m.group(1)) > 0:
                return int(m.group(1))
        return 0

    cpus = len(os.sched_getaffinity(0))
    omp = number("OMP_NUM_THREADS")
    torch = sys.modules.get("torch")
    if torch is not None:
        wanted = omp or number("MKL_NUM_THREADS")
        if not wanted:
            mkl = torch.backends.mkl.is_available()
            wanted = min(physical_cores(), cpus) if mkl else cpus
        if wanted != torch.get_num_threads():
            torch.set_num_threads(wanted)
    blas = number("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS") or cpus
    if blas > 1:
        set_openblas_threads(blas)


def physical_cores():
    """Of those CPUs that we may use, as MKL counts them."""
    seen = set()
    for cpu in os.sched_getaffinity(0):
        where = "/sys/devices/system/cpu/cpu%d/topology/" % cpu
        try:
            with open(where + "physical_package_id") as a, open(where + "core_id") as b:
                seen.add((a.read(), b.read()))
        except OSError:
            seen.add(cpu)
    return len(seen)


def set_openblas_threads(count):
    import ctypes

    with open("/proc/self/maps") as f:
        lines = [line.split(None, 5) for line in f]
    for path in {w[5].strip() for w in lines if len(w) > 5 and "openblas" in w[5]}:
        try:
            lib = ctypes.CDLL(path)
        except OSError:
            continue
        for name in ("openblas_set_num_threads", "openblas_set_num_threads64_",
                     "scipy_openblas_set_num_threads",
                     "scipy_openblas_set_num_threads64_"):
            if hasattr(lib, name):
                getattr(lib, name)(count)
                break


def fresh_randomness():
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def fresh_threading():
    threading = sys.modules.get("threading")
    if threading is not None and hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()


class Learner:
    """Notes what a worker imports, for --warm=auto: a finder that finds nothing. Nobody
    may be there to hear it, which must not end a worker that does not ignore SIGPIPE."""

    def __init__(self, fd):
        import _socket

        self.socket = _socket.socket(fileno=fd)
        self.flags = _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL
        self.told = set()

    def tell(self, kind, name):
        if (kind, name) not in self.told and self.socket is not None:
            self.told.add((kind, name))
            try:
                self.socket.send(("%s %s\n" % (kind, name)).encode(), self.flags)
            except (OSError, UnicodeError):
                self.socket.close()
                self.socket = None

    def find_spec(self, name, path=None, target=None):
        self.tell("module", name)
        return None

    def on_read(self, table, key, frame):
        """A module whose import depends on its rank, or on what the script has set."""
        if table.differs(key) or is_rank(key):
            for name in in_progress(frame):
                self.tell("differs", name)

    def on_late(self, key, readers):
        warn_late(key, readers)
        for name in sorted({m for led in readers.values() for m in led}):
            self.tell("differs", name)


def watch_worker(given):
    """In one worker of the node: its lines would be those of the others."""
    if os.environ.get("LOCAL_RANK") != "0":
        return
    if not given.learn:
        Variables(os.environ._data, given.readers, warn_late).install()
        return
    fd = os.dup(STATUS)
    os.dup2(fd, 250)
    os.close(fd)
    os.set_inheritable(250, False)
    learner = Learner(250)
    sys.meta_path.insert(0, learner)
    Reads(os.environ._data, given.readers, learner.on_late, learner.on_read).install()


def print_stacks_when_asked():
    """Where nobody may read our memory, Python itself prints where it is, into a file
    that the reader of stacks finds by its name. The signal is one that does nothing to a
    process that does not expect it."""
    import faulthandler
    import fcntl

    try:
        fd = os.memfd_create("muster-stacks")
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        os.dup2(fd, STACKS_FD, False)
        os.close(fd)
        faulthandler.register(SIGURG, STACKS_FD, all_threads=False)
    except (OSError, AttributeError, RuntimeError):
        pass  # The worker is worth more than its stacks.


def become_worker(system, given, guard, request, control, collect):
    """Everything between the fork and the script."""
    py = system.py
    if request.flags & FLAG_SESSION:
        os.setsid()
    py.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    py.prctl(PR_SET_PTRACER, system.ctypes.c_ulong(given.tracer), 0, 0, 0)
    if os.getppid() != guard:
        os._exit(99)
    request.read()
    if request.cpus:
        py.sched_setaffinity(0, system.ctypes.c_size_t(len(request.cpus)), request.cpus)
    for fd in (0, 1, 2):
        os.dup2(request.fds[2 + fd], fd)
    environ = environment_for(given, request.envp)
    entries = [k + b"=" + v for k, v in environ.items()]
    shown = [system.argv0] + given.flags + request.argv[1:]
    place = system.place(shown, entries)
    system.set_title(system.name, place)
    system.set_environ(place[1], entries)
    new_environment(given, environ)
    words = [os.fsdecode(a) for a in request.argv]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[1:] = [os.fsdecode(a) for a in shown[1:]]
    sys.argv[:] = words[2:]
    if words[2:3] == ["-m"]:
        sys.argv[:] = words[2:3] + words[4:]
    elif words[2:3] == ["-c"]:
        sys.argv[:] = words[2:3] + words[4:]
    reopen_streams()
    fresh_threading()
    fresh_randomness()
    set_threads()
    if not os.read(request.fds[1], 1):
        os._exit(99)  # The guard does not know us: it was asked to stop.
    request.close()
    control.detach()
    os.close(CONTROL)
    os.close(ZIP)
    watch_worker(given)
    os.close(STATUS)
    if not given.readable:
        print_stacks_when_asked()
    if collect:
        import gc

        gc.enable()


# --- the server -----------------------------------------------------------------------


def wait_for_request(given, control, sources, base_kb, ahead):
    """Looks at the sources while there is nothing else to do."""
    import select

    checked = False
    while True:
        ready, _, _ = select.select([control], [], [], None if checked else IDLE_S)
        if ready:
            path = sources.changed(sources.mine)
            if path:
                tell("stale", path)
                given.begin_again()
            message, ancillary, _flags, _peer = control.recvmsg(64, 128)
            if not message:
                os._exit(0)
            return Request(message, ancillary)
        checked = True
        path = sources.changed(sources.others) or sources.changed(sources.mine)
        if path:
            tell("stale", path)
            given.begin_again()
        now = resident_kb()
        if now > base_kb + base_kb // 4 + 65536:
            tell("grown", now)
            given.begin_again()
        ahead.keep()


def serve(system, given, guard):
    """Returns in each worker, and only there."""
    import _socket
    import _struct
    import gc
    import select  # noqa: F401  before memory is frozen
    import time

    began = time.monotonic()
    collect = gc.isenabled()
    gc.disable()
    known = {0, 1, 2, CONTROL, STATUS, ZIP} | set(fds_in_use())
    first = script_directory()
    if first is not None:
        sys.path.insert(0, first)
    ahead = ReadAhead(given.files)
    ahead.run()
    with ahead:
        import_all(given, known)
    if first is not None and first in sys.path:
        sys.path.remove(first)
    given.note_imports()
    sources = Sources(ahead.stats)
    import re  # noqa: F401
    gc.collect()
    gc.freeze()
    control = _socket.socket(fileno=CONTROL)
    given.readable = system.may_be_read()
    base_kb = resident_kb()
    tell("ready", int((time.monotonic() - began) * 1000), base_kb, len(sys.modules))
    while True:
        request = wait_for_request(given, control, sources, base_kb, ahead)
        pid = -1
        why = problem(known | set(request.fds))
        try:
            if why:
                raise Refuse("the warm interpreter has " + why)
            pid = system.fork()
            if pid == 0:
                become_worker(system, given, guard, request, control, collect)
                return
        except Refuse as e:
            tell("refused", e)
        control.send(_struct.pack("=Ii", request.ticket, pid))
        request.close()


def second_stage():
    for fd in (CONTROL, STATUS, ZIP):
        os.set_inheritable(fd, False)
    given = Given()
    guard = os.getppid()
    system = System()
    shown = [b"muster-warm", os.fsencode(",".join(given.modules + given.learned))]
    system.set_title(b"muster-warm", system.place(shown, []))
    error = own_sitecustomize()
    serve(system, given, guard)
    return error


def run():
    """In the worker: the exception with which this module is to end, or None."""
    server = os.getpid()
    try:
        if sys.version_info < (3, 8):
            raise Refuse("Python %d.%d is too old" % sys.version_info[:2])
        if os.environ["MUSTER_WARM_SERVER"] == "1":
            first_stage()
        return second_stage()
    except BaseException as e:
        if os.getpid() == server:
            if isinstance(e, Refuse):
                tell("failed", e)
            else:
                tell("failed", "%s: %s" % (type(e).__name__, e))
        else:
            import traceback

            sys.stderr.write("muster: a warm worker could not be set up\n")
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(70)


if __name__ == "sitecustomize":
    module = sys.modules[__name__]
    ending = run()
    if ending is not None:
        sys.modules[__name__] = module  # whoever imports us takes it out again
        raise ending
