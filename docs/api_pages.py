#!/usr/bin/env python3
"""Makes the API reference out of the public headers: one man page a header.

`api_pages.py HEADER >PAGE`. The comment at the top becomes the description; each comment
in front of declarations becomes a paragraph under them, so the headers stay the only
place where a contract is written.
"""
from __future__ import annotations

import re
import sys
from pathlib import Path


def escape(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def comment_lines(comment: str) -> list[str]:
    body = comment.strip()[2:-2]
    lines = [re.sub(r"^\s*\* ?", "", line) if i else line.strip() for i, line in enumerate(body.split("\n"))]
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]


def prose(lines: list[str]) -> list[str]:
    """Paragraphs; lines that are indented by four or more stay as they are."""
    out, in_code = [], False
    for line in lines:
        code = line.startswith("    ")
        if code != in_code:
            out += [".PP", ".nf", ".RS"] if code else [".RE", ".fi"]
            in_code = code
        if not line.strip():
            out.append(".PP" if not code else "")
        else:
            out.append(escape(line[4:] if code else line))
    if in_code:
        out += [".RE", ".fi"]
    return out


def declaration(text: str) -> list[str]:
    text = re.sub(r"\bMUSTER_API\s+", "", text.strip("\n"))
    text = re.sub(r"\n {10,}", "\n        ", text)
    return [".PP", ".nf", *(f"\\fB{escape(line)}\\fR" if line.strip() else "" for line in text.split("\n")), ".fi"]


def page(path: Path) -> str:
    text = path.read_text()
    top = re.match(r"/\*.*?\*/", text, re.S)
    if not top:
        raise SystemExit(f"{path}: a public header opens with a comment that says what it is")
    lines = comment_lines(top[0])
    name = f"muster_{path.stem}"
    rest = lines[0].partition(" - ")[2]
    summary = [rest]
    at = 1
    while at < len(lines) and lines[at].strip():
        summary.append(lines[at])
        at += 1
    sentence, _, more = " ".join(s.strip() for s in summary).partition(". ")
    body = text[top.end():]
    body = re.sub(r"#ifdef __cplusplus.*?#endif\n", "", body, flags=re.S)
    body = re.sub(r"^#(ifndef|define) \w+_H$|^#endif.*$|^#include .*$", "", body, flags=re.M)
    functions = re.findall(r"MUSTER_API[^;]*?\b(muster_\w+)\(", body)
    short = re.sub(r"[:.]\s*$", "", sentence)
    out = [f'.TH {name.upper()} 3 "" muster "Library functions"', ".SH NAME",
           f"{escape(', '.join([name, *functions]))} \\- {escape(short)}", ".SH SYNOPSIS", ".nf",
           f"\\fB#include <muster/{path.name}>\\fR", ".fi", ".SH DESCRIPTION"]
    out += prose([short[0].upper() + short[1:] + ".", *([more] if more else []), *lines[at:]])
    # A comment belongs to the declarations that follow it, up to an empty line.
    for block in re.split(r"\n\s*\n", body):
        block = block.strip("\n")
        if not block.strip():
            continue
        if m := re.fullmatch(r"/\* -+ (.*?) -+ \*/", block.strip()):
            out += [f".SS {escape(m[1])}"]
            continue
        m = re.match(r"\s*(/\*.*?\*/)\n?(.*)", block, re.S)
        comment, code = (m[1], m[2]) if m else ("", block)
        if code.strip():
            out += declaration(code)
        if comment:
            if code.strip():
                out += [".RS", *prose(comment_lines(comment)), ".RE"]
            else:
                out += [".PP", *prose(comment_lines(comment))]
    out += [".SH SEE ALSO", ".BR libmuster (3),", ".BR muster (1)"]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1])))
