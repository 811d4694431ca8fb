"""The places of rules and dashboards, and the names in their expressions."""

import importlib.util
import json
import pathlib
import re
import sys

import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = SOURCE / "deploy" / "prometheus"
GRAFANA = SOURCE / "deploy" / "grafana"
RULES = sorted((PROMETHEUS / "rules").glob("*.yaml"))
RULE_TESTS = sorted((PROMETHEUS / "tests").glob("*.yaml"))
DASHBOARDS = sorted(GRAFANA.glob("*.json"))

# The values that Grafana substitutes for its variables, with a scrape every second.
WINDOWS = {"$__rate_interval": "15s", "$__range": "5m"}


def load_script(path):
    """A program of the product as a module."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(path.parent))
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    sys.path.pop(0)
    return module


def dashboards():
    """name -> dashboard."""
    return {path.stem: json.loads(path.read_text()) for path in DASHBOARDS}


def rules():
    """Every rule of every file and group."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def alerts():
    return [rule for rule in rules() if "alert" in rule]


def panels():
    """(dashboard, panel) for every panel that shows data."""
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            if panel["type"] != "row":
                yield name, panel


def filled_in(expression, run, others=".*"):
    """The expression as Grafana sends it."""
    for variable, window in WINDOWS.items():
        expression = expression.replace(variable, window)
    return expression.replace("$run", run).replace("$namespace", others).replace("$rollouter", others)


def metrics_in(expression):
    """Names of the metrics that an expression reads: all words with an underscore or a colon in front of which no label
    can stand."""
    without_text = re.sub(r'"[^"]*"', "", expression)
    without_labels = re.sub(r"\{[^}]*\}", "", without_text)
    without_lists = re.sub(r"\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", "", without_labels)
    words = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", without_lists))
    words |= set(re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{", without_text))
    known = ("syncopate_", "process_", "grpc_", "vllm:", "run:", "instance:")
    return {word for word in words if word.startswith(known) or word in ("up", "scrape_duration_seconds")}
