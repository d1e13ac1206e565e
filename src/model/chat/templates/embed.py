#!/usr/bin/env python3
"""Writes text files as C strings in one C source: embed.py OUT.c FILE..."""
import os
import re
import sys

with open(sys.argv[1], "w", encoding="ascii") as out:
    out.write("/* Written by embed.py. */\n")
    for path in sys.argv[2:]:
        with open(path, "rb") as file:
            data = file.read() + b"\0"
        name = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0]).upper()
        rows = [", ".join(map(str, data[i:i + 24])) for i in range(0, len(data), 24)]
        out.write("extern const char CHAT_TEMPLATE_%s[];\n" % name)
        out.write("const char CHAT_TEMPLATE_%s[] = {\n%s\n};\n" % (name, ",\n".join(rows)))
