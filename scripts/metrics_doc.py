#!/usr/bin/env python3
"""usage: scripts/metrics_doc.py RUN_DIR > docs/metrics.md

Writes docs/metrics.md from what the daemons of a live run expose and what its metrics.jsonl holds: it cannot name what
they do not. Standard library only. A test compares.
"""

import json
import pathlib
import re
import sys
import urllib.request

# Labels with a fixed set of values, all there from the start; of others the values are left out.
LISTED = ("age", "direction", "finished_reason", "kind", "outcome", "phase", "reason", "result", "rollouters", "transport")
SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
ROLES = ("synchronizer", "trainer", "rollouter")
INTRODUCTION = """\
# Metrics

Every daemon serves its metrics at `http://HOST:PORT/metrics`, in Prometheus' text format. `syncopate ctl members` and
`endpoints.json` in the run directory say where. Every label has a fixed set of values, which are there, as 0, from the
start: nothing that a client sends becomes a label. Times are in seconds, sizes in bytes, ratios from 0 to 1. Rules and
dashboards over these: `deploy/prometheus`, `deploy/grafana`.

This page is written by `scripts/metrics_doc.py` from a live run with TLS. Without TLS there is no certificate, and no
metric of one.
"""

FIGURES = """\
## A training step

What a step was like has one name a figure: the key of its line in `metrics.jsonl`, which `WatchSteps` and
`syncopate ctl watch --json` give too, its name in TensorBoard, where it stands behind a group (`reward/reward_mean`),
and with `syncopate_` in front, and `_total` behind what adds up over steps, the trainer's metric. In `metrics.jsonl`
the figures that add up are those of the one step, and each line has `unix_seconds`, the time when it was written. Beside the
figures a line has `weights_digest`, of the policy's own
float32 weights after the step: a step that is repeated after a restore has it again, and the synchronous twin's has the
same if `staleness.max_staleness` is 0. `published_digest`, the digest of these weights as they travelled, which is the
`digest` of `ListVersions`, is only in the lines of steps that were published. `held_out_loss` (nats) and
`held_out_tokens` are only in the lines of supervised steps after which the held-out loss was measured.
"""


class Metric:
    """One family, as a scrape shows it."""

    def __init__(self, name, help_text):
        self.name, self.help, self.type = name, help_text, "untyped"
        self.labels, self.bounds = {}, []

    def add(self, labels):
        for label, value in labels:
            if label == "le":
                if value not in self.bounds:
                    self.bounds.append(value)
            else:
                self.labels.setdefault(label, set()).add(value)

    def label_text(self):
        texts = []
        for label, values in sorted(self.labels.items()):
            listed = label in LISTED
            texts.append(f"`{label}`: " + ", ".join(sorted(values)) if listed else f"`{label}`")
        return "; ".join(texts)

    def type_text(self):
        if self.type != "histogram":
            return self.type
        finite = [bound for bound in self.bounds if bound != "+Inf"]
        return f"histogram, {len(finite)} bounds from {float(finite[0]):g} to {float(finite[-1]):g}"

    def figure_row(self, figure):
        return f"| `{figure}` | `{self.name}` | {self.type_text()} | {self.help} |"

    def row(self):
        return f"| `{self.name}` | {self.type_text()} | {self.label_text()} | {self.help} |"


def parse(text):
    """name -> Metric of one scrape."""
    metrics = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, help_text = line.split(" ", 3)
            metrics.setdefault(name, Metric(name, help_text))
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            metrics[name].type = kind
        else:
            match = SAMPLE.match(line)
            if match is None:
                raise ValueError(f"no sample: {line}")
            name = match.group(1)
            family = name if name in metrics else re.sub(r"_(bucket|sum|count)$", "", name)
            metrics[family].add(LABEL.findall(match.group(2) or ""))
    return metrics


def table(metrics):
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    return "\n".join(rows + [metrics[name].row() for name in sorted(metrics)])


def step_figures(line, metrics):
    """figure -> its Metric, of the keys of a step's line that are metrics, too."""
    found = {}
    for figure in line:
        for name in (f"syncopate_{figure}", f"syncopate_{figure}_total"):
            if name in metrics:
                found[figure] = metrics[name]
    return found


def page(scrapes, line):
    """The whole page; `scrapes` holds the text of one daemon of each role, `line` a step's of metrics.jsonl."""
    by_role = {role: parse(scrapes[role]) for role in ROLES}
    shared = set.intersection(*(set(metrics) for metrics in by_role.values()))
    figures = step_figures(line, by_role["trainer"])
    elsewhere = shared | {metric.name for metric in figures.values()}
    parts = [INTRODUCTION, "## Every daemon\n", table({name: by_role["trainer"][name] for name in shared}) + "\n"]
    for role in ROLES:
        own = {name: metric for name, metric in by_role[role].items() if name not in elsewhere}
        parts += [f"## {role.capitalize()}\n", table(own) + "\n"]
        if role == "trainer":
            rows = ["| figure | metric | type | meaning |", "|---|---|---|---|"]
            rows += [figures[figure].figure_row(figure) for figure in sorted(figures)]
            parts += [FIGURES, "\n".join(rows) + "\n"]
    return "\n".join(parts)


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return answer.read().decode()


def scrape_run(run_dir):
    """role -> text of the first daemon of that role that the run directory names."""
    texts = {}
    for path in sorted((pathlib.Path(run_dir) / "endpoints").glob("*.json")):
        daemon = json.loads(path.read_text())
        if daemon["role"] not in texts:
            texts[daemon["role"]] = scrape(daemon["metrics"])
    return texts


def page_of_run(run_dir):
    steps = [line for line in (pathlib.Path(run_dir) / "metrics.jsonl").read_text().splitlines() if '"kind":"step"' in line]
    return page(scrape_run(run_dir), json.loads(steps[0]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    sys.stdout.write(page_of_run(sys.argv[1]))
