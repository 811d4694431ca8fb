"""`syncopate k8s render` prints what kubectl makes of the kustomization that it writes, and refuses what it cannot
honour. usage: render_test.py PATH_OF_SYNCOPATE"""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

try:
    import yaml
except ImportError as missing:
    print(f"skipped: {missing}; scripts/bootstrap.sh --tests installs it")
    sys.exit(77)

import manifest_rules
import rendering
from rendering import KUSTOMIZE, SOURCE

PROGRAM = None  # path of syncopate
DEMO = SOURCE / "deploy" / "examples" / "reverse.yaml"
CONFIGS = {
    "cpu-demo": DEMO,
    "single-node-8gpu": KUSTOMIZE / "overlays" / "single-node-8gpu" / "run.yaml",
    "multi-node": KUSTOMIZE / "overlays" / "multi-node" / "run.yaml",
}
INFRA = {
    "nothing": {},
    "a cluster": {
        "namespace": "rl",
        "instance": "first",
        "image": "registry.example:5000/team/syncopate:0.1.0",
        "image_pull_secrets": ["registry"],
        "storage_class": "fast",
        "grace": "100s",
        "nccl": {"NCCL_SOCKET_IFNAME": "eth1", "NCCL_DEBUG": "INFO"},
        "volumes": [{"claim": "models", "path": "/models", "read_only": True}, {"claim": "sets", "path": "/data"}],
        "trainer": {"cpu": "4", "memory": "48Gi", "storage": "300Gi", "shm": "8Gi", "node_selector": {"pool": "h200"}},
        "rollouter": {"replicas": 5, "cpu": 2, "memory": "24Gi",
                      "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        "synchronizer": {"cpu": "500m", "memory": "2Gi", "storage": "2Gi"},
    },
}
ON_SERVICES = ["lws", "kueue", "rdma", "token"]  # for overlays whose roles are services
ON_JOBS = ["jobset", "kueue", "token"]


def syncopate(*words, path=None):
    """With the pinned kubectl first on PATH, or with another PATH."""
    first = str(pathlib.Path(rendering.kubectl()).parent)
    environment = {**os.environ, "PATH": f"{first}:{os.environ['PATH']}" if path is None else path}
    return subprocess.run([PROGRAM, "k8s", *map(str, words)], capture_output=True, text=True, timeout=60, env=environment)


def by_name(items):
    return {(item["apiVersion"], rendering.name_of(item)): item for item in items}


class RenderTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, values):
        path = self.folder / name
        path.write_text(yaml.safe_dump(values) if values else "")
        return path

    def compare(self, overlay, infra):
        arguments = ["render", CONFIGS[overlay], "--overlay", overlay, "--infra", self.write("infra.yaml", infra)]
        ours = syncopate(*arguments)
        self.assertEqual(ours.returncode, 0, ours.stderr)
        written = syncopate(*arguments, "--write", self.folder / "tree")
        self.assertEqual(written.returncode, 0, written.stderr)
        folder = pathlib.Path(written.stdout.split()[-1])
        self.assertEqual(by_name(rendering.objects(ours.stdout)), by_name(rendering.objects(rendering.build(folder))))
        return rendering.objects(ours.stdout)

    def test_prints_what_kubectl_makes_of_every_overlay_with_and_without_values(self):
        for overlay in CONFIGS:
            for name, infra in INFRA.items():
                with self.subTest(overlay=overlay, infra=name):
                    self.compare(overlay, infra)

    def test_prints_what_kubectl_makes_with_components_on_top(self):
        for overlay in CONFIGS:
            more = ON_JOBS if overlay == "cpu-demo" else ON_SERVICES
            with self.subTest(overlay=overlay):
                self.compare(overlay, {**INFRA["a cluster"], "components": more})

    def test_rendered_objects_keep_our_rules(self):
        for overlay in CONFIGS:
            with self.subTest(overlay=overlay):
                self.assertEqual(manifest_rules.breaches(self.compare(overlay, {"namespace": "syncopate"})), [])

    def test_equals_the_golden_files_where_nothing_is_asked_for(self):
        for overlay in CONFIGS:
            with self.subTest(overlay=overlay):
                golden = rendering.objects((rendering.GOLDEN / f"{overlay}.yaml").read_text())
                self.assertEqual(by_name(rendering.outline(self.compare(overlay, {}))), by_name(golden))

    def test_a_run_that_is_played_keeps_our_rules_with_workers_and_equals_what_kubectl_makes(self):
        played = {"model": {"path": "/models/m"}, "data": {"files": ["/data/a.jsonl"]}, "reward": {"name": "environment"},
                  "environment": {"name": "guess_number", "command": "syncopate-worker /data/guess_number.py"},
                  "rollout": {"max_new_tokens": 64, "max_total_tokens": 1024}}
        self.addCleanup(CONFIGS.update, CONFIGS.copy())
        for overlay in CONFIGS:
            CONFIGS[overlay] = self.write(f"{overlay}.yaml", played)
            with self.subTest(overlay=overlay):
                infra = {"volumes": INFRA["a cluster"]["volumes"], "grace": "100s", "environment": {"replicas": 3}}
                objects = self.compare(overlay, {"namespace": "syncopate", **infra})
                self.assertIn("Deployment/environment", [rendering.name_of(item) for item in objects])
                # The claims are the cluster's own.
                found = [one for one in manifest_rules.breaches(objects) if ": the claim " not in one]
                self.assertEqual(found, [])

    def test_the_infra_file_of_the_operations_page_renders(self):
        page = (SOURCE / "docs" / "operations.md").read_text()
        example = page.partition("Every key may be left out:\n\n")[2].partition("\n\n")[0]
        infra = yaml.safe_load(textwrap.dedent(example))
        self.assertIn("storage_class", infra)
        objects = self.compare("single-node-8gpu", infra)
        self.assertEqual({item["metadata"].get("namespace") for item in objects} - {None}, {infra["namespace"]})

    def test_what_cannot_be_honoured_is_refused_at_once_with_every_reason(self):
        cases = {
            "values": ({"image": "syncopate", "trainer": {"gpus": -1}}, ["image", "trainer.gpus"]),
            "keys": ({"storageclass": "x"}, ["storageclass", "nearest known key: storage_class"]),
            "components": ({"components": ["monitorng"]}, ["monitorng", "monitoring"]),
            "gpus without use": ({"trainer": {"gpus": 1}}, ["train.device"]),
            "grace": ({"grace": "0s"}, ["grace"]),
        }
        for name, (infra, words) in cases.items():
            with self.subTest(case=name):
                refused = syncopate("render", DEMO, "--overlay", "cpu-demo", "--infra", self.write("infra.yaml", infra))
                self.assertEqual(refused.returncode, 2, refused.stdout)
                self.assertEqual(refused.stdout, "")
                for word in words:
                    self.assertIn(word, refused.stderr)

    def test_files_that_are_not_there_are_named(self):
        refused = syncopate("render", self.folder / "none.yaml", "--overlay", "cpu-demo")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("none.yaml", refused.stderr)

    def test_without_kubectl_the_error_says_what_to_install(self):
        refused = syncopate("render", DEMO, "--overlay", "cpu-demo", path=str(self.folder))
        self.assertEqual(refused.returncode, 1)
        self.assertIn("install kubectl", refused.stderr)

    def test_an_unknown_overlay_is_refused_with_the_choices(self):
        refused = syncopate("render", DEMO, "--overlay", "gpu-demo")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("cpu-demo", refused.stderr + refused.stdout)

    def test_list_names_every_folder(self):
        listed = syncopate("list").stdout
        for kind in ("overlays", "components"):
            for path in (KUSTOMIZE / kind).glob("*/kustomization.yaml"):
                self.assertIn(path.parent.name, listed)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    if rendering.kubectl() is None:
        print("skipped: there is no kubectl; scripts/bootstrap.sh --tests installs it")
        sys.exit(77)
    unittest.main()
