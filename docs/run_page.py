#!/usr/bin/env python3
"""Makes muster-run(1): `run_page.py TEMPLATE OPTIONS VERSION >PAGE`.

The prose is the template's; options, settings and examples are those of the program's own tables,
as `muster help --man` has printed them into OPTIONS.
"""
from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    page, said = (Path(name).read_text() for name in sys.argv[1:3])
    options, head, examples = said.partition(".SH EXAMPLES\n")
    for mark, text in (("@OPTIONS@\n", options), ("@EXAMPLES@\n", head + examples), ("@VERSION@", sys.argv[3])):
        assert mark in page and text, mark
        page = page.replace(mark, text)
    sys.stdout.write(page)


main()
