#!/usr/bin/env python3
"""Writes girih's container image: one layer with the static program, as an archive of an OCI image.

    packaging/image.py PROGRAM OUT.oci.tar --architecture x86_64 --version 0.1.0 --revision COMMIT

`podman load -i`, `skopeo copy oci-archive:` and `docker load -i` (25 or later) read it. The same arguments give the same
bytes. The configuration has Docker's health check, which is no part of OCI's and which others ignore.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import tarfile
from datetime import datetime, timezone

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# The user `nonroot` of distroless images.
USER = 65532
FOLDERS = ("models", "home", "tmp")


def entry(name: str, mode: int, time: int, kind: bytes, size: int = 0, owner: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.type, info.size = mode, time, kind, size
    info.uid = info.gid = owner
    return info


def layer(program: bytes, time: int) -> bytes:
    """A tar archive with the program and the folders that it needs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(entry("girih", 0o755, time, tarfile.REGTYPE, len(program)), io.BytesIO(program))
        for folder in FOLDERS:
            mode = 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry(folder, mode, time, tarfile.DIRTYPE, owner=USER))
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("out")
    parser.add_argument("--architecture", choices=ARCHITECTURES, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--revision", required=True)
    args = parser.parse_args()
    time = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    created = datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    with open(args.program, "rb") as file:
        plain = layer(file.read(), time)
    packed = gzip.compress(plain, mtime=0)
    blobs = {}

    def blob(data: bytes, kind: str) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    labels = {
        "org.opencontainers.image.title": "girih",
        "org.opencontainers.image.description": "Runs open-weight language models, with verified accuracy",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": args.version,
        "org.opencontainers.image.revision": args.revision,
        "org.opencontainers.image.created": created,
    }
    config = {
        "created": created,
        "architecture": ARCHITECTURES[args.architecture],
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["HOME=/home", "TMPDIR=/tmp", "GIRIH_HOST=0.0.0.0", "GIRIH_PORT=8080"],
            "Entrypoint": ["/girih"],
            "Cmd": ["serve", "--models", "/models"],
            "ExposedPorts": {"8080/tcp": {}},
            "Volumes": {"/models": {}},
            "WorkingDir": "/home",
            "Labels": labels,
            "StopSignal": "SIGTERM",
            "Healthcheck": {"Test": ["CMD", "/girih", "health"], "Interval": 30_000_000_000, "Timeout": 10_000_000_000},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        "history": [{"created": created, "created_by": "packaging/image.py"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config, sort_keys=True).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [blob(packed, "application/vnd.oci.image.layer.v1.tar+gzip")],
        "annotations": labels,
    }
    listed = blob(json.dumps(manifest, sort_keys=True).encode(), "application/vnd.oci.image.manifest.v1+json")
    listed["platform"] = {"architecture": ARCHITECTURES[args.architecture], "os": "linux"}
    listed["annotations"] = {"org.opencontainers.image.ref.name": f"girih:{args.version}"}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [listed]}

    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index, sort_keys=True).encode()}
    files |= {f"blobs/sha256/{digest}": data for digest, data in blobs.items()}
    with tarfile.open(args.out, "w", format=tarfile.USTAR_FORMAT) as tar:
        for folder in ("blobs", "blobs/sha256"):
            tar.addfile(entry(folder, 0o755, time, tarfile.DIRTYPE))
        for name, data in sorted(files.items()):
            tar.addfile(entry(name, 0o644, time, tarfile.REGTYPE, len(data)), io.BytesIO(data))


if __name__ == "__main__":
    main()
