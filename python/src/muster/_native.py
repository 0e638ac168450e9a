"""Where the native parts are, and the library loaded with its functions declared."""
from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

LIBRARY = "libmuster.so.0"
DISTRIBUTION = "muster-run"  # what pip calls it; "muster" is another project there


class Error(Exception):
    """A call of the library failed. ``code`` is the name of the reason, MUSTER_E..."""

    code = "MUSTER_E?"


class MusterTimeoutError(Error, TimeoutError):
    """The call took longer than its timeout."""


class MusterConnectionError(Error, ConnectionError):
    """The connection could not be made, or broke; the text says why and with whom."""


class MusterQueueEmptyError(Error, LookupError):
    """The queue is empty, and the call was not to wait."""


class MusterAddressInUseError(Error, OSError):
    """Another program, or another store of this one, serves at that port already."""


_KINDS: dict[str, type[Error]] = {
    "MUSTER_ETIMEDOUT": MusterTimeoutError,
    "MUSTER_ECONN": MusterConnectionError,
    "MUSTER_EREFUSED": MusterConnectionError,
    "MUSTER_EUNREACH": MusterConnectionError,
    "MUSTER_ERESOLVE": MusterConnectionError,
    "MUSTER_ENOTSTORE": MusterConnectionError,
    "MUSTER_EHANGUP": MusterConnectionError,
    "MUSTER_EEMPTY": MusterQueueEmptyError,
    "MUSTER_EINUSE": MusterAddressInUseError,
}


class ErrorText(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int), ("text", ctypes.c_char * 1020))


def call(function: Any, *args: Any) -> None:
    """Calls a function of the library that takes a struct muster_error; raises if it fails."""
    err = ErrorText()
    rc = function(*args, ctypes.byref(err))
    if rc < 0:
        raise error(rc, err)


def error(rc: int, err: ErrorText) -> Error:
    code = library().muster_code_name(rc).decode()
    raised = _KINDS.get(code, Error)(err.text.decode(errors="replace") or code)
    raised.code = code
    return raised


class NativeError(ImportError):
    """The native part of muster is missing or does not fit this machine."""


def _installed(name: str, where: str, variable: str) -> Path:
    """The installed file `name`; `variable` of the environment overrides it."""
    given = os.environ.get(variable)
    if given:
        return Path(given)
    usual = Path(sys.prefix, where, name)
    tail = usual.parts[-2:]  # ("bin", "muster"), ("muster", "libmuster.so.0")
    beside = Path(__file__).parents[1] / where / name  # where pip --target puts it
    for path in (usual, beside):
        if path.is_file():
            return path
    # Installed with --user or by a distribution: the record of the installation knows.
    from importlib import metadata

    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for entry in files:
        if entry.parts[-len(tail) :] == tail:
            path = Path(str(entry.locate()))
            if path.is_file():
                return path.resolve()
    raise NativeError(
        f"muster: {name} is not beside this package ({usual} does not exist); reinstall the "
        f"wheel, or name the file in the environment variable {variable}"
    )


def _fits(path: Path) -> None:
    """Raises unless it is for the kind of machine that this interpreter is for."""
    if not sys.platform.startswith("linux"):
        raise NativeError(f"muster: {path} is for Linux, and this is {sys.platform}")
    try:
        with path.open("rb") as theirs, open("/proc/self/exe", "rb") as ours:
            kinds = [(head[4:6], head[18:20]) for head in (theirs.read(20), ours.read(20))
                     if head.startswith(b"\x7fELF")]
    except OSError as e:
        raise NativeError(f"muster: {path} cannot be read: {e.strerror}") from e
    if len(set(kinds)) > 1:
        raise NativeError(
            f"muster: {path} is for another type of machine than this Python, which is for "
            f"{os.uname().machine}; install the wheel with this Python's own pip"
        )


def command() -> Path:
    """The muster program."""
    path = _installed("muster", "bin", "MUSTER_COMMAND")
    _fits(path)
    return path


@functools.cache
def library() -> ctypes.CDLL:
    """libmuster, loaded once."""
    path = _installed(LIBRARY, "libexec/muster", "MUSTER_LIBRARY")
    _fits(path)
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as e:
        raise NativeError(
            f"muster: {path} cannot be loaded here: {e}; if it is the C library that is too "
            "old, build from the sdist, else reinstall the wheel"
        ) from e
    lib.muster_version.restype = ctypes.c_char_p
    lib.muster_code_name.restype = ctypes.c_char_p
    lib.muster_code_name.argtypes = [ctypes.c_int]
    return lib
