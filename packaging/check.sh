#!/usr/bin/env bash
# Checks the packages that packaging/build.sh has written to target/dist, as far as this machine can run them. It ends with a line
# for each check; a check whose program is absent says that it was skipped.
#
#   packaging/check.sh            # all but the following; PYTHONS="python3.11 python3.12" names the Pythons that try the wheel
#   packaging/check.sh --again    # builds the commit's static program again in another folder, too, and compares the bytes
set -euo pipefail
cd "$(dirname "$0")/.."
dist="$PWD/target/dist"
machine="$(uname -m)"
work="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

ok() { echo "ok       $*"; }
skipped() { echo "skipped  $*"; }
fail() { echo "FAILED   $*"; exit 1; }
# The story that every program tells, to the byte.
story() { "$@" run -q -n 40 --temp 0; }
# The same, drawn by a seed.
seeded() { "$@" run stories260k "Once upon a time" -q -n 40 --temp 1 --seed 7; }
# newest_glibc PROGRAM: the newest version of glibc whose symbols it asks for.
newest_glibc() { readelf -VW "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1; }
# Writes to $work/said what a program says of a GPU where there is none.
without_gpu() { ! VK_DRIVER_FILES=/dev/null "$1" run -q -n 1 --backend gpu >"$work/said" 2>&1 || fail "$1 has found a GPU without a driver"; }

sh -n packaging/install.sh
bash -n packaging/aur/PKGBUILD
systemd-analyze verify packaging/girih.service 2>&1 | grep -v -e 'is not executable' -e "Command 'man" && fail "girih.service"
score="$(systemd-analyze security --offline=true --no-pager packaging/girih.service | sed -n 's/.*service: \([0-9.]*\) .*/\1/p')"
awk -v score="$score" 'BEGIN { exit score > 2.0 }' || fail "girih.service has an exposure of $score"
ok "girih.service: exposure $score of 10, and at most 2.0"

(cd "$dist" && sha256sum --quiet -c SHA256SUMS)
ok "SHA256SUMS: $(wc -l <"$dist/SHA256SUMS") files"
python3 - "$dist" <<'END'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
sums = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
statement = json.loads(next(folder.glob("*.provenance.json")).read_text())
assert {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} == sums
assert json.loads(next(folder.glob("*.cdx.json")).read_text())["bomFormat"] == "CycloneDX"
END
ok "provenance names the same digests; the bill of materials is CycloneDX"

# Archives, by install.sh, from a server.
python3 -m http.server --bind 127.0.0.1 --directory "$dist" 0 >"$work/log" 2>&1 &
for _ in $(seq 50); do
    port="$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$work/log")"
    [ -z "$port" ] || break
    sleep 0.1
done
real_home="$HOME"
export HOME="$work/home"
mkdir "$HOME"
for flavor in gnu musl; do
    compgen -G "$dist/girih-*-$machine-linux-$flavor.tar.gz" >/dev/null || { skipped "install.sh, $flavor: not built"; continue; }
    options=(--from "http://127.0.0.1:$port" --prefix "$work/prefix")
    [ $flavor = gnu ] || options+=(--static)
    sh packaging/install.sh "${options[@]}" >"$work/said"
    story "$work/prefix/bin/girih" >"$work/$flavor.story"
    cp "$work/$flavor.story" "$work/first.story"
    seeded "$work/prefix/bin/girih" >"$work/first.seeded"
    if [ $flavor = gnu ]; then
        newest="$(newest_glibc "$work/prefix/bin/girih")"
        [ "$(printf '%s\n' "$newest" GLIBC_2.17 | sort -V | tail -n 1)" = GLIBC_2.17 ] || fail "the program needs $newest"
        ok "gnu: no symbol is newer than $newest; libraries: $(readelf -dW "$work/prefix/bin/girih" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | tr '\n' ' ')"
    fi
    without_gpu "$work/prefix/bin/girih"
    ok "$flavor, --backend gpu: $(cat "$work/said")"
    sh packaging/install.sh --uninstall --prefix "$work/prefix" >>"$work/said"
    [ -z "$(find "$work/prefix" -type f)" ] || fail "install.sh --uninstall leaves files"
    ok "install.sh, $flavor: installed from a server, run, removed"
done
if [ -e "$work/gnu.story" ] && [ -e "$work/musl.story" ]; then
    cmp "$work/gnu.story" "$work/musl.story"
    ok "both programs tell the same story"
fi
cp -r "$dist" "$work/damaged"
for file in "$work"/damaged/*.tar.gz; do printf x | dd of="$file" bs=1 seek=1000 conv=notrunc status=none; done
for options in "" --static; do
    # shellcheck disable=SC2086 # no option, or one
    ! sh packaging/install.sh --from "$work/damaged" --prefix "$work/none" $options >"$work/said" 2>&1 || fail "a damaged archive was installed"
    [ ! -e "$work/none/bin/girih" ] || fail "a damaged archive left a program"
done
ok "install.sh refuses damaged archives"

for file in "$dist"/*_amd64.deb "$dist"/*_arm64.deb; do
    [ -e "$file" ] || continue
    tree="$work/deb-$(basename "$file")"
    dpkg-deb -x "$file" "$tree"
    test -x "$tree/usr/bin/girih" -a -f "$tree/usr/lib/systemd/system/girih.service" -a -f "$tree/usr/share/man/man1/girih-run.1.gz"
    if [[ $file = *_amd64.deb && $machine = x86_64 ]]; then
        story "$tree/usr/bin/girih" >"$work/deb.story"
        cmp "$work/deb.story" "$work/gnu.story"
    fi
    if command -v lintian >/dev/null; then
        # The project has no address yet.
        lintian "$file" 2>&1 | grep '^[EW]:' | grep -v ' bogus-mail-host' >"$work/said" || true
        [ ! -s "$work/said" ] || { cat "$work/said"; fail "$(basename "$file"): lintian"; }
    else
        skipped "$(basename "$file"): lintian is not installed"
    fi
    ok "$(basename "$file"): $(dpkg-deb -f "$file" Package Version Architecture Depends | tr '\n' ' ')"
done
for file in "$dist"/*.rpm; do
    [ -e "$file" ] || continue
    command -v rpm >/dev/null || { skipped "$(basename "$file"): rpm is not installed"; continue; }
    rpm -K --nosignature "$file" >/dev/null
    rpm -qlp "$file" >"$work/said"
    grep -qx /usr/bin/girih "$work/said"
    ok "$(basename "$file"): $(rpm -qp --requires "$file" 2>/dev/null | grep -v rpmlib | tr '\n' ' ')"
done

# A clean Debian in a folder: install.sh, the .deb and the .rpm are installed, run and removed, and the command of the unit serves.
deb="$(compgen -G "$dist/girih_*_amd64.deb" || true)"
if [ -z "$deb" ] || [ "$machine" != x86_64 ]; then
    skipped "clean Debian: there is no .deb for this machine"
elif ! command -v mmdebstrap >/dev/null || [ "$(id -u)" != 0 ]; then
    skipped "clean Debian: mmdebstrap is not installed, or this is not root"
else
    debian="$work/debian"
    mmdebstrap --quiet --variant=minbase --mode=root bookworm "$debian"
    cp -r "$dist" "$debian/dist"
    cp packaging/installed.sh "$debian/"
    cp -r tests/fixtures/llama32_tied "$debian/model"
    # The programs of the package see no process and no mount of this machine.
    # shellcheck disable=SC2016 # the inner shell has the folder and the command as its arguments
    inside() { unshare -mpf sh -c 'mount -t proc proc "$1/proc" && exec chroot "$@"' sh "$debian" "$@"; }
    inside sh /installed.sh archive >"$work/clean.story" 2>"$work/said" || { cat "$work/said"; fail "clean Debian: the archive"; }
    cmp "$work/clean.story" "$work/gnu.story"
    ok "clean Debian: install.sh installs, the program runs, and nothing stays"
    inside sh /installed.sh deb >"$work/clean.story" 2>"$work/said" || { cat "$work/said"; fail "clean Debian: the .deb"; }
    cmp "$work/clean.story" "$work/gnu.story"
    ok "clean Debian: the .deb is installed, runs, serves and is removed"
    if command -v rpm >/dev/null && compgen -G "$dist/*.x86_64.rpm" >/dev/null; then
        # Its requirements are those of another distribution's packages.
        rpm --root "$debian" --nodeps -i "$dist"/*.x86_64.rpm 2>"$work/said" || { cat "$work/said"; fail "clean Debian: the .rpm"; }
        inside /usr/bin/girih run -q -n 40 --temp 0 >"$work/clean.story"
        cmp "$work/clean.story" "$work/gnu.story"
        rpm --root "$debian" -e girih 2>"$work/said" || { cat "$work/said"; fail "clean Debian: the .rpm stays"; }
        [ ! -e "$debian/usr/bin/girih" ] || fail "rpm -e leaves the program"
        ok "clean Debian: rpm installs the .rpm without its requirements, the program runs, and is removed"
    fi
fi

# The image: unpacked by its digests, and run in a root folder of its own, as a container would.
for file in "$dist"/*.oci.tar; do
    [ -e "$file" ] || continue
    python3 - "$file" "$work/image" <<'END'
import gzip, hashlib, io, json, sys, tarfile
tar = tarfile.open(sys.argv[1])
def blob(entry):
    data = tar.extractfile("blobs/" + entry["digest"].replace(":", "/")).read()
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (entry["digest"].split(":")[1], entry["size"])
    return data
index = json.load(tar.extractfile("index.json"))
manifest = json.loads(blob(index["manifests"][0]))
config = json.loads(blob(manifest["config"]))
assert config["config"]["User"] not in ("", "0", "root")
plain = gzip.decompress(blob(manifest["layers"][0]))
assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(plain).hexdigest()]
assert len(plain) <= 40_000_000, len(plain)
tarfile.open(fileobj=io.BytesIO(plain)).extractall(sys.argv[2], filter="fully_trusted")
END
    size=$(($(stat -c %s "$file") / 1000000))
    if [[ $file = *"-$machine.oci.tar" ]] && unshare -r true 2>/dev/null; then
        # No file system is mounted there but /proc, as in a container.
        mkdir "$work/image/proc"
        # shellcheck disable=SC2016 # the inner shell has the folder as its argument
        unshare -rnmpf sh -c 'mount -t proc proc "$1/proc" && exec chroot "$1" /girih run -q -n 40 --temp 0' sh "$work/image" \
            >"$work/image.story" </dev/null
        cmp "$work/image.story" "$work/musl.story"
        ok "$(basename "$file"): $size MB, runs in its own root folder, without a network"
    else
        skipped "$(basename "$file"): $size MB, its layers agree with their digests; not run"
    fi
    rm -rf "$work/image"
done

# Wheels: what they need of the system by auditwheel, what they need of Python by abi3audit, and the one for this machine in an
# environment of its own for each Python that PYTHONS names. Without numpy: it is needed for arrays only.
for file in "$dist"/*.whl; do
    [ -e "$file" ] || continue
    wheel="$(basename "$file")" size="$(stat -c %s "$file")"
    [ "$size" -le 25000000 ] || fail "$wheel has $size bytes, and 25,000,000 are allowed"
    [[ $wheel = *-cp311-abi3-manylinux* ]] || fail "$wheel is no wheel of the stable interface for manylinux"
    said="$((size / 1000000)) MB"
    if command -v auditwheel >/dev/null; then
        # It names the oldest platform that the files allow.
        auditwheel show "$file" | tr '\n' ' ' >"$work/said"
        grep -q 'following platform tag: "manylinux_2_\(5\|12\|17\)_' "$work/said" || { cat "$work/said"; fail "$wheel is not manylinux2014"; }
        said="$said, auditwheel $(grep -o 'manylinux_2_[0-9]*_[a-z0-9_]*' "$work/said" | tail -n 1)"
    else
        skipped "$wheel: auditwheel is not installed"
    fi
    if command -v abi3audit >/dev/null; then
        abi3audit --strict "$file" >"$work/said" 2>&1 || { cat "$work/said"; fail "$wheel: abi3audit"; }
        said="$said, abi3audit"
    else
        skipped "$wheel: abi3audit is not installed"
    fi
    ok "$wheel: $said"
    if [[ $wheel = *"_$machine.whl" ]]; then
        for python in ${PYTHONS:-python3}; do
            rm -rf "$work/venv"
            "$python" -m venv "$work/venv"
            "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$file"
            seeded "$work/venv/bin/girih" >"$work/seeded"
            cmp "$work/seeded" "$work/first.seeded"
            said="$("$work/venv/bin/python" packaging/imported.py "$work/seeded" timed 2>&1)" || fail "$wheel in $python: $said"
            ok "$wheel in $said"
        done
    elif [[ $wheel = *_aarch64.whl ]] && command -v qemu-aarch64-static >/dev/null && command -v mmdebstrap >/dev/null && [ "$(id -u)" = 0 ]; then
        # Debian's Python for aarch64, unpacked and not installed.
        [ -d "$work/aarch64" ] || mmdebstrap --quiet --variant=extract --architectures=arm64 --include=python3 bookworm "$work/aarch64"
        rm -rf "$work/aarch64/wheel"
        python3 -m zipfile -e "$file" "$work/aarch64/wheel"
        said="$(PYTHONPATH="$work/aarch64/wheel" qemu-aarch64-static -L "$work/aarch64" "$work/aarch64/usr/bin/python3" \
            packaging/imported.py "$work/first.seeded" 2>&1)" || fail "$wheel under qemu: $said"
        ok "$wheel under qemu in $said"
    else
        skipped "$wheel: it is for another machine, and was not loaded"
    fi
done

# Programs for the other machine, under qemu-user: the same story, and right values in two architectures.
for file in "$dist"/girih-*-aarch64-linux-*.tar.gz; do
    if ! [ -e "$file" ] || [ "$machine" != x86_64 ]; then continue; fi
    command -v qemu-aarch64-static >/dev/null || { skipped "$(basename "$file"): qemu-aarch64-static is not installed"; continue; }
    emulated=(qemu-aarch64-static)
    if [[ $file != *-musl* ]]; then
        # Debian's package libc6-arm64-cross.
        [ -d /usr/aarch64-linux-gnu ] || { skipped "$(basename "$file"): there is no glibc for aarch64"; continue; }
        emulated+=(-L /usr/aarch64-linux-gnu)
    fi
    mkdir -p "$work/other"
    tar -xzf "$file" -C "$work/other" --strip-components 1
    emulated+=("$work/other/bin/girih")
    story "${emulated[@]}" >"$work/other.story"
    cmp "$work/other.story" "$work/first.story"
    seeded "${emulated[@]}" >"$work/other.seeded"
    cmp "$work/other.seeded" "$work/first.seeded"
    for name in qwen3 gemma3_text; do
        "${emulated[@]}" verify "tests/fixtures/$name" --golden "tests/fixtures/$name/golden.safetensors" >"$work/said" 2>&1 \
            || { cat "$work/said"; fail "$(basename "$file") has other values of $name under qemu"; }
    done
    ok "$(basename "$file"): the same stories under qemu, and right values of qwen3 and gemma3_text; $(newest_glibc "$work/other/bin/girih")"
    rm -rf "$work/other"
done

if command -v ruby >/dev/null; then ruby -c packaging/girih.rb >/dev/null && ok "girih.rb is parsed"; else skipped "girih.rb: ruby is not installed"; fi
if command -v nix-instantiate >/dev/null; then
    nix-instantiate --parse packaging/flake.nix >/dev/null && ok "flake.nix is parsed"
else
    skipped "flake.nix: nix is not installed"
fi

if [ "${1:-}" = --again ]; then
    ls "$dist"/girih-*-x86_64-linux-musl.tar.gz >/dev/null || fail "build x86_64-musl before it is built again"
    git clone --quiet . "$work/again"
    HOME="$real_home" CARGO_TARGET_DIR="$work/again/target" "$work/again/packaging/build.sh" x86_64-musl >/dev/null
    for file in "$work"/again/target/dist/*-x86_64*; do cmp "$file" "$dist/$(basename "$file")"; done
    ok "$(basename "$file") and the archive have the same bytes when they are built in another folder"
fi
