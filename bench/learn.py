#!/usr/bin/env python3
"""How well a policy learns from tokens of a fixed age: `syncopate-twin --lag S` with each correction, over several seeds.

usage: bench/learn.py BINARY_FOLDER [--lags 0,4,14] [--corrections none,tis,mis] [--seeds 5] [--steps 600]
                      [--growths 2,0] [--config deploy/examples/reverse.yaml] [KEY=VALUE ...]

Every token is exactly S steps old (as many as there are, in the first S steps), whatever this machine's speed, so that runs can
be compared and repeated bit for bit. Each 33rd version is evaluated greedily on eval.prompts prompts. A lag of 0 is run once
for each growth and seed, as no correction changes anything there; `none` anchors the clip on the behaviour policy. Prints one
JSON object for each run, and one for each case over its seeds: the best evaluation, the first step of 0.95, the exact share
at step 132, and the lowest evaluation behind step 200. Needs Python's standard library.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
EVERY = 33  # steps between evaluations
GOOD = 0.95
LATE = 200  # the lowest evaluation is looked for from this step on


def curve(arguments, lag, correction, growth, seed):
    """[(step, exact)] of one run."""
    last = arguments.steps + lag  # so that the version of the last step is evaluated, too
    command = [str(arguments.binaries / "syncopate-twin"), "--lag", str(lag), str(arguments.config), f"run.steps={last}",
               f"run.seed={seed}", f"train.correction={correction}", f"train.max_grad_growth={growth}",
               f"staleness.max_staleness={max(lag, 1)}", f"eval.every_steps={arguments.every}", *arguments.overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    points = [json.loads(line) for line in done.stdout.splitlines()]
    return [(point["eval_step"], point["eval_exact"]) for point in points if "eval_exact" in point]


def figures(points):
    late = [exact for step, exact in points if step >= LATE]
    near = min(points, key=lambda point: abs(point[0] - 132))
    first = next((step for step, exact in points if exact >= GOOD), None)
    return {"best": max(exact for _, exact in points), "first_good_step": first, "exact_at_132": near[1],
            "lowest_late": min(late) if late else None, "last": points[-1][1]}


def summarise(runs):
    """Of the runs of one case: the least, the median and the largest of each figure; a figure that a run lacks counts apart."""
    summary = {}
    for key in runs[0]:
        values = [run[key] for run in runs if run[key] is not None]
        summary[key] = [min(values), statistics.median(values), max(values)] if values else None
        if len(values) < len(runs):
            summary[f"{key}_missing"] = len(runs) - len(values)
    return summary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="folder of syncopate-twin")
    parser.add_argument("overrides", nargs="*", help="further section.key=value for every run")
    parser.add_argument("--lags", default="0,4,14", help="at most 14: the twin keeps the weights in its 16 send slots")
    parser.add_argument("--corrections", default="none,tis,mis")
    parser.add_argument("--growths", default="2,0", help="values of train.max_grad_growth")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=EVERY, help="steps between evaluations")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "deploy/examples/reverse.yaml")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that one run may take")
    arguments = parser.parse_args()
    for growth in arguments.growths.split(","):
        for lag in (int(word) for word in arguments.lags.split(",")):
            for correction in ["mis"] if lag == 0 else arguments.corrections.split(","):
                runs = []
                for seed in range(arguments.seeds):
                    points = curve(arguments, lag, correction, growth, seed)
                    runs.append(figures(points))
                    case = {"lag": lag, "correction": correction, "max_grad_growth": float(growth)}
                    print(json.dumps({**case, "seed": seed, **runs[-1], "curve": points}), flush=True)
                print(json.dumps({**case, "seeds": arguments.seeds, "summary": summarise(runs)}), flush=True)


if __name__ == "__main__":
    main()
