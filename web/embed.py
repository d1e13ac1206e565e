#!/usr/bin/env python3
"""Writes files as one C source, for src/server/page.h.

  embed.py OUT.c PATH=FILE...      PATH is where the server offers the file
"""
import hashlib
import sys

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
    "webmanifest": "application/manifest+json",
}


def main():
    out, table = [], []
    for number, pair in enumerate(sys.argv[2:]):
        path, name = pair.split("=", 1)
        with open(name, "rb") as file:
            data = file.read()
        if data.startswith(b"//") or b"\n//# sourceMappingURL=" in data:
            # The maps are not offered; a browser would ask for them.
            data = b"\n".join(l for l in data.split(b"\n") if not l.startswith(b"//# sourceMappingURL="))
        kind = TYPES[name.rsplit(".", 1)[1]]
        etag = hashlib.sha256(data).hexdigest()[:16]
        rows = [", ".join(map(str, data[i:i + 24])) for i in range(0, len(data), 24)]
        out.append("static const unsigned char file_%d[] = {\n%s\n};\n" % (number, ",\n".join(rows)))
        table.append('    { "%s", "%s", "\\"%s\\"", file_%d, sizeof file_%d },\n' % (path, kind, etag, number, number))
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write('/* Written by web/embed.py. */\n#include "server/page.h"\n\n')
        file.write("\n".join(out))
        file.write("\nconst struct page_file PAGE_FILES[] = {\n%s};\n" % "".join(table))
        file.write("const size_t PAGE_N_FILES = sizeof PAGE_FILES / sizeof *PAGE_FILES;\n")


main()
