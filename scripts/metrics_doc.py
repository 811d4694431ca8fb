#!/usr/bin/env python3
"""usage: scripts/metrics_doc.py RUN_DIR > docs/metrics.md

Writes docs/metrics.md from what the daemons of a live run expose and what its metrics.jsonl holds: it cannot name what
they do not, but for the one metric of GPUs, whose name and help are read from its source. Standard library only. A test
compares.
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


CARD_SOURCE = pathlib.Path(__file__).resolve().parents[1] / "services" / "telemetry" / "card_metrics.cc"
CARD = """\
## On a GPU

| metric | type | labels | meaning |
|---|---|---|---|
| `{name}` | gauge | `owner` | {help} |

Rank 0 of a trainer and of each rollouter shows it, and reads the GPU once a second. It is absent on the CPU, before the
state or the engine is made, and where the driver's management library (libnvidia-ml of driver 510 or later) does not answer.

| `owner` | of | what it is |
|---|---|---|
| `weights` | rollouter | all weight sets that are on the GPU now, without base weights that are the trainer's memory |
| `keys and values` | rollouter | their storage, less what is lent to new weights |
| `buffers` | rollouter | what decode steps need beside both: fixed buffers, or what libtorch's allocator has taken |
| `weights`, `moments`, `gradients`, `reference policy` | trainer | the state that is on the GPU now; `weights` with the copy that computes |
| `allocator` | trainer | what libtorch's allocator has taken beside the state: activations, and its cache |
| `send slots` | trainer | versions that are staged on the GPU, with the base weights that a rollouter maps |
| `context and libraries` | both | CUDA's context, kernels, graphs and libraries, as measured (see below) |
| `others` | both | what the driver counts in use, less all of the above: other processes, and what is not measured |

The samples of one daemon add up exactly to what the driver counts in use (`memory.used` of nvidia-smi), so `others` is below 0
where the other parts are not of the same moment. The parts of all daemons of a GPU without their `others`, and what was in use
before they were started, add up to what the driver counts but for what is not measured; `bench/card_owners.py` compares, and
fails beyond 256 MiB.

What context and libraries take no call tells. A daemon measures it when it starts: what the driver counts in use when the state
or the engine is made, less what it counted before the daemon touched the GPU, less what the daemon has allocated. Daemons of one
host measure one after the other on a GPU, and wait up to 20 s for that. What other processes take or free meanwhile is
measured too. A trainer that takes turns (`run.share_gpu`) measures in each turn again, when nobody else's memory moves, and the
largest growth of one turn is added. What libraries load later otherwise, such as kernels of the first step on a GPU that is
split, and NCCL's buffers, is among `others`, as is the context of a rollouter of several ranks, which join NCCL first.
"""


def card_section():
    """The metric that a run without a GPU does not show."""
    source = CARD_SOURCE.read_text()
    name, help_text = (re.search(rf'constexpr char {constant}\[\] =\s*"([^"]*)"', source).group(1)
                       for constant in ("kName", "kHelp"))
    return CARD.format(name=name, help=help_text)


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
    parts.append(card_section())
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
