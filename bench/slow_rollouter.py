#!/usr/bin/env python3
"""usage: bench/slow_rollouter.py BINARY_FOLDER [--delay 8] [--seconds 40]

What one rollouter that takes DELAY seconds for each answer costs a run: steps a second of one healthy rollouter alone,
and of two of which one is slow, in real processes on this machine, from the moment on at which both work. The model is
small and the rewards of the slow one wait. Call it with a Python that has what the package of python/ needs.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import start_rows

ROOT = pathlib.Path(__file__).resolve().parents[1]
REWARDS = '''
import os, time
from syncopate import reward

@reward("timed")
def timed(answer, row):
    time.sleep(float(os.environ.get("ANSWER_SECONDS", "0")))
    return float(len(answer) % 2)
'''


def steps_of(run_dir):
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return 0
    return sum(1 for line in path.open() if '"kind":"step"' in line.replace(" ", ""))


def await_steps(run_dir, steps, deadline):
    while steps_of(run_dir) < steps:
        if time.monotonic() > deadline:
            sys.exit(f"{run_dir} makes no steps; see its logs")
        time.sleep(0.05)


def worker(folder, name, seconds):
    socket = folder / f"{name}.sock"
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), ANSWER_SECONDS=str(seconds))
    process = subprocess.Popen([sys.executable, "-m", "syncopate.worker", str(folder / "rewards.py"), "--listen",
                                f"unix:{socket}"], env=environment, stdout=subprocess.DEVNULL,
                               stderr=(folder / f"{name}.log").open("w"))
    while not socket.exists():
        if process.poll() is not None:
            sys.exit((folder / f"{name}.log").read_text())
        time.sleep(0.05)
    return process, f"unix:{socket}"


def measure(binaries, folder, name, seconds, healthy, slow):
    run_dir = folder / name
    run = subprocess.Popen([binaries / "syncopate", "run", folder / "rows.yaml", f"run.dir={run_dir}",
                            f"data.files={folder}/few.jsonl", "data.batch_groups=8", "rollout.samples=4",
                            "run.steps=1000000", "reward.name=python:timed", f"environment.address={healthy}", "--quiet"],
                           stdout=subprocess.DEVNULL)
    second = None
    try:
        await_steps(run_dir, 10, time.monotonic() + 60)
        if slow is not None:
            endpoints = json.loads((run_dir / "endpoints.json").read_text())
            synchronizer = next(one["grpc"] for one in endpoints if one["role"] == "synchronizer")
            second = subprocess.Popen([binaries / "syncopate-rollouter", run_dir / "config.resolved.yaml",
                                       f"synchronizer.address={synchronizer}", "rollouter.index=1",
                                       f"environment.address={slow}"], stdout=subprocess.DEVNULL,
                                      stderr=(folder / "slow-rollouter.log").open("w"))
            log = run_dir / "logs" / "trainer-0.log"
            while "rollouter-1 (" not in log.read_text():
                time.sleep(0.05)
        before, begin = steps_of(run_dir), time.monotonic()
        time.sleep(seconds)
        return (steps_of(run_dir) - before) / (time.monotonic() - begin)
    finally:
        for process in (run, second):
            if process is not None:
                process.terminate()
                process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[2])
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("--delay", type=float, default=8)
    parser.add_argument("--seconds", type=float, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        start_rows.make_run(folder)
        (folder / "rewards.py").write_text(REWARDS)
        workers = [worker(folder, "quick", 0), worker(folder, "slow", arguments.delay)]
        try:
            quick, slow = (address for _, address in workers)
            alone = measure(arguments.binaries, folder, "alone", arguments.seconds, quick, None)
            both = measure(arguments.binaries, folder, "both", arguments.seconds, quick, slow)
        finally:
            for process, _ in workers:
                process.terminate()
                process.wait()
    print(f"{alone:.1f} steps/s by one rollouter; {both:.1f} with a second one that takes {arguments.delay:g} s an answer: "
          f"{both / alone:.2f} of it")


if __name__ == "__main__":
    main()
