#!/usr/bin/env python3
"""usage: bench/start_rows.py BINARY_FOLDER [--rows 1000000] [--rounds 3]

How long a trainer takes to start with a data file of many rows, and the most memory that it has had: a run of 20 steps
with the file, and one with 1000 rows. Makes file and model itself. Linux.
"""
import argparse
import datetime
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def write_rows(path, rows):
    with path.open("w") as file:
        for i in range(rows):
            a, b = i % 1000, i * 7919 % 1000
            file.write(f'{{"prompt": "What is {a} + {b}?", "answer": "{a + b}", "id": {i}}}\n')


def make_run(folder):
    """A model and rows.yaml, which wants data.files; few.jsonl has 1000 rows."""
    write_rows(folder / "few.jsonl", 1000)
    subprocess.run([sys.executable, ROOT / "scripts/tiny_model.py", folder / "model", "--text", folder / "few.jsonl",
                    "--vocabulary", "360", "--hidden", "32", "--context", "64"], check=True, stdout=subprocess.DEVNULL)
    (folder / "rows.yaml").write_text(
        f"run: {{name: rows, steps: 20, rollouters: 1}}\nmodel: {{path: {folder}/model, context_length: 64}}\n"
        "data: {batch_groups: 2, max_prompt_tokens: 48}\nreward: {name: match}\n"
        "rollout: {samples: 2, max_new_tokens: 8}\neval: {every_steps: 0}\n")


def time_of(log, words):
    line = next(line for line in log.splitlines() if words in line)
    return datetime.datetime.fromisoformat(line.split()[0])


def peak_kb(pid):
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    except (OSError, StopIteration):
        return 0


def trainer_of(run):
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == run.pid and (folder / "comm").read_text().startswith("syncopate-train"):
                return int(folder.name)
        except (OSError, ValueError):
            continue
    return None


def measure(binaries, folder, rows_file, name):
    run_dir = folder / name
    run = subprocess.Popen([binaries / "syncopate", "run", folder / "rows.yaml", f"run.dir={run_dir}",
                            f"data.files={rows_file}", "--quiet"], stdout=subprocess.DEVNULL)
    trainer, peak = None, 0
    while run.poll() is None:
        trainer = trainer or trainer_of(run)
        peak = max(peak, peak_kb(trainer)) if trainer else 0
        time.sleep(0.02)
    if run.returncode != 0:
        sys.exit(f"{run_dir} failed")
    log = (run_dir / "logs" / "trainer-0.log").read_text()
    begin = time_of(log, " starts in ")
    return ((time_of(log, "rows, SHA-256") - begin).total_seconds(), (time_of(log, "ready: gRPC") - begin).total_seconds(),
            peak / 1024)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[2])
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_run(folder)
        write_rows(folder / "many.jsonl", arguments.rows)
        for rows, file in ((1000, "few.jsonl"), (arguments.rows, "many.jsonl")):
            figures = [measure(arguments.binaries, folder, folder / file, f"run-{rows}-{i}")
                       for i in range(arguments.rounds)]
            read, ready, peak = (statistics.median(column) for column in zip(*figures))
            print(f"{rows} rows, {(folder / file).stat().st_size / 1e6:.0f} MB: read in {read:.2f} s, ready after "
                  f"{ready:.2f} s, at most {peak:.0f} MiB resident")


if __name__ == "__main__":
    main()
