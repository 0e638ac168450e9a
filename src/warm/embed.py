#!/usr/bin/env python3
"""embed.py SERVER OUTPUT: the program of the warm interpreter as C bytes.

They are a zip file with one member, stored as it is: Python imports from zip files, so
that nothing needs to be written to a disk."""
import io
import sys
import zipfile


def main():
    source, output = sys.argv[1:]
    data = io.BytesIO()
    with open(source, "rb") as f, zipfile.ZipFile(data, "w") as z:
        z.writestr(zipfile.ZipInfo("sitecustomize.py", (1980, 1, 1, 0, 0, 0)), f.read())
    octets = data.getvalue()
    with open(output, "w") as f:
        f.write("/* Made by embed.py of server.py. */\n")
        f.write("#include <stddef.h>\n\n")
        f.write("const unsigned char warm_program[] = {\n")
        for i in range(0, len(octets), 16):
            f.write("    %s,\n" % ", ".join("%d" % b for b in octets[i : i + 16]))
        f.write("};\nconst size_t warm_program_size = sizeof warm_program;\n")


main()
