"""Our own rules about rendered manifests: every breach is one sentence, so that a list of them is a report."""

import re

from rendering import name_of

ROLES = ("synchronizer", "trainer", "rollouter")
OTHERS = ("environment", "gateway")  # besides, pods that are no daemons of the run
OTHER_PORTS = {"environment": {"grpc": 7070}, "gateway": {"http": 7075}}
PORTS = {"grpc": 7070, "health": 7071, "metrics": 7072}
RANKS_PORT = {"ranks": 7073}  # besides, of a trainer of several ranks
ENDPOINT_PORT = {"endpoint": 7074}  # besides, of a rollouter with one
CLUSTER_KINDS = {"Namespace"}
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
USER = 65532
JOB_FLAGS = ["--exit-on-completion", "--interrupted-code=143"]


def pod_templates(item):
    """(where, pod template, whether it is of a Job) of every pod that an object makes."""
    kind, spec = item["kind"], item.get("spec", {})
    if kind in ("StatefulSet", "Deployment"):
        yield name_of(item), spec["template"], False
    elif kind == "Job":
        yield name_of(item), spec["template"], True
    elif kind == "JobSet":
        for job in spec["replicatedJobs"]:
            yield f"{name_of(item)}/{job['name']}", job["template"]["spec"]["template"], True
    elif kind == "LeaderWorkerSet":
        yield name_of(item), spec["leaderWorkerTemplate"]["workerTemplate"], False


def seconds(text):
    value, unit = re.fullmatch(r"([0-9.]+)(ms|s|m|h)", text).groups()
    return float(value) * {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}[unit]


def settings_of(container):
    """The values that the arguments set. If a key is given twice, the last value counts, as for the daemons."""
    return dict(word.split("=", 1) for word in container.get("args", []) if "=" in word and not word.startswith("-"))


def check_object(item):
    where = name_of(item)
    if not DNS_NAME.fullmatch(item["metadata"]["name"]) or len(item["metadata"]["name"]) > 63:
        yield f"{where}: is not a DNS name"
    if item["kind"] not in CLUSTER_KINDS and item["metadata"].get("namespace") != "syncopate":
        yield f"{where}: is in namespace {item['metadata'].get('namespace')}, not in that of the overlay"
    for place, template, is_job in pod_templates(item):
        yield from check_pod(place, template, is_job)


def check_pod(where, template, is_job):
    spec, labels = template["spec"], template["metadata"]["labels"]
    security = spec.get("securityContext", {})
    if labels.get("app.kubernetes.io/name") != "syncopate" or "app.kubernetes.io/instance" not in labels:
        yield f"{where}: lacks the labels that services and policies select by"
    if spec.get("automountServiceAccountToken") is not False or spec.get("serviceAccountName") != "syncopate":
        yield f"{where}: has a service-account token"
    if spec.get("enableServiceLinks") is not False:
        yield f"{where}: is given the environment variables of Services"
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield f"{where}: {key} is not allowed by Pod Security \"restricted\""
    if security.get("runAsNonRoot") is not True or security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield f"{where}: is not \"restricted\": runAsNonRoot and seccompProfile RuntimeDefault are needed"
    if any(security.get(key) != USER for key in ("runAsUser", "runAsGroup", "fsGroup")):
        yield f"{where}: does not run as {USER}"
    if is_job != (spec.get("restartPolicy") == "Never"):
        yield f"{where}: restartPolicy must be Never in a Job and absent elsewhere"
    if len(spec["containers"]) != 1 or spec["containers"][0]["name"] not in ROLES + OTHERS:
        yield f"{where}: must have one container, named for its role"
        return
    container = spec["containers"][0]
    if labels.get("app.kubernetes.io/component") != container["name"]:
        yield f"{where}: the label of the component is not the container's name"
    for volume in spec["volumes"]:
        if not set(volume) & {"emptyDir", "projected", "configMap", "persistentVolumeClaim", "secret"}:
            yield f"{where}: volume {volume['name']} is of a kind that \"restricted\" does not allow"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"{where}: volume {volume['name']} is not bounded"
    yield from check_rights(where, container, spec)
    if container["name"] in OTHERS:
        yield from check_other(where, container)
    else:
        yield from check_container(where, container, spec, is_job)


def check_rights(where, container, pod):
    """What every container keeps to."""
    security = container.get("securityContext", {})
    if container["image"].endswith(":latest") or not re.search(r"[:@]", container["image"]):
        yield f"{where}: image {container['image']} names no fixed version"
    if security.get("allowPrivilegeEscalation") is not False or security.get("readOnlyRootFilesystem") is not True:
        yield f"{where}: the root file system can be written, or privileges gained"
    if security.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{where}: capabilities are not dropped"
    resources = container.get("resources", {})
    if not {"cpu", "memory"} <= set(resources.get("requests", {})) or "memory" not in resources.get("limits", {}):
        yield f"{where}: lacks requests of cpu and memory, or a limit of memory"
    known = {volume["name"] for volume in pod["volumes"]} | {"state"}  # a volume claim template's
    for mount in container["volumeMounts"]:
        if mount["name"] not in known:
            yield f"{where}: the volume {mount['name']} at {mount['mountPath']} is not there"


def check_other(where, container):
    """A worker or a gateway: what it opens, and that what it opens is either protected or said to be open."""
    name, args = container["name"], container["args"]
    if {port["name"]: port["containerPort"] for port in container["ports"]} != OTHER_PORTS[name]:
        yield f"{where}: ports are not {OTHER_PORTS[name]}"
    (port,) = OTHER_PORTS[name].values()
    if args[args.index("--listen") + 1] != f"0.0.0.0:{port}":
        yield f"{where}: does not listen on its port"
    if any("=" in word and not word.startswith("-") for word in args):
        yield f"{where}: is given a setting of a daemon"
    tls = any(word.startswith("--tls-cert=") for word in args)
    if tls == ("--insecure-bind" in args):
        yield f"{where}: listens without TLS and without --insecure-bind, or with both"
    if name == "gateway" and "--client-token-file" not in args:
        yield f"{where}: asks its clients for no token"
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    for path in re.findall(r"/etc/[^ ]+", " ".join(args)):
        if not any(path.startswith(mount + "/") for mount in paths):
            yield f"{where}: {path} is under no mount"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe not in container:
            yield f"{where}: has no {probe}"


def check_container(where, container, pod, is_job):
    role = container["name"]
    commands = [[f"/usr/bin/syncopate-{role}"]] + ([["/usr/bin/syncopate", "replica"]] if role == "rollouter" else [])
    if container.get("command") not in commands:
        yield f"{where}: the command is not that of a {role}"
    has_endpoint = any(argument.startswith("endpoint.listen=") for argument in container.get("args", []))
    has_ranks = any(argument.startswith("trainer.ranks_listen=") for argument in container.get("args", []))
    expected = PORTS | (RANKS_PORT if has_ranks else {}) | (ENDPOINT_PORT if has_endpoint else {})
    if {port["name"]: port["containerPort"] for port in container["ports"]} != expected:
        yield f"{where}: ports are not {expected}"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for path in ("/etc/syncopate", "/var/lib/syncopate", "/dev/shm", "/tmp"):
        if path not in mounts:
            yield f"{where}: nothing is mounted at {path}"
    yield from check_probes(where, container)
    yield from check_arguments(where, container, pod, is_job)


def check_probes(where, container):
    for name, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        probe = container.get(name, {})
        if probe.get("httpGet") != {"path": path, "port": "metrics"}:
            yield f"{where}: {name} does not ask {path} on the port metrics"
        elif probe.get("timeoutSeconds", 1) > probe.get("periodSeconds", 10):
            yield f"{where}: {name} may take longer than its period"


def check_arguments(where, container, pod, is_job):
    role, args, settings = container["name"], container["args"], settings_of(container)
    if args[0] != "/etc/syncopate/run.yaml":
        yield f"{where}: the first argument is not the run configuration"
    if [word for word in args if word.startswith("-")] != (JOB_FLAGS if is_job else []):
        yield f"{where}: {JOB_FLAGS} must be given in a Job and nowhere else"
    wanted = {
        "run.dir": "/var/lib/syncopate",
        "synchronizer.address": "synchronizer:7070",
        f"{role}.listen": "0.0.0.0:7070",
        f"{role}.health_listen": "0.0.0.0:7071",
        f"metrics.{role}_listen": "0.0.0.0:7072",
    }
    if role != "synchronizer":
        wanted[f"{role}.advertise"] = "$(POD_IP):7070"
    if role == "rollouter":
        wanted["rollouter.name"] = "$(POD_NAME)"
    else:
        wanted["run.resume"] = "true"
    for key, value in wanted.items():
        if settings.get(key) != value:
            yield f"{where}: {key} is {settings.get(key)}, not {value}"
    tls = "security.tls_cert" in settings
    if "endpoint.listen" in settings and (tls or "security.token_file" not in settings):
        yield f"{where}: has an endpoint without tokens, or one that TLS keeps it from opening"
    if tls == (settings.get("run.insecure_bind") == "true"):
        yield f"{where}: listens without TLS and without run.insecure_bind, or with both"
    if seconds(settings["run.grace"]) + 10 > pod["terminationGracePeriodSeconds"]:
        yield f"{where}: run.grace does not fit into terminationGracePeriodSeconds"
    defined = {variable["name"] for variable in container.get("env", [])}
    for used in re.findall(r"\$\(([A-Z_]+)\)", " ".join(args)):
        if used not in defined:
            yield f"{where}: the environment variable {used} is not defined"


def check_references(items):
    """Checks the references between objects."""
    names = {(item["kind"], item["metadata"]["name"]) for item in items}
    pods = [(where, template) for item in items for where, template, _ in pod_templates(item)]
    for where, template in pods:
        for source in config_maps_of(template["spec"]):
            if ("ConfigMap", source) not in names:
                yield f"{where}: the ConfigMap {source} is not there"
        for volume in template["spec"]["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and ("PersistentVolumeClaim", claim) not in names:
                yield f"{where}: the claim {claim} is not there"
    if ("ServiceAccount", "syncopate") not in names:
        yield "ServiceAccount/syncopate: is not there"
    roles = sorted(template["metadata"]["labels"]["app.kubernetes.io/component"] for _, template in pods)
    if sorted(set(roles) - set(OTHERS)) != sorted(ROLES) or len(roles) != len(set(roles)):
        yield f"pods: the roles are {roles}"
    for item in items:
        if item["kind"] == "Service":
            yield from check_selector(item, item["spec"]["selector"], pods)
        if item["kind"] == "PodDisruptionBudget":
            yield from check_selector(item, item["spec"]["selector"]["matchLabels"], pods)
        if item["kind"] == "StatefulSet" and ("Service", item["spec"]["serviceName"]) not in names:
            yield f"{name_of(item)}: its Service is not there"
        if item["kind"] == "NetworkPolicy":
            yield from check_worker_policy(item)
        if item["kind"] == "ScaledObject":
            target = item["spec"]["scaleTargetRef"]
            if (target["kind"], target["name"]) not in names:
                yield f"{name_of(item)}: scales {target['kind']}/{target['name']}, which is not there"
    stateful = {item["metadata"]["name"] for item in items if item["kind"] in ("StatefulSet", "Deployment")}
    budgets = {name for kind, name in names if kind == "PodDisruptionBudget"}
    if stateful - budgets:
        yield f"PodDisruptionBudget: none for {sorted(stateful - budgets)}"


def selects(selector, labels):
    """Whether a pod with these labels is selected; of expressions, `In` alone is used here."""
    expressions = selector.get("matchExpressions", [])
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        one["operator"] == "In" and labels.get(one["key"]) in one["values"] for one in expressions)


def check_worker_policy(policy):
    """A worker runs what the policy writes: no rule lets it out, and nobody but rollouters and trainer in."""
    def labels_of(role):
        return {"app.kubernetes.io/name": "syncopate", "app.kubernetes.io/component": role}

    spec = policy["spec"]
    if not selects(spec["podSelector"], labels_of("environment")):
        return
    if spec.get("egress"):
        yield f"{name_of(policy)}: lets workers call somebody"
    for rule in spec.get("ingress", []):
        if all(port.get("port") in ("health", "metrics") for port in rule.get("ports", [])) and rule.get("ports"):
            continue  # a worker has no such port
        for peer in rule.get("from", [{}]):
            strangers = [role for role in ("synchronizer", "gateway", "environment")
                         if selects(peer.get("podSelector", {}), labels_of(role))]
            if "podSelector" not in peer or "namespaceSelector" in peer or strangers:
                yield f"{name_of(policy)}: lets others than rollouters and trainer call workers"


def config_maps_of(pod):
    for volume in pod["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            if "configMap" in source:
                yield source["configMap"]["name"]
    for container in pod["containers"]:
        for source in container.get("envFrom", []):
            yield source["configMapRef"]["name"]


def check_selector(item, selector, pods):
    if not any(selector.items() <= template["metadata"]["labels"].items() for _, template in pods):
        yield f"{name_of(item)}: selects no pod"


def breaches(items):
    found = [breach for item in items for breach in check_object(item)]
    seen = set()
    for item in items:
        key = (item["apiVersion"], item["kind"], item["metadata"]["name"])
        if key in seen:
            found.append(f"{name_of(item)}: is there twice")
        seen.add(key)
    return found + list(check_references(items))
