#!/usr/bin/env python3
"""Checks deploy/kubernetes: `kubernetes_check.py` in a Python that has `kubernetes-validate` and `kserve` of PyPI
(`pip install kubernetes-validate six; pip install --no-deps kserve`).

All objects of Kubernetes must be valid by its schemas, with no unknown field. A ServingRuntime must have the fields that KServe's
package knows, and its containers those of a pod. Each container needs probes, limits and a security context, and servers with
more than one replica need a PodDisruptionBudget that selects them. Nothing is run.
"""

import importlib
import importlib.metadata
import re
import sys
import types
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

FOLDER = Path(__file__).parent.parent / "deploy/kubernetes"

Object = dict[str, Any]


def require(is_met: object, sentence: str) -> None:
    if not is_met:
        raise SystemExit(sentence)


def validate(document: Object) -> None:
    version = kubernetes_validate.latest_version()
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise SystemExit(f"{document['kind']}: {error.message} at {list(error.path)}") from error
    print(f"{document['kind']} {document['metadata']['name']}: valid by the schemas of Kubernetes {version}")


def find_kserve() -> None:
    """Makes the types of KServe's objects known without the rest of its package, which has many dependencies."""
    folder = Path(str(importlib.metadata.distribution("kserve").locate_file("kserve")))
    for name, path in (("kserve", folder), ("kserve.models", folder / "models")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(path)]


def check_fields(value: object, kind: str, place: str) -> None:
    """The fields of a value must be those of a type such as `V1alpha1Probe` or `list[V1Container]`; types of Kubernetes are
    checked by its schemas."""
    if (of_list := re.fullmatch(r"list\[(.*)\]", kind)) and isinstance(value, list):
        for index, item in enumerate(value):
            check_fields(item, of_list[1], f"{place}[{index}]")
    if not kind.startswith("V1alpha1") or not isinstance(value, dict):
        return
    file = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()
    model = getattr(importlib.import_module(f"kserve.models.{file}"), kind)
    types_of = {name: model.openapi_types[field] for field, name in model.attribute_map.items()}
    for name, item in value.items():
        require(name in types_of, f"{place}.{name} is no field of {kind}: known are {', '.join(types_of)}")
        check_fields(item, types_of[name], f"{place}.{name}")


def check_runtime(document: Object) -> None:
    require(document["apiVersion"] == "serving.kserve.io/v1alpha1", "a ServingRuntime is of serving.kserve.io/v1alpha1")
    find_kserve()
    check_fields(document, "V1alpha1ServingRuntime", document["metadata"]["name"])
    labels = {"app": "runtime"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": document["spec"]["containers"]}}
    validate({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "containers-of-the-runtime"},
        "spec": {"selector": {"matchLabels": labels}, "template": pod},
    })
    print(f"ServingRuntime {document['metadata']['name']}: fields of kserve {importlib.metadata.version('kserve')}")


def check_containers(containers: list[Object]) -> None:
    for container in containers:
        for field in ("readinessProbe", "livenessProbe", "resources", "securityContext"):
            require(field in container, f"container {container['name']} lacks {field}")
        require("memory" in container["resources"].get("limits", {}), f"container {container['name']} lacks a limit of memory")


def main() -> None:
    documents = [one for file in sorted(FOLDER.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text()) if one]
    budgets = [one["spec"]["selector"]["matchLabels"] for one in documents if one["kind"] == "PodDisruptionBudget"]
    for document in documents:
        if document["kind"] == "ServingRuntime":
            check_runtime(document)
            check_containers(document["spec"]["containers"])
            continue
        validate(document)
        if document["kind"] == "Deployment":
            check_containers(document["spec"]["template"]["spec"]["containers"])
            labels = document["spec"]["template"]["metadata"]["labels"]
            is_kept = any(selector.items() <= labels.items() for selector in budgets)
            require(is_kept, f"no PodDisruptionBudget selects {document['metadata']['name']}")


if __name__ == "__main__":
    main()
