"""Where the native parts are, and the library loaded with its functions declared."""
from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

LIBRARY = "libmuster.so.0"


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
        files = metadata.files("muster") or []
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


def command() -> Path:
    """The muster program."""
    return _installed("muster", "bin", "MUSTER_COMMAND")


@functools.cache
def library() -> ctypes.CDLL:
    """libmuster, loaded once."""
    path = _installed(LIBRARY, "libexec/muster", "MUSTER_LIBRARY")
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as e:
        raise NativeError(
            f"muster: {path} cannot be loaded here: {e}; this wheel is for Linux on "
            f"another machine type or with a newer C library than yours"
        ) from e
    lib.muster_version.restype = ctypes.c_char_p
    lib.muster_code_name.restype = ctypes.c_char_p
    lib.muster_code_name.argtypes = [ctypes.c_int]
    return lib
