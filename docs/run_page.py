#!/usr/bin/env python3
"""Makes muster-run(1): `run_page.py TEMPLATE MUSTER... >PAGE`.

The prose is the template's; options, settings and examples are those of the program's own tables,
as `muster help --man` prints them.
"""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> None:
    template, *muster = sys.argv[1:]
    said = [subprocess.run([*muster, *words], capture_output=True, text=True, check=True).stdout
            for words in (["help", "--man"], ["--version"])]
    options, head, examples = said[0].partition(".SH EXAMPLES\n")
    page = Path(template).read_text()
    for mark, text in (("@OPTIONS@\n", options), ("@EXAMPLES@\n", head + examples), ("@VERSION@", said[1].strip())):
        assert mark in page and text, mark
        page = page.replace(mark, text)
    sys.stdout.write(page)


main()
