#!/usr/bin/env python3
"""Times whole runs side by side: two settings in turn, A B A B ..., so that a drifting machine drifts for both.

usage: bench/run_pairs.py [--pairs 5] [--binary build/release/bin/syncopate] CONFIG -- COMMON... -- A... -- B...
e.g.   bench/run_pairs.py deploy/examples/reverse.yaml -- run.steps=100 \
           -- staleness.max_staleness=4 -- staleness.max_staleness=0

Prints, for each setting, the median (and range) of the trainer's wall time, seconds a step, weight-sync latency, pause,
staleness and idle shares, and the median of the pairs' wall-time ratio. The synchronizer's figures are of its last 1000
records. Needs nothing but Python's standard library.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile


def figures(run_dir, summary):
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]
    steps = [line for line in steps if line["kind"] == "step"]
    return {
        "wall s": summary["wall_seconds"],
        "s/step": statistics.median(line["step_seconds"] for line in steps),
        "sync ms p50": summary["syncs"]["total_ms"]["p50"],
        "sync ms p99": summary["syncs"]["total_ms"]["p99"],
        "pause ms p50": summary["pause_ms"]["p50"],
        "pause ms max": summary["pause_ms"]["max"],
        "staleness mean": summary["staleness"]["mean"],
        "trainer idle": summary["idle"]["trainer"],
        "rollouters idle": summary["idle"]["rollouters"],
        "best exact": summary["eval"]["exact"]["best"],
    }


def run(binary, config, overrides):
    with tempfile.TemporaryDirectory() as folder:
        run_dir = pathlib.Path(folder) / "run"
        command = [binary, "run", config, f"run.dir={run_dir}", "--quiet", *overrides]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return figures(run_dir, json.loads((run_dir / "summary.json").read_text()))


def main():
    options, _, rest = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--binary", default="build/release/bin/syncopate")
    arguments = parser.parse_args(options.split())
    parts = [part.split() for part in rest.split("-- ")]
    if len(parts) != 3:
        parser.error("wanted: CONFIG -- COMMON... -- A... -- B...")
    common, first, second = parts

    results = {"A": [], "B": []}
    for _ in range(arguments.pairs):
        for name, overrides in (("A", first), ("B", second)):
            results[name].append(run(arguments.binary, arguments.config, common + overrides))

    print(f"A = {' '.join(first)}   B = {' '.join(second)}   common: {' '.join(common)}   pairs: {arguments.pairs}")
    print(f"{'':18}{'A median (range)':>32}{'B median (range)':>32}")
    for key in results["A"][0]:
        row = f"{key:18}"
        for name in ("A", "B"):
            values = [result[key] for result in results[name]]
            row += f"{f'{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})':>32}"
        print(row)
    ratios = [a["wall s"] / b["wall s"] for a, b in zip(results["A"], results["B"])]
    print(f"wall A/B, pair by pair: median {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
