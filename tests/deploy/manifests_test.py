"""Every overlay and component renders, is accepted by each supported Kubernetes, keeps our rules and equals its golden
file. `manifests_test.py --update` writes the golden files anew."""

import copy
import functools
import json
import pathlib
import re
import subprocess
import sys
import unittest

try:
    import jsonschema
    import kubernetes_validate
    import yaml
    from kubernetes_validate import utils as kubernetes_schemas
except ImportError as missing:
    print(f"skipped: {missing}; scripts/bootstrap.sh --tests installs it")
    sys.exit(77)

import manifest_rules
import rendering
from rendering import CASES, GOLDEN, KUSTOMIZE, SOURCE

VERSIONS = [f"1.{minor}" for minor in range(28, 35)]
CORE_GROUPS = {"networking.k8s.io", "rbac.authorization.k8s.io"}  # those with a dot; of other dots are custom resources
SCHEMAS = pathlib.Path(__file__).resolve().parent / "schemas"

# Each definitions file is read once: it has a megabyte and is needed for every object.
kubernetes_schemas.schema_contents = functools.lru_cache(maxsize=None)(kubernetes_schemas.schema_contents)


@functools.lru_cache(maxsize=None)
def rendered(case):
    return rendering.render(case)


@functools.lru_cache(maxsize=None)
def custom_schema(group, kind):
    path = SCHEMAS / f"{group}_{kind}.json"
    return json.loads(path.read_text()) if path.exists() else None


def core_parts(item):
    """The Jobs and Pods that a custom object contains, as objects of their own."""
    if item["kind"] == "JobSet":
        for job in item["spec"]["replicatedJobs"]:
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
    if item["kind"] == "LeaderWorkerSet":
        template = item["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        yield {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "worker", **template["metadata"]}}


def schema_problem(item, version):
    """Why a cluster of this version would refuse an object; None if it would accept it."""
    group = item["apiVersion"].rpartition("/")[0]
    core = "." not in group or group in CORE_GROUPS
    try:
        if core:
            kubernetes_validate.validate(item, version, strict=True)
            return None
        schema = custom_schema(group, item["kind"])
        if schema is None:
            return f"no schema for {item['apiVersion']} {item['kind']} under {SCHEMAS}"
        jsonschema.Draft202012Validator(schema).validate(item)
        for part in core_parts(item):
            kubernetes_validate.validate(part, version, strict=True)
    except (jsonschema.ValidationError, kubernetes_schemas.SchemaNotFoundError) as error:
        path = ".".join(str(word) for word in getattr(error, "path", []))
        return f"{version}: {path}: {error.message}"
    return None


def distinct_objects():
    """Every different object of all cases, with the first case that has it."""
    found = {}
    for case in CASES:
        for item in rendering.objects(rendered(case)):
            found.setdefault(json.dumps(item, sort_keys=True), (case, item))
    return found.values()


class ManifestsTest(unittest.TestCase):
    maxDiff = None

    def test_every_component_and_overlay_is_among_the_cases(self):
        named = {start.split("/")[-1] for start, _ in CASES.values()} | {c for _, cs in CASES.values() for c in cs}
        folders = [path.parent.name for kind in ("components", "overlays")
                   for path in (KUSTOMIZE / kind).glob("*/kustomization.yaml")]
        self.assertEqual(set(folders) - named, set())

    def test_every_supported_kubernetes_accepts_every_object(self):
        for case, item in distinct_objects():
            for version in VERSIONS:
                with self.subTest(case=case, object=rendering.name_of(item), version=version):
                    self.assertIsNone(schema_problem(item, version))

    def test_a_key_that_kubernetes_does_not_know_is_found(self):
        item = next(i for i in rendering.objects(rendered("base")) if i["kind"] == "Deployment")
        item = copy.deepcopy(item)
        item["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
        self.assertIn("livenesProbe", schema_problem(item, "1.30"))

    def test_every_case_keeps_our_rules(self):
        for case in CASES:
            with self.subTest(case=case):
                self.assertEqual(manifest_rules.breaches(rendering.objects(rendered(case))), [])

    def test_every_case_equals_its_golden_file(self):
        for case in CASES:
            with self.subTest(case=case):
                golden = (GOLDEN / f"{case}.yaml").read_text()
                self.assertEqual(rendering.outline(rendering.objects(rendered(case))), rendering.objects(golden),
                                 f"if this is meant: {sys.executable} {__file__} --update")

    def test_the_demo_takes_the_same_configuration_file_as_on_one_machine(self):
        self.assertEqual((KUSTOMIZE / "base" / "run.yaml").read_text(),
                         (SOURCE / "deploy" / "examples" / "reverse.yaml").read_text())

    def test_the_rules_for_the_operator_are_those_of_prometheus(self):
        folder = KUSTOMIZE / "components" / "monitoring"
        wrapped = subprocess.run([folder / "wrap-rules.sh"], capture_output=True, text=True, check=True).stdout
        self.assertEqual((folder / "prometheus-rules.yaml").read_text(), wrapped,
                         "wrap-rules.sh > prometheus-rules.yaml, beside it")

    def test_a_policy_that_lets_a_worker_out_or_strangers_in_is_found(self):
        policy = next(item for item in rendering.objects(rendered("networkpolicy"))
                      if rendering.name_of(item) == "NetworkPolicy/syncopate-workers")
        self.assertEqual(list(manifest_rules.check_worker_policy(policy)), [])
        out, strangers = copy.deepcopy(policy), copy.deepcopy(policy)
        out["spec"]["egress"] = [{"ports": [{"protocol": "UDP", "port": 53}]}]
        strangers["spec"]["ingress"][0]["from"][0]["podSelector"] = {"matchLabels": {"app.kubernetes.io/name": "syncopate"}}
        self.assertRegex(" ".join(manifest_rules.check_worker_policy(out)), "lets workers call somebody")
        self.assertRegex(" ".join(manifest_rules.check_worker_policy(strangers)), "others than rollouters and trainer")

    def test_the_certificates_of_the_script_are_secrets_of_the_pods(self):
        script = (KUSTOMIZE / "components" / "mtls" / "create-secrets.sh").read_text()
        made = set(re.search(r"for role in ([a-z ]+); do", script).group(1).split())
        mounted = set(re.findall(r"([a-z]+)-tls$", rendered("workers-mtls"), re.MULTILINE))
        self.assertEqual(mounted, made)

    def test_the_example_image_of_a_worker_is_made_of_what_is_there(self):
        lines = (SOURCE / "deploy" / "image" / "worker.Containerfile").read_text().splitlines()
        default = next(line.partition("=")[2] for line in lines if line.startswith("ARG CODE="))
        sources = [line.split()[1].replace("${CODE}", default) for line in lines if line.startswith("COPY ")]
        self.assertEqual(len(sources), 2)
        for source in sources:
            self.assertTrue((SOURCE / source).exists(), source)
        self.assertIn("USER 65532:65532", lines)
        (worker,) = [item for item in rendering.objects(rendered("workers"))
                     if rendering.name_of(item) == "Deployment/environment"]
        container = worker["spec"]["template"]["spec"]["containers"][0]
        self.assertIn(json.dumps(container["command"]), lines[-1])

    def test_every_dashboard_is_shown(self):
        names = {rendering.name_of(item) for item in rendering.objects(rendered("monitoring"))}
        for path in (SOURCE / "deploy" / "grafana").glob("*.json"):
            self.assertIn(f"ConfigMap/syncopate-dashboard-{path.stem}", names)


def update():
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case}.yaml").write_text(yaml.safe_dump_all(rendering.outline(rendering.objects(rendered(case)))))


if __name__ == "__main__":
    if rendering.kubectl() is None:
        print("skipped: there is no kubectl; scripts/bootstrap.sh --tests installs it")
        sys.exit(77)
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        unittest.main()
