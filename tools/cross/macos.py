#!/usr/bin/env python3
"""Compiles and links tutti for macOS on Debian. The programs cannot run on Debian.

  macos.py FOLDER [aarch64|x86_64]...    (default: both)

The compiler, macOS's headers and the symbols of its libSystem come with zig (PyPI's ziglang, put into FOLDER/venv). The
libraries that tutti needs are Debian's headers, and for each library a list of the symbols that Debian's has, to link
with. So this checks that every file compiles and that every symbol exists; it does not test any function. Warnings are
errors. After ./run deps build; the downloaded compiler takes 400 MB.
"""
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# pkg-config's name of each library: its headers below /usr/include, its file
LIBRARIES = {
    "jansson": (["jansson.h", "jansson_config.h"], "libjansson.so"),
    "yaml-0.1": (["yaml.h"], "libyaml.so"),
    "libpcre2-8": (["pcre2.h"], "libpcre2-8.so"),
    "oniguruma": (["oniguruma.h"], "libonig.so"),
    "libutf8proc": (["utf8proc.h"], "libutf8proc.so"),
    "libxxhash": (["xxhash.h", "xxh3.h"], "libxxhash.so"),
    "libcrypto": (["openssl"], "libcrypto.so"),
    "openssl": ([], "libssl.so"),
    "libevent": (["event2"], "libevent.so"),
    "libevent_openssl": ([], "libevent_openssl.so"),
    "libedit": (["histedit.h"], "libedit.so"),
    "libcurl": (["curl"], "libcurl.so"),
}
REQUIRED = set(LIBRARIES) - {"libcurl"}  # libcurl4-openssl-dev is optional
# zig has other names of instruction sets than gcc and clang, does not report its linker, and defines NDEBUG for optimized
# code. The disabled warnings do not exist in Debian's clang.
COMPILER = """#!/usr/bin/env python3
import os
import sys
arguments = ["-mcpu=generic+" + a.removeprefix("-march=").replace("armv8.2-a", "v8_2a") if a.startswith("-march=") else a
             for a in sys.argv[1:]]
if "-Wl,--version" in arguments:
    print("LLD 19.0.0")
    sys.exit(0)
os.execv({python!r}, [{python!r}, "-m", "ziglang", "cc", "-target", "{processor}-macos", *arguments,
                       "-UNDEBUG", "-Wno-enum-float-conversion", "-Wno-unterminated-string-initialization", "-Wno-unused-command-line-argument"])
"""
ARCHIVER = """#!/bin/sh
exec {python} -m ziglang ar "$@"
"""
CROSS_FILE = """[binaries]
c = '{folder}/cc-{processor}'
ar = '{folder}/ar'
pkgconfig = 'pkg-config'
pkg-config = 'pkg-config'

[properties]
pkg_config_libdir = '{folder}/libraries'

[host_machine]
system = 'darwin'
cpu_family = '{processor}'
cpu = '{processor}'
endian = 'little'
"""


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}\nmacos.py: failed: {' '.join(map(str, command))}")
    return done.stdout


def write_program(path, text):
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def copy_headers(names, multiarch, folder):
    """Debian keeps some headers in the folder of the processor, and those of OpenSSL in both."""
    for name in names:
        for source in (Path("/usr/include") / name, Path("/usr/include") / multiarch / name):
            if source.is_dir():
                shutil.copytree(source, folder / name, dirs_exist_ok=True)
            elif source.exists():
                shutil.copy(source, folder / name)


def write_stub(path, library):
    """A stub library for Apple's linker: name and symbols."""
    symbols = [line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    path.write_text("--- !tapi-tbd\ntbd-version: 4\ntargets: [ x86_64-macos, arm64-macos ]\n"
                    f"install-name: '/usr/local/lib/{path.stem}.dylib'\n"
                    "exports:\n  - targets: [ x86_64-macos, arm64-macos ]\n"
                    f"    symbols: [ {', '.join(sorted({'_' + s for s in symbols if re.fullmatch(r'[A-Za-z0-9_]+', s)}))} ]\n...\n",
                    encoding="utf-8")


def write_libraries(folder):
    folder.mkdir(exist_ok=True)
    multiarch = run("gcc", "-print-multiarch").strip()
    for name, (headers, file) in LIBRARIES.items():
        library = Path("/usr/lib") / multiarch / file
        if not library.exists():
            if name in REQUIRED:
                sys.exit(f"macos.py: {library} is missing: ./run deps build installs it")
            continue
        copy_headers(headers, multiarch, folder)
        write_stub(folder / library.with_suffix(".tbd").name, library)
        version = run("pkg-config", "--modversion", name).strip()
        (folder / f"{name}.pc").write_text(f"Name: {name}\nDescription: {name}\nVersion: {version}\n"
                                           f"Cflags: -I{folder}\nLibs: -L{folder} -l{library.stem.removeprefix('lib')}\n",
                                           encoding="utf-8")


def main(arguments):
    if not arguments or not set(arguments[1:]) <= {"aarch64", "x86_64"}:
        sys.exit(__doc__)
    folder = Path(arguments[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "venv/bin/python3"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder / "venv")
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "ziglang==0.17.1")
    write_libraries(folder / "libraries")
    write_program(folder / "ar", ARCHIVER.format(python=python))
    for processor in arguments[1:] or ["aarch64", "x86_64"]:
        build = folder / f"build-{processor}"
        write_program(folder / f"cc-{processor}", COMPILER.format(python=str(python), processor=processor))
        (folder / f"{processor}.ini").write_text(CROSS_FILE.format(folder=folder, processor=processor), encoding="utf-8")
        if not (build / "build.ninja").exists():
            shutil.rmtree(build, ignore_errors=True)
            run("meson", "setup", build, ROOT, "--cross-file", folder / f"{processor}.ini", "-Dtests=false", "-Dwerror=true",
                "-Dsystemd=disabled")
        run("ninja", "-k", "0", "-C", build, "-j", os.environ.get("JOBS", str(os.cpu_count())))
        print(f"{processor}: {run('file', '-b', build / 'tutti').strip()}")


if __name__ == "__main__":
    main(sys.argv[1:])
