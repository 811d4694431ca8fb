#!/usr/bin/env python3
"""usage: bench/report_open.py BINARY_FOLDER [--steps 10000] [--rounds 5]

How long the page of a made run takes: to write it by `syncopate report`, and to open it in a headless Chromium until its
charts are drawn. Prints medians. Needs Chromium, see scripts/bootstrap.sh --tests.
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "report"))
import runs  # noqa: E402
from chromium import Chromium  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[2])
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, page = runs.make_run(folder, arguments.steps), pathlib.Path(folder) / "page.html"
        written, opened = [], []
        with Chromium() as browser:
            for _ in range(arguments.rounds):
                begin = time.monotonic()
                subprocess.run([arguments.binaries / "syncopate", "report", run, "--output", page], check=True, stdout=subprocess.DEVNULL)
                written.append(time.monotonic() - begin)
                opened.append(browser.open(page.as_uri(), 1920))
        print(f"{arguments.steps} steps: written in {statistics.median(written):.2f} s, {page.stat().st_size / 1e6:.1f} MB; "
              f"opened in {statistics.median(opened):.2f} s (largest {max(opened):.2f} s)")


if __name__ == "__main__":
    main()
