#!/bin/sh
# Installs girih for one user, without root: chooses the archive for this machine, checks its SHA-256, and puts the program, its
# manual pages and completions below ~/.local. It changes no other file.
#
#   sh install.sh --from URL            # the address of a folder with girih's archives and SHA256SUMS
#   sh install.sh --from URL --static   # the static program, which has the CPU and the array only
#   sh install.sh --uninstall
#
# --prefix DIR installs below DIR instead of ~/.local. URL may also be a local folder.
set -eu

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

from="${GIRIH_FROM:-}" prefix="${HOME:-}/.local" static='' uninstall=''
while [ $# -gt 0 ]; do
    case "$1" in
        --from | --prefix)
            [ $# -ge 2 ] || fail "$1 needs a value"
            if [ "$1" = --from ]; then from="$2"; else prefix="$2"; fi
            shift
            ;;
        --static) static=-musl ;;
        --uninstall) uninstall=yes ;;
        -h | --help)
            sed -n '2,/^set/{s/^# \{0,1\}//;/^set/d;p;}' "$0"
            exit 0
            ;;
        *) fail "unknown option '$1'; --help lists them" ;;
    esac
    shift
done
case "$prefix" in
    /*) ;;
    *) fail "--prefix is '$prefix', and must be an absolute path" ;;
esac
list="$prefix/share/girih/installed"

# Removes the files of an earlier installation, which their list names.
remove() {
    while IFS= read -r file; do
        case "$file" in
            */../* | ../* | /* | '') ;;
            *) rm -f "$prefix/$file" ;;
        esac
    done <"$list"
    rm -f "$list"
    rmdir "$prefix/share/girih" "$prefix/share/doc/girih" 2>/dev/null || true
}

if [ -n "$uninstall" ]; then
    [ -f "$list" ] || fail "$list does not exist: girih was not installed here by this script"
    remove
    echo "girih was removed from $prefix. Models stay in the Hugging Face cache; settings, if any, in ~/.config/girih."
    exit 0
fi
[ -n "$from" ] || fail "--from URL is needed: the address of a folder with girih's archives"

[ "$(uname -s)" = Linux ] || fail "this is $(uname -s), and there are programs for Linux only; build girih with cargo instead"
case "$(uname -m)" in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no program for $(uname -m), only for x86_64 and aarch64; build girih with cargo instead" ;;
esac

# The program with every backend needs glibc 2.17; elsewhere the static one runs.
why=''
if [ -z "$static" ]; then
    libc="$(getconf GNU_LIBC_VERSION 2>/dev/null || true)"
    libc="${libc#glibc }"
    case "$libc" in
        2.[0-9]* | [3-9].*)
            minor="${libc#2.}"
            minor="${minor%%.*}"
            if [ "${libc%%.*}" = 2 ] && [ "$minor" -lt 17 ]; then
                static=-musl why=" (glibc is $libc, and the program with every backend needs 2.17)"
            fi
            ;;
        *) static=-musl why=' (there is no glibc)' ;;
    esac
fi
flavor="${static:--gnu}"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# fetch NAME: downloads or copies a file of the folder.
fetch() {
    case "$from" in
        http://* | https://*)
            if command -v curl >/dev/null 2>&1; then
                curl --fail --silent --show-error --location --proto-redir '=https' -o "$work/$1" "${from%/}/$1"
            elif command -v wget >/dev/null 2>&1; then
                wget -q -O "$work/$1" "${from%/}/$1"
            else
                fail 'neither curl nor wget is installed'
            fi
            ;;
        *) cp "$from/$1" "$work/$1" ;;
    esac || fail "$1 could not be had from $from"
}

fetch SHA256SUMS
name="$(sed -n "s/^[0-9a-f]\{64\}  \(girih-[0-9][0-9a-z.-]*-$machine-linux$flavor\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS" | head -n 1)"
[ -n "$name" ] || fail "SHA256SUMS of $from lists no archive for $machine-linux$flavor"
fetch "$name"
wanted="$(grep -F "  $name" "$work/SHA256SUMS" | cut -d ' ' -f 1)"
if command -v sha256sum >/dev/null 2>&1; then
    found="$(sha256sum "$work/$name" | cut -d ' ' -f 1)"
else
    found="$(shasum -a 256 "$work/$name" | cut -d ' ' -f 1)"
fi
[ "$wanted" = "$found" ] || fail "$name has the SHA-256 $found, and SHA256SUMS says $wanted: nothing was installed"

mkdir "$work/tree"
tar -xzf "$work/$name" -C "$work/tree" --strip-components 1
"$work/tree/bin/girih" --version >"$work/version" || fail "the program of $name does not run on this machine: nothing was installed"

[ ! -f "$list" ] || remove
files="$(cd "$work/tree" && find bin share -type f)"
mkdir -p "$prefix/share/girih"
echo "$files" | while IFS= read -r file; do
    mkdir -p "$prefix/$(dirname "$file")"
    # A program that runs keeps its old file.
    cp "$work/tree/$file" "$prefix/$file.new"
    mv -f "$prefix/$file.new" "$prefix/$file"
done
echo "$files" >"$list"

echo "$(cat "$work/version") was installed as $prefix/bin/girih: $name$why."
echo "Its SHA-256 is that of SHA256SUMS of $from. $list names the files."
case ":$PATH:" in
    *":$prefix/bin:"*) ;;
    *) echo "$prefix/bin is not in PATH: add it, for example with  export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
echo "Try it:  girih run"
echo "Undo it: sh install.sh --uninstall$([ "$prefix" = "${HOME:-}/.local" ] || echo " --prefix $prefix")"
