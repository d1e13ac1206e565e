#!/bin/sh
# Makes the Debian packages of a build folder that was set up with --prefix=/usr: build.sh BUILD_DIR OUTPUT_DIR
# tutti: the program and what an administrator needs; libtutti0: the shared library; libtutti-dev: its header and pkg-config file.
# Prints the path of each package. Their bytes depend on the sources alone: every date in them is that of the changelog's
# entry, or SOURCE_DATE_EPOCH.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
upstream=$("$build/tutti" version | cut -d ' ' -f 2)
version=$upstream-1
architecture=$(dpkg --print-architecture)
entry=$(sed -n 's/^ -- .*>  //p' "$here/changelog.in")
epoch=${SOURCE_DATE_EPOCH:-$(LC_ALL=C date -u -d "$entry" +%s)}
export SOURCE_DATE_EPOCH="$epoch"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

fill()
{
    sed -e "s|@VERSION@|$version|" -e "s|@UPSTREAM@|$upstream|" -e "s|@ARCHITECTURE@|$architecture|" \
        -e "s|@SIZE@|${size:-}|" -e "s|@DEPENDS@|${depends:-}|" "$1"
}

# install_files PACKAGE TAG: what meson installs under a tag, and the texts that every package has.
install_files()
{
    root=$work/$1
    mkdir -p "$root/DEBIAN"
    chmod 755 "$root"
    DESTDIR=$root meson install -C "$build" --no-rebuild --tags "$2" >"$work/install.log" 2>&1 || {
        cat "$work/install.log" >&2
        exit 1
    }
    doc=$root/usr/share/doc/$1
    mkdir -p "$doc"
    cp "$here/copyright" "$doc/copyright"
    fill "$here/changelog.in" | gzip -9n >"$doc/changelog.Debian.gz"
    chmod 644 "$doc"/*
}

# strip_all FILE...
strip_all()
{
    strip --strip-unneeded --remove-section=.comment --remove-section=.note "$@"
}

# depends_of FILE: the libraries it is linked with, in the packages and versions that have what it calls.
depends_of()
{
    mkdir -p "$work/debian"
    printf 'Source: tutti\n\nPackage: tutti\nArchitecture: any\nDescription: tutti\n' >"$work/debian/control"
    (cd "$work" && dpkg-shlibdeps -O "$1" 2>"$work/shlibdeps.log" | sed -n 's/^shlibs:Depends=//p') || {
        cat "$work/shlibdeps.log" >&2
        exit 1
    }
}

# close_package PACKAGE: its control files, and the package itself.
close_package()
{
    root=$work/$1
    size=$(du -k -s --apparent-size --exclude=DEBIAN "$root" | cut -f 1)
    fill "$here/$1.control.in" >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    chmod 644 "$root"/DEBIAN/*
    find "$root" -newermt "@$epoch" -print0 | xargs -0r touch --no-dereference -d "@$epoch"
    package=$output/$1_${version}_$architecture.deb
}

pack()
{
    dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >&2
    echo "$package"
}

install_files tutti program
find "$root/usr/bin/tutti" "$root/usr/lib" \( -name tutti -o -name 'tutti-*.so' \) -type f -print | while read -r file; do
    strip_all "$file"
done
gzip -9n "$root"/usr/share/man/man1/*.1
(cd "$root" && find etc -type f | LC_ALL=C sort | sed 's|^|/|') >"$root/DEBIAN/conffiles"
depends=$(depends_of "$root/usr/bin/tutti")
close_package tutti
for script in postinst prerm postrm; do
    install -m 755 "$here/$script" "$root/DEBIAN/$script"
    touch -d "@$epoch" "$root/DEBIAN/$script"
done
touch -d "@$epoch" "$root/DEBIAN"
pack

install_files libtutti0 runtime
library=$(find "$root/usr/lib" -name 'libtutti.so.*' -type f)
strip_all "$library"
chmod 644 "$library"
printf 'libtutti 0 libtutti0 (>= %s)\n' "$upstream" >"$root/DEBIAN/shlibs"
printf 'activate-noawait ldconfig\n' >"$root/DEBIAN/triggers"
depends=$(depends_of "$library")
close_package libtutti0
pack

install_files libtutti-dev devel
depends="libtutti0 (= $version)"
close_package libtutti-dev
pack
