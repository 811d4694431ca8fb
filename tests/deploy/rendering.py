"""Renders the kustomizations of deploy/kustomize with the real kubectl."""

import copy
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
KUSTOMIZE = SOURCE / "deploy" / "kustomize"
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"

# Name of a case -> the overlay or base from which it starts, and the components that are added, in this order.
CASES = {
    "base": ("base", []),
    "cpu-demo": ("overlays/cpu-demo", []),
    "single-node-8gpu": ("overlays/single-node-8gpu", []),
    "multi-node": ("overlays/multi-node", []),
    "namespace": ("base", ["namespace"]),
    "jobs": ("base", ["jobs"]),
    "ranks": ("base", ["ranks"]),
    "job-ranks": ("base", ["jobs", "job-ranks"]),
    "replica-ranks": ("base", ["replica-ranks"]),
    "replica-ranks-jobset": ("base", ["gpu", "jobs", "replica-ranks", "jobset"]),
    "mtls": ("base", ["mtls"]),
    "mtls-cert-manager": ("base", ["mtls-cert-manager"]),
    "token": ("base", ["token"]),
    "environment": ("base", ["environment"]),
    "workers": ("base", ["workers"]),
    "workers-mtls": ("base", ["mtls", "networkpolicy", "workers", "workers-mtls"]),
    "workers-jobs": ("base", ["jobs", "workers"]),
    "endpoint": ("base", ["token", "endpoint"]),
    "gateway": ("base", ["token", "networkpolicy", "endpoint", "gateway"]),
    "networkpolicy": ("base", ["networkpolicy"]),
    "monitoring": ("base", ["monitoring"]),
    "gpu": ("base", ["gpu"]),
    "rdma": ("base", ["rdma"]),
    "jobset": ("base", ["jobs", "jobset"]),
    "lws": ("base", ["lws"]),
    "kueue": ("base", ["kueue"]),
    "keda": ("base", ["keda"]),
    "services-with-everything": (
        "base",
        ["namespace", "networkpolicy", "mtls-cert-manager", "token", "monitoring", "gpu", "rdma", "workers",
         "workers-mtls-cert-manager", "keda", "workers-keda", "kueue"],
    ),
    "jobset-with-everything": (
        "base",
        ["namespace", "networkpolicy", "mtls", "token", "monitoring", "gpu", "rdma", "jobs", "jobset", "kueue"],
    ),
}


def kubectl():
    """The pinned kubectl beside this Python, else the one on PATH; None if there is none."""
    pinned = pathlib.Path(sys.executable).parent / "kubectl"
    return str(pinned) if pinned.exists() else shutil.which("kubectl")


def build(folder):
    """The output of `kubectl kustomize` for a folder."""
    done = subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"kubectl kustomize {folder}: {done.stderr}")
    return done.stdout


def render(case):
    """The text of one of CASES, in the namespace `syncopate`."""
    start, components = CASES[case]
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch) / "deploy"
        shutil.copytree(SOURCE / "deploy", tree)
        case_folder = tree / "kustomize" / "case"
        case_folder.mkdir()
        (case_folder / "kustomization.yaml").write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kustomize.config.k8s.io/v1beta1",
                    "kind": "Kustomization",
                    "namespace": "syncopate",
                    "resources": [os.path.join("..", start)],
                    "components": [os.path.join("..", "components", name) for name in components],
                }
            )
        )
        return build(case_folder)


def objects(text):
    return [document for document in yaml.safe_load_all(text) if document]


def name_of(item):
    return f"{item.get('kind')}/{item.get('metadata', {}).get('name')}"


def outline(items):
    """Objects without the dashboards and rules that they wrap, which have tests of their own."""
    items = copy.deepcopy(items)
    for item in items:
        if item["kind"] == "ConfigMap" and "grafana_dashboard" in item["metadata"].get("labels", {}):
            item["data"] = {name: "as under deploy/grafana" for name in item["data"]}
        if item["kind"] == "PrometheusRule":
            item["spec"] = {"groups": "as under deploy/prometheus/rules"}
    return items
