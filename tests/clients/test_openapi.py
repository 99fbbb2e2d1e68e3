"""The server keeps to its own /openapi.json, by schemathesis; exceptions are in schemathesis.toml."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import openapi_spec_validator
import pytest
from conftest import ROOT, Server

CONFIG = ROOT / "tests/clients/schemathesis.toml"


def test_the_description_names_the_routes_of_the_clients(server: Server):
    status, text = server.get("/openapi.json")
    assert status == 200
    description = json.loads(text)
    assert description["openapi"].startswith("3.")
    routes = {(method, path) for path, item in description["paths"].items() for method in item}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize"):
        assert ("post", path) in routes, path
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/show", "/api/embed"):
        assert ("post", path) in routes, path
    for path in ("/v1/models", "/health", "/ready", "/api/tags", "/api/ps", "/api/version"):
        assert ("get", path) in routes, path


def test_other_methods_are_refused(server: Server):
    description = json.loads(server.get("/openapi.json")[1])
    for path, item in description["paths"].items():
        url = server.url + path.replace("{id}", "stories260k")
        for method in {"get", "put", "delete", "patch"} - set(item):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(url, method=method.upper()), timeout=10)
            assert refused.value.code == 405, f"{method} {path}"
            allowed = {name.strip().lower() for name in refused.value.headers["allow"].split(",")}
            assert set(item) <= allowed <= set(item) | {"head"}, f"{method} {path}: {allowed}"


def test_replies_are_as_described(server: Server):
    program = Path(sys.executable).with_name("st")
    command = [program, "--config-file", CONFIG, "run", server.url + "/openapi.json", "--no-color"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr


def test_the_description_is_valid(server: Server):
    """By openapi-spec-validator: descriptions of responses, references, and the types of all parts."""
    openapi_spec_validator.validate(json.loads(server.get("/openapi.json")[1]))
