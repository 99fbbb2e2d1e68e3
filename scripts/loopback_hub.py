"""A hub on loopback: serves a folder's files as a repository, with the routes that `girih pull` uses.

    with Hub({"org/name": {"config.json": bytes, ...}}, bytes_per_second=4 << 20) as hub:
        ... HF_ENDPOINT=hub.url girih pull org/name

Standard library only.
"""

import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"

BLOCK = 64 << 10


def is_large(name):
    return name.endswith((".safetensors", ".gguf"))


def digest(name, data):
    """The name of a file's blob: SHA-256 of a large file, git's SHA-1 of a small one."""
    if is_large(name):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def listing(repository, files):
    siblings = []
    for name, data in sorted(files.items()):
        entry = {"rfilename": name, "size": len(data), "blobId": digest(name, data)}
        if is_large(name):
            entry["lfs"] = {"sha256": digest(name, data), "size": len(data), "pointerSize": 134}
        siblings.append(entry)
    return json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()


class Hub:
    """The server, while it is entered. Files come at a limited rate, so that progress can be seen."""

    def __init__(self, repositories, bytes_per_second=None):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                hub.answer(self, False)

            def do_GET(self):
                hub.answer(self, True)

            def log_message(self, *_):
                pass

        self.repositories, self.rate = repositories, bytes_per_second
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request, with_body):
        found = self.find(request.path.split("?")[0])
        if found is None:
            request.send_response(404)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        data, tag = found
        start = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range") or "")
        first = int(start[1]) if start else 0
        if start and first >= len(data):
            request.send_response(416)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        request.send_header("Content-Length", str(len(data) - first))
        request.send_header("ETag", f'"{tag}"')
        request.send_header("X-Repo-Commit", COMMIT)
        request.end_headers()
        if with_body:
            self.send(request, data[first:])

    def send(self, request, data):
        for begin in range(0, len(data), BLOCK):
            block = data[begin:begin + BLOCK]
            if self.rate:
                time.sleep(len(block) / self.rate)
            try:
                request.wfile.write(block)
            except OSError:  # The client hung up.
                return

    def find(self, path):
        """The bytes at a path, and the name of their blob."""
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path)
        if match and match[1] in self.repositories:
            data = listing(match[1], self.repositories[match[1]])
            return data, digest("listing", data)
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        files = self.repositories.get(match[1], {}) if match else {}
        if match and match[2] in files:
            return files[match[2]], digest(match[2], files[match[2]])
        return None
