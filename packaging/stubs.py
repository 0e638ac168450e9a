#!/usr/bin/env python3
"""Writes C stubs for what Debian's static libcurl and libhwloc want and we never use.

Those archives refer to Kerberos, LDAP, RTMP, SSH, IDN, cookies' suffix lists, HTTP/2,
HTTP/3 and udev, most of which exist as shared libraries only. muster speaks HTTP/1.1, plain or over
TLS, through libcurl and reads the topology through hwloc, so none of it is reached: a stub
that is called all the same says its name and aborts. The few that initialisation does call
answer "there is no such thing here".

usage: stubs.py OUTPUT COMPILER LIBRARY...
"""
import re
import subprocess
import sys

UNUSED = re.compile(r"(gss_|GSS_|ldap_|ber_|RTMP_|libssh2_|udev_|idn2_|psl_|nghttp[23]_|gnutls_)")
ANSWERS = {  # called by curl_global_init, curl_version or hwloc's start
    "libssh2_init": "return 0;",
    "libssh2_exit": "return 0;",
    "libssh2_version": 'return (long)"none";',
    "idn2_check_version": "return 0;",
    "idn2_lookup_ul": "return -1;",
    "idn2_strerror": 'return (long)"built without internationalised host names";',
    "ldap_get_option": "return -1;",
    "psl_check_version_number": "return 0;",
    "psl_get_version": 'return (long)"none";',
    **dict.fromkeys(
        ("nghttp2_version", "nghttp3_version"),
        "static const struct { int age, num; const char *text; }"
        ' none = { 0, 0, "none" }; return (long)&none;',
    ),
    "udev_new": "return 0;",
    "gnutls_global_init": "return 0;",
    "gnutls_global_deinit": "return 0;",
    "gnutls_check_version": 'return (long)"3.7.9";',
    "udev_unref": "return 0;",
}


def main() -> int:
    out, cc, libraries = sys.argv[1], sys.argv[2], sys.argv[3:]
    archives = [
        subprocess.run(
            [cc, f"-print-file-name=lib{name}.a"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in libraries
    ]
    nm = subprocess.run(["nm", "-u", *archives], check=True, capture_output=True, text=True)
    names = sorted({m[1] for m in re.finditer(r" U (\w+)", nm.stdout) if UNUSED.match(m[1])})
    with open(out, "w") as f:
        f.write("#include <stdio.h>\n#include <stdlib.h>\n")
        for name in names:
            body = ANSWERS.get(
                name, f'fputs("muster: built without {name}\\n", stderr); abort();'
            )
            f.write(f"long {name}(void);\nlong {name}(void)\n{{\n    {body}\n}}\n")
    return 0


sys.exit(main())
