#!/bin/sh
# Makes a Debian package of what a build folder holds, which was set up with --prefix=/usr: build.sh BUILD_DIR OUTPUT_DIR
# Prints the package's path. Nothing in it depends on when or by whom it was made, but for SOURCE_DATE_EPOCH.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
upstream=$("$build/tutti" version | cut -d ' ' -f 2)
version=$upstream-1
architecture=$(dpkg --print-architecture)
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH="$epoch"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
umask 022
mkdir -p "$root"
chmod 755 "$root"
DESTDIR=$root meson install -C "$build" --no-rebuild --tags program >"$work/install.log" 2>&1 || {
    cat "$work/install.log" >&2
    exit 1
}

fill()
{
    sed -e "s|@VERSION@|$version|" -e "s|@UPSTREAM@|$upstream|" -e "s|@ARCHITECTURE@|$architecture|" \
        -e "s|@DATE@|$(LC_ALL=C date -u -R -d "@$epoch")|" -e "s|@SIZE@|${size:-}|" -e "s|@DEPENDS@|${depends:-}|" "$1"
}

find "$root/usr/bin/tutti" "$root/usr/lib" \( -name tutti -o -name 'tutti-*.so' \) -type f \
    -exec strip --strip-unneeded --remove-section=.comment --remove-section=.note {} +
gzip -9n "$root"/usr/share/man/man1/*.1
doc=$root/usr/share/doc/tutti
mkdir -p "$doc"
cp "$here/copyright" "$doc/copyright"
fill "$here/changelog.in" | gzip -9n >"$doc/changelog.Debian.gz"
chmod 644 "$doc"/*

# The libraries that the program is linked with, in the packages and versions that have what it calls.
mkdir -p "$work/debian" "$root/DEBIAN"
printf 'Source: tutti\n\nPackage: tutti\nArchitecture: any\nDescription: tutti\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O "$root/usr/bin/tutti" 2>"$work/shlibdeps.log" | sed -n 's/^shlibs:Depends=//p') || {
    cat "$work/shlibdeps.log" >&2
    exit 1
}
size=$(du -k -s --apparent-size --exclude=DEBIAN "$root" | cut -f 1)
fill "$here/control.in" >"$root/DEBIAN/control"
(cd "$root" && find etc -type f | sed 's|^|/|') >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
chmod 644 "$root"/DEBIAN/*
for script in postinst prerm postrm; do
    install -m 755 "$here/$script" "$root/DEBIAN/$script"
done
find "$root" -newermt "@$epoch" -print0 | xargs -0r touch --no-dereference -d "@$epoch"
package=$output/tutti_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >&2
echo "$package"
