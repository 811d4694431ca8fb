#!/usr/bin/env python3
"""What `syncopate ctl size` predicts of one rollouter more, against what that rollouter then gives, with daemons.

usage: bench/size.py BINARY_FOLDER [--rollouters 3] [--seconds 60] [--median 0.5] [--sigma 0.5] [--slots 4]
                     [--groups 4] [--target 4] [--max 40]

Starts a run with one rollouter on this machine, on CPUs, and adds a rollouter at a time. The time of an answer is waited by
its reward and not computed: log-normal, the same for all answers of a group. After each change the run settles, the steps
of --seconds are counted, and `ctl size` is asked. Prints a JSON object for each number of rollouters: the measured pace, what
was predicted of it before the rollouter came, and the error. Exits with 1 if a prediction is off by more than 15 %. Call it
with a Python that has what the package of python/ needs.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import slow_rollouter
import start_rows

WITHIN = 0.15
REWARDS = '''
import asyncio, hashlib, math, statistics
from syncopate import reward

@reward("paced", concurrency=4096, budget=600)
async def paced(answer, row):
    share = (int.from_bytes(hashlib.sha256(row["prompt"].encode()).digest()[:6], "big") + 0.5) / 2**48
    await asyncio.sleep(MEDIAN * math.exp(SIGMA * statistics.NormalDist().inv_cdf(share)))
    return float(len(answer) % 2)
'''


def start_rollouter(binaries, run_dir, index):
    endpoints = json.loads((run_dir / "endpoints.json").read_text())
    synchronizer = next(one["grpc"] for one in endpoints if one["role"] == "synchronizer")
    return subprocess.Popen([binaries / "syncopate-rollouter", run_dir / "config.resolved.yaml",
                             f"synchronizer.address={synchronizer}", f"rollouter.index={index}"],
                            stdout=subprocess.DEVNULL, stderr=(run_dir / f"rollouter-{index}.log").open("w"))


def ask_size(binaries, run_dir, rollouters, seconds):
    """What ctl size says of so many rollouters; it answers by what it measured a few seconds ago."""
    deadline = time.monotonic() + seconds
    while True:
        done = subprocess.run([binaries / "syncopate", "ctl", "--run", run_dir, "size", "--json"], capture_output=True,
                              text=True, timeout=60)
        size = json.loads(done.stdout) if done.returncode == 0 else {}
        if int(size.get("rollouters", 0)) == rollouters:
            return size
        if time.monotonic() > deadline:
            sys.exit(f"ctl size knows no {rollouters} rollouters: {done.stdout}{done.stderr}")
        time.sleep(0.5)


def measure(run_dir, seconds):
    before, begin = slow_rollouter.steps_of(run_dir), time.monotonic()
    time.sleep(seconds)
    return (slow_rollouter.steps_of(run_dir) - before) / (time.monotonic() - begin)


def play(binaries, folder, address, arguments):
    run_dir = folder / "run"
    run = subprocess.Popen([binaries / "syncopate", "run", folder / "rows.yaml", f"run.dir={run_dir}",
                            f"data.files={folder}/few.jsonl", f"data.batch_groups={arguments.groups}", "rollout.samples=2",
                            f"rollout.max_groups_in_flight={arguments.slots}", "run.steps=1000000", "train.device=cpu",
                            "rollout.device=cpu", f"staleness.target_staleness={arguments.target}",
                            f"staleness.max_staleness={arguments.max}", "reward.name=python:paced",
                            f"environment.address={address}", "--quiet"], stdout=subprocess.DEVNULL)
    others, predicted, worst = [], None, 0.0
    settle = max(10.0, 4 * arguments.median)
    try:
        slow_rollouter.await_steps(run_dir, 3, time.monotonic() + 120)
        for rollouters in range(1, arguments.rollouters + 1):
            if rollouters > 1:
                others.append(start_rollouter(binaries, run_dir, rollouters - 1))
                ask_size(binaries, run_dir, rollouters, 60)
            time.sleep(settle)
            pace = measure(run_dir, arguments.seconds)
            size = ask_size(binaries, run_dir, rollouters, 60)
            line = {"rollouters": rollouters, "steps_per_second": round(pace, 3), "limit": size["limit"],
                    "useful_rollouters": int(size["useful_rollouters"]), "one_more": round(size["steps_per_second_one_more"], 3),
                    "slots_per_rollouter": size["slots_per_rollouter"], "step_seconds": round(size["step_seconds"], 4)}
            if predicted is not None:
                error = predicted / pace - 1
                line.update(predicted=round(predicted, 3), error=round(error, 3))
                worst = max(worst, abs(error))
            print(json.dumps(line), flush=True)
            predicted = size["steps_per_second_one_more"]
    finally:
        for process in [*others, run]:
            process.terminate()
        for process in [*others, run]:
            process.wait()
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="folder of syncopate and its daemons")
    parser.add_argument("--rollouters", type=int, default=3, help="the most")
    parser.add_argument("--seconds", type=float, default=60, help="of each measurement")
    parser.add_argument("--median", type=float, default=0.5, help="seconds of a group")
    parser.add_argument("--sigma", type=float, default=0.5, help="deviation of their logarithm")
    parser.add_argument("--slots", type=int, default=4, help="groups that a rollouter works on at once")
    parser.add_argument("--groups", type=int, default=4, help="of a batch")
    parser.add_argument("--target", type=float, default=4, help="staleness.target_staleness")
    parser.add_argument("--max", type=int, default=40, help="staleness.max_staleness")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        start_rows.make_run(folder)
        text = REWARDS.replace("MEDIAN", repr(arguments.median)).replace("SIGMA", repr(arguments.sigma))
        (folder / "rewards.py").write_text(text)
        process, address = slow_rollouter.worker(folder, "paced", 0)
        try:
            worst = play(arguments.binaries.resolve(), folder, address, arguments)
        finally:
            process.terminate()
            process.wait()
    print(f"worst error {100 * worst:.1f} %")
    sys.exit(0 if worst <= WITHIN else 1)


if __name__ == "__main__":
    main()
