#!/bin/sh
# Builds all of tutti with its tests for arm64 on another Debian machine, and runs tests in qemu-aarch64:
#
#   tools/cross/arm64.sh FOLDER [TEST...]
#
# FOLDER gets the libraries for arm64 (root, from Debian's packages), the build, and a program that starts tutti in the
# emulator (tutti). TEST: names of meson tests; default: golden logits and chats of the families and the demo model,
# and the invariance of results to threads, batches and processors. Then one pytest file sends requests to a server. Needs debootstrap, root's
# rights for it, and what ./run deps test installs; takes an hour on two cores. CPU chooses qemu's processor (max).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
[ $# -gt 0 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- model-families model-family_chats model-golden model-invariance model-experts model-chat_tokens
root=$folder/root

if [ ! -d "$root" ]; then
    debootstrap --arch=arm64 --variant=minbase --foreign --include=libjansson-dev,libyaml-dev,libpcre2-dev,libonig-dev,\
libutf8proc-dev,libxxhash-dev,libevent-dev,libedit-dev,libssl-dev,libcurl4-openssl-dev,libcmocka-dev,libc6-dev \
        bookworm "$folder/packages" >"$folder/debootstrap.log"
    mkdir "$folder/unpacked"
    for package in "$folder"/packages/var/cache/apt/archives/*.deb; do
        dpkg -x "$package" "$folder/unpacked"
    done
    mv "$folder/unpacked" "$root"
fi
cat >"$folder/root.ini" <<END
[constants]
root = '$root'
[binaries]
exe_wrapper = ['qemu-aarch64', '-L', root]
[properties]
sys_root = root
pkg_config_libdir = [root / 'usr/lib/aarch64-linux-gnu/pkgconfig', root / 'usr/share/pkgconfig']
[built-in options]
c_args = ['--sysroot=' + root]
c_link_args = ['--sysroot=' + root]
END
build=$folder/build
[ -f "$build/build.ninja" ] || meson setup "$build" "$source" --cross-file "$here/arm64.ini" --cross-file "$folder/root.ini" \
    --libdir=lib/aarch64-linux-gnu -Daudit=true
ninja -C "$build"
cat >"$folder/tutti" <<END
#!/bin/sh
exec qemu-aarch64 -L '$root' '$build/tutti' "\$@"
END
chmod +x "$folder/tutti"

export QEMU_CPU="${CPU:-max}"
status=0
meson test -C "$build" --no-rebuild --print-errorlogs --timeout-multiplier 20 "$@" || status=1
cd "$source"
TUTTI_BIN=$folder/tutti TUTTI_BUILD=$build TIMEOUT_MULTIPLIER=20 \
    /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/server/test_echo.py || status=1
exit $status
