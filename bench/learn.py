#!/usr/bin/env python3
"""How well a policy learns, by commands that can be repeated: every curve of docs/learning.md and docs/asynchrony.md.

usage: bench/learn.py BINARY_FOLDER CASE [--seeds N] [--steps N] [--plot FILE.svg] [KEY=VALUE ...]
       bench/learn.py --draw LINES.jsonl --plot FILE.svg

  lags       L1: tokens that are exactly 0, 4 or 16 steps old (--lags), by correction (--corrections) and by
             train.max_grad_growth (--growths): `syncopate-twin --lag`, repeated bit for bit on any machine
  daemons    L0: `syncopate run` of the reverse example at max_staleness 0 and 4
  kills      L2: the same at 4, while a rollouter is killed every ten seconds and the trainer once, at half of the steps
  guess      L3: the game of several turns at max_staleness 0 and 4; the share of right numbers, and the turns
  add        L4: sums from nothing, which collapses: the step at which an alarm stands
  twin       L5: `syncopate run` at max_staleness 0 beside `syncopate-twin`: the same evaluations, the same digests
  retention  600 steps of six symbols: was it learned, and the lowest evaluation after that
  unlearning the settings of docs/learning.md, "What was tried", each with tokens of one age (--lags): did a run that was at
             0.99 fall below 0.9 or 0.5
  gpu-reverse, gpu-add    H1, H2: 25M parameters on a GPU, from a supervised start

Prints a JSON object for each run and one for each case over its seeds; --plot draws their curves with matplotlib. Everything
but --plot needs Python's standard library alone.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
REVERSE = ROOT / "deploy/examples/reverse.yaml"
GOOD = 0.95
LATE = 200      # the lowest evaluation is looked for from this step on
EVERY = 33      # steps between the evaluations of lags
KILL_EVERY = 10.0  # seconds between kills
GUESS = ROOT / "deploy/examples/guess.yaml"
GPU_MODEL = ["model.hidden_size=512", "model.num_hidden_layers=8", "model.intermediate_size=1536", "train.device=auto",
             "rollout.device=auto", "rollout.gpu_memory=0.4", "run.rollouters=1"]
# Overrides of the settings of docs/learning.md, beside what a run of today does not do.
FORMER = ["train.max_grad_growth=0"]
SETTINGS = {
    "gradient at most 2 times what is remembered": ["train.max_grad_growth=2"],
    "gradient at most 1.5 times": ["train.max_grad_growth=1.5"],
    "no limit": FORMER,
    "beta2 .99": FORMER + ["train.beta2=0.99"],
    "beta2 .999": FORMER + ["train.beta2=0.999"],
    "adam_eps 1e-5": FORMER + ["train.adam_eps=1e-5"],
    "max_grad_norm .1": FORMER + ["train.max_grad_norm=0.1"],
    "advantages not divided by their deviation": FORMER + ["train.advantage=dr_grpo"],
    "tis 2": FORMER + ["train.correction=tis"],
    "learning rate 1e-3": FORMER + ["train.learning_rate=1e-3"],
    "learning rate 4e-3": FORMER + ["train.learning_rate=4e-3"],
    "learning rate 4e-3, limit 2": ["train.learning_rate=4e-3"],
}


# ---- one run

def twin(options, overrides, lag=0):
    """[(step, exact)] of one run of the twin."""
    command = [str(options.binaries / "syncopate-twin"), "--lag", str(lag), str(options.config), *overrides,
               *options.overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [(line["eval_step"], line["eval_exact"]) for line in lines if "eval_exact" in line], lines


@contextlib.contextmanager
def daemons(options, overrides, run_dir):
    """A run that ends within --timeout or is ended."""
    command = [str(options.binaries / "syncopate"), "run", str(options.config), "--quiet", f"run.dir={run_dir}",
               *overrides, *options.overrides]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def lines_of(run_dir):
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def wait_for(process, options):
    try:
        output, _ = process.communicate(timeout=options.timeout)
    except subprocess.TimeoutExpired:
        sys.exit(f"the run took longer than {options.timeout} s")
    return process.returncode, output


def run(options, overrides):
    """(curve, lines of metrics.jsonl, summary) of one undisturbed run."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = pathlib.Path(folder) / "run"
        with daemons(options, overrides, run_dir) as process:
            code, output = wait_for(process, options)
        if code != 0:
            sys.exit(f"a run ended with {code}:\n{output}")
        lines = lines_of(run_dir)
        return curve_of(lines), lines, json.loads((run_dir / "summary.json").read_text())


def curve_of(lines):
    return [(line["step"], line["eval_exact"]) for line in lines if line["kind"] == "eval" and "eval_exact" in line]


# ---- figures

def figures(points):
    late = [exact for step, exact in points if step >= LATE]
    near = min(points, key=lambda point: abs(point[0] - 132))
    first = next((step for step, exact in points if exact >= GOOD), None)
    return {"best": max(exact for _, exact in points), "first_good_step": first, "exact_at_132": near[1],
            "lowest_late": min(late) if late else None, "last": points[-1][1]}


def retention_figures(points):
    learned = next((at for at, (_, exact) in enumerate(points) if exact >= 0.99), None)
    lowest = min((exact for _, exact in points[learned:]), default=None) if learned is not None else None
    return {"learned_at": points[learned][0] if learned is not None else None, "lowest_after": lowest,
            "fell_below_0.9": lowest is not None and lowest < 0.9, "fell_below_0.5": lowest is not None and lowest < 0.5}


def summarise(runs):
    """The least, the median and the largest of each figure of the runs of a case; a figure that a run lacks counts apart."""
    summary = {}
    for key in runs[0]:
        values = [one[key] for one in runs if one[key] is not None]
        if all(isinstance(value, bool) for value in values):
            summary[key] = sum(values)
        else:
            summary[key] = [min(values), statistics.median(values), max(values)] if values else None
        if len(values) < len(runs):
            summary[f"{key}_missing"] = len(runs) - len(values)
    return summary


# ---- cases: each yields (case, [(seed, curve, figures)])

def lags(options):
    for growth in options.growths.split(","):
        for lag in (int(word) for word in options.lags.split(",")):
            # Without a lag no correction changes anything.
            for correction in ["mis"] if lag == 0 else options.corrections.split(","):
                def one(seed):
                    last = options.steps + lag  # so that the version of the last step is evaluated, too
                    points, _ = twin(options, [
                        f"run.steps={last}", f"run.seed={seed}", f"train.correction={correction}",
                        f"train.max_grad_growth={growth}", f"staleness.max_staleness={max(lag, 1)}",
                        f"eval.every_steps={EVERY}"], lag)
                    return points, figures(points)
                yield {"lag": lag, "correction": correction, "max_grad_growth": float(growth)}, one


def unlearning(options):
    for lag in (int(word) for word in options.lags.split(",")):
        for name, overrides in SETTINGS.items():
            def one(seed):
                points, _ = twin(options, [
                    "data.length=6", "rollout.max_new_tokens=7", "eval.prompts=64", "eval.every_steps=10",
                    f"run.steps={options.steps + lag}", f"run.seed={seed}", f"staleness.max_staleness={max(lag, 1)}",
                    *overrides], lag)
                return points, retention_figures(points)
            yield {"setting": name, "lag": lag}, one


def undisturbed(options):
    for bound in (0, 4):
        def one(seed):
            points, _, _ = run(options, [f"run.seed={seed}", f"run.steps={options.steps}",
                                         f"staleness.max_staleness={bound}"])
            return points, figures(points)
        yield {"max_staleness": bound}, one


def retention(options):
    def one(seed):
        points, _, _ = run(options, [f"run.seed={seed}", f"run.steps={options.steps}", "data.length=6",
                                     "rollout.max_new_tokens=7", "staleness.max_staleness=4"])
        return points, retention_figures(points)
    yield {"max_staleness": 4}, one


def pid_of(run_dir, name):
    path = run_dir / "endpoints" / f"{name}.json"
    try:
        return json.loads(path.read_text())["pid"]
    except (OSError, ValueError, KeyError):
        return None


def kill(run_dir, name):
    pid = pid_of(run_dir, name)
    if pid is None:
        return 0
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def kills(options):
    def one(seed):
        overrides = [f"run.seed={seed}", f"run.steps={options.steps}", "staleness.max_staleness=4",
                     "checkpoint.every_steps=10"]
        with tempfile.TemporaryDirectory() as folder:
            run_dir = pathlib.Path(folder) / "run"
            killed, trainer_killed, summary = 0, False, None
            deadline = time.monotonic() + options.timeout
            while summary is None:
                resume = ["run.resume=true"] if trainer_killed else []
                with daemons(options, overrides + resume, run_dir) as process:
                    next_kill = time.monotonic() + options.kill_every
                    while process.poll() is None:
                        if time.monotonic() > deadline:
                            sys.exit(f"the run took longer than {options.timeout} s")
                        time.sleep(0.05)
                        if time.monotonic() >= next_kill:
                            killed += kill(run_dir, f"rollouter-{killed % 2}")
                            next_kill = time.monotonic() + options.kill_every
                        steps = [line["step"] for line in lines_of(run_dir)[-3:] if line["kind"] == "step"]
                        if not trainer_killed and steps and steps[-1] >= options.steps // 2:
                            trainer_killed = kill(run_dir, "trainer-0") == 1
                    process.communicate()
                if process.returncode == 0:
                    summary = json.loads((run_dir / "summary.json").read_text())
                elif not trainer_killed:
                    sys.exit(f"a run ended with {process.returncode}")
            points = curve_of(lines_of(run_dir))
            return points, {**figures(points), "rollouters_killed": killed, "trainer_killed": int(trainer_killed),
                            "duplicate": summary["groups"]["duplicate"],
                            "violations": summary["staleness"]["violations"]}
    yield {"max_staleness": 4, "kill_every": options.kill_every}, one


def guess(options):
    options.config = GUESS
    for bound in (0, 4):
        def one(seed):
            points, lines, _ = run(options, [f"run.seed={seed}", f"run.steps={options.steps}",
                                             f"staleness.max_staleness={bound}"])
            rewards = [line["reward_mean"] for line in lines if line["kind"] == "step" and line["objective"] == "rl"]
            turns = [line["eval_turns_mean"] for line in lines if line["kind"] == "eval"]
            points = [(line["step"], line["eval_reward"]) for line in lines if line["kind"] == "eval"]
            return points, {"best_eval_reward": max(reward for _, reward in points), "turns_first": turns[0],
                            "turns_last": turns[-1], "reward_first": rewards[0], "reward_last": statistics.mean(rewards[-10:])}
        yield {"task": "guess", "max_staleness": bound}, one


def add(options):
    def one(seed):
        points, lines, _ = run(options, [f"run.seed={seed}", f"run.steps={options.steps}", "data.task=add",
                                         "data.length=2", "rollout.max_new_tokens=4"])
        alarms = [(line["step"], line["alarms"]) for line in lines if line.get("alarms")]
        return points, {"best": max(exact for _, exact in points),
                        "first_alarm_step": alarms[0][0] if alarms else None,
                        "steps_with_alarm": len({step for step, _ in alarms})}
    yield {"task": "add"}, one


def beside_twin(options):
    def one(seed):
        overrides = [f"run.seed={seed}", f"run.steps={options.steps}", "staleness.max_staleness=0"]
        points, lines, _ = run(options, overrides)
        of_twin, twin_lines = twin(options, overrides)
        digests = {line["step"]: line["weights_digest"] for line in lines if line["kind"] == "step"}
        others = {line["step"]: line["weights_digest"] for line in twin_lines}
        both = dict(points).keys() & dict(of_twin).keys()
        return points, {"steps": len(digests), "same_digests": digests == others, "evaluations": len(both),
                        "same_evaluations": all(abs(dict(points)[step] - dict(of_twin)[step]) < 1e-6 for step in both)}
    yield {"max_staleness": 0}, one


def on_gpu(options, overrides):
    def one(seed):
        points, _, summary = run(options, [f"run.seed={seed}", f"run.steps={options.steps}", *GPU_MODEL, *overrides])
        return points, {**figures(points), "seconds": summary["wall_seconds"]}
    yield {"overrides": overrides}, one


CASES = {  # name: (cases, seeds, steps)
    "lags": (lags, 5, 600), "daemons": (undisturbed, 3, 150), "kills": (kills, 3, 300), "guess": (guess, 3, 3500),
    "add": (add, 3, 200), "twin": (beside_twin, 1, 60), "retention": (retention, 10, 600),
    "unlearning": (unlearning, 12, 600),
    "gpu-reverse": (lambda options: on_gpu(options, [
        "data.length=16", "data.alphabet=26", "rollout.max_new_tokens=17", "reward.name=exact", "train.sft_steps=200",
        "train.learning_rate=5e-4"]), 1, 800),
    "gpu-add": (lambda options: on_gpu(options, [
        "data.task=add", "data.length=3", "rollout.max_new_tokens=5", "reward.name=exact", "train.sft_steps=200",
        "train.learning_rate=5e-4"]), 1, 800),
}


# ---- pictures

def draw(lines, path):
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    cases = {}
    for line in lines:
        if "curve" not in line:
            continue
        name = ", ".join(f"{key} {line[key]:g}" if isinstance(line[key], (int, float)) else str(line[key])
                         for key in line["case"])
        cases.setdefault(name, []).append(line["curve"])
    columns = min(3, max(1, len(cases)))
    rows = -(-len(cases) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3.6 * columns, 2.4 * rows), sharex=True, sharey=True,
                                   squeeze=False)
    for axis, (name, curves) in zip(axes.flat, cases.items()):
        for curve in curves:
            axis.plot([step for step, _ in curve], [value for _, value in curve], linewidth=1)
        axis.axhline(GOOD, color="grey", linewidth=0.5, linestyle=":")
        axis.set_title(name, fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("step", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, nargs="?", help="folder of syncopate, syncopate-twin and the daemons")
    parser.add_argument("case", choices=CASES, nargs="?")
    parser.add_argument("overrides", nargs="*", help="further section.key=value for every run")
    parser.add_argument("--draw", type=pathlib.Path, help="draw the lines of an earlier call instead of running anything")
    parser.add_argument("--plot", type=pathlib.Path, help="write the curves as SVG")
    parser.add_argument("--seeds", type=int, help="runs of each case")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lags", default="0,4,16", help="at most 62: the twin keeps the weights in its 64 send slots")
    parser.add_argument("--corrections", default="none,tis,mis")
    parser.add_argument("--growths", default="2,0", help="values of train.max_grad_growth")
    parser.add_argument("--kill-every", type=float, default=KILL_EVERY, help="seconds between kills of a rollouter")
    parser.add_argument("--config", type=pathlib.Path, default=REVERSE)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that one run may take")
    options = parser.parse_args()
    if options.draw is not None and options.plot is None:
        parser.error("--draw needs --plot")
    if options.draw is None and options.case is None:
        parser.error("BINARY_FOLDER and CASE are needed")
    return options


def main():
    options = arguments_of()
    if options.draw is not None:
        draw([json.loads(line) for line in options.draw.read_text().splitlines()], options.plot)
        return
    cases, seeds, steps = CASES[options.case]
    options.binaries = options.binaries.resolve()
    options.steps = options.steps or steps
    drawn = []
    for case, one in cases(options):
        results = []
        for seed in range(options.first_seed, options.first_seed + (options.seeds or seeds)):
            points, result = one(seed)
            results.append(result)
            drawn.append({"case": list(case), **case, "seed": seed, **result, "curve": points})
            print(json.dumps(drawn[-1]), flush=True)
        print(json.dumps({**case, "seeds": len(results), "summary": summarise(results)}), flush=True)
    if options.plot is not None:
        draw(drawn, options.plot)


if __name__ == "__main__":
    main()
