"""Lets pip build the package from the top of a clone: hatchling, run in this folder."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling import build

HERE = Path(__file__).resolve().parent


def _here(name: str) -> Any:
    def hook(*args: Any, **kwargs: Any) -> Any:
        args = tuple(os.path.abspath(a) if isinstance(a, str) else a for a in args)
        os.chdir(HERE)
        return getattr(build, name)(*args, **kwargs)

    return hook


build_sdist = _here("build_sdist")
build_wheel = _here("build_wheel")
build_editable = _here("build_editable")
get_requires_for_build_sdist = _here("get_requires_for_build_sdist")
get_requires_for_build_wheel = _here("get_requires_for_build_wheel")
get_requires_for_build_editable = _here("get_requires_for_build_editable")
