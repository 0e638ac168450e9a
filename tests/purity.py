#!/usr/bin/env python3
"""Core decides and does nothing else: no clock, socket, getenv, random or file call.

Reads the undefined symbols of libcore.a and names each forbidden one.
"""
import re
import subprocess
import sys

FORBIDDEN = re.compile(
    r"""^(clock_\w+|time|gettimeofday|nanosleep|usleep|sleep|timer\w*
        |getenv|secure_getenv|setenv|putenv
        |rand|srand|random|srandom|rand_r|drand48|getrandom|getentropy|arc4random\w*
        |socket|connect|bind|listen|accept4?|send\w*|recv\w*|poll|ppoll|epoll_\w+|select
        |getaddrinfo|getnameinfo|gethostby\w+|gethostname
        |open|open64|openat|creat|read|write|pread|pwrite|writev|fopen|fopen64|fwrite
        |fputs|puts|printf|vprintf|__printf_chk|__fprintf_chk|putchar
        |fork|vfork|exec\w+|posix_spawn\w*|kill|system|popen|pthread_create
        |uv_\w+|curl_\w+|exit|_exit|syslog)$""",
    re.X,
)


def main() -> int:
    out = subprocess.run(
        ["nm", "-u", "-A", sys.argv[1]], check=True, capture_output=True, text=True
    ).stdout
    bad = []
    for line in out.splitlines():
        where, _, name = line.rpartition(" U ")
        name = name.split("@")[0].strip()
        if FORBIDDEN.match(name):
            bad.append(f"{where.strip(': ')} calls {name}")
    for text in bad:
        print(text)
    if not out.strip():
        print(f"{sys.argv[1]}: no undefined symbols at all: the test looked at nothing")
        return 1
    return 1 if bad else 0


sys.exit(main())
