"""Python's argparse by version.

Ours parses and speaks as the argparse of Python 3.8 to 3.11 does, whatever Python torch has
here. Newer ones use other words, which are rewritten, and in two places parse otherwise:
letters that are written together (-mr3), and ambiguous options, which are found later.
"""
from __future__ import annotations

import argparse
import contextlib
import io
import re


def older_words(text: str) -> str:
    def quoted(match: re.Match[str]) -> str:
        return "(choose from " + ", ".join(repr(c) for c in match[1].split(", ")) + ")"

    text = re.sub(r"\(choose from ([^'].*)\)$", quoted, text)
    return re.sub(r"(arguments are required: training_script)$", r"\1, training_script_args", text)


def parses_otherwise() -> bool:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", action="store_true")
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.suppress(SystemExit):
        parser.parse_args(["-mzz"])
    return "ignored explicit argument" not in said.getvalue()


NEWER = parses_otherwise()
