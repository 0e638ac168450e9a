#!/usr/bin/env python3
"""Builds the page into the program: embed.py page.html page.c

Cuts the page at its two marks and computes the hashes of its script and its style, so
that the browser runs only these, and nothing else that may have got into the page.
"""
import base64
import hashlib
import re
import sys


def quoted(text: str) -> str:
    """A C string literal, in pieces of 100 bytes."""
    lines = []
    data = text.encode()
    for at in range(0, len(data), 100):
        out = ""
        for byte in data[at : at + 100]:
            char = chr(byte)
            if char in '"\\':
                out += "\\" + char
            elif 32 <= byte < 127 and char != "?":
                out += char
            else:
                out += f"\\{byte:03o}"
        lines.append(f'    "{out}"')
    return "\n".join(lines) or '    ""'


def hashes(page: str, tag: str) -> str:
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
    assert found, f"no <{tag}> in the page"
    return " ".join(
        "'sha256-" + base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() + "'"
        for t in found
    )


def main() -> None:
    page = open(sys.argv[1], encoding="utf-8").read()
    before, rest = page.split("<!--TITLE-->")
    middle, after = rest.split("<!--TABLE-->")
    policy = (
        f"default-src 'none'; script-src {hashes(page, 'script')}; "
        f"style-src {hashes(page, 'style')}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write('/* Made by embed.py. */\n#include "status/page.h"\n')
        for name, text in (
            ("page_before_title", before),
            ("page_before_table", middle),
            ("page_after_table", after),
            ("page_policy", policy),
        ):
            out.write(f"const char {name}[] =\n{quoted(text)};\n")


main()
