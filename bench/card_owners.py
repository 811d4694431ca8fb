#!/usr/bin/env python3
"""usage: card_owners.py RUN_DIR --before-mib N [--gpu 0] [--seconds S] [--within-mib 256] [--least-samples 5]

Compares who owns a GPU's memory, as the daemons of a live run say it, with what its driver counts. All daemons of the run
that show syncopate_card_memory_bytes must be on that GPU, and N MiB were in use there before they were started.

Looks several times a second, until RUN_DIR's daemons have gone or S seconds have passed. A look counts if all daemons show
the same sum and nvidia-smi says it too, before and after: then all have seen the same moment. Of such a look

    difference = N + every owner of every daemon but `others` - what the driver counts in use

Prints one JSON object: the looks, the differences in MiB, and the owners of the last look in which the trainer's state
was on the GPU and of the last one in which it was not. Exits 1 if a difference exceeds --within-mib, or if fewer than
--least-samples looks counted. Standard library only.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

MIB = 1 << 20
SAMPLE = re.compile(r'^syncopate_card_memory_bytes\{owner="([^"]*)"\} (\S+)$', re.MULTILINE)
OTHERS = "others"
SAME = 4 * MIB  # nvidia-smi tells whole MiB, and drivers count in pages of 2 MiB


def parse(text):
    """owner -> bytes of one scrape."""
    return {owner: int(float(value)) for owner, value in SAMPLE.findall(text)}


def is_one_moment(daemons, used_before, used_after):
    """Whether all daemons and the driver count the same in use. `daemons`: name -> owners, as parse() gives them."""
    sums = [sum(owners.values()) for owners in daemons.values()]
    return bool(sums) and max(*sums, used_before, used_after) - min(*sums, used_before, used_after) <= SAME


def difference(daemons, before, used):
    """By how many bytes the owners exceed what the driver counts."""
    own = sum(value for owners in daemons.values() for owner, value in owners.items() if owner != OTHERS)
    return before + own - used


def is_trainers_state_there(daemons):
    return any(owners.get("moments", 0) > 0 for owners in daemons.values())


def driver_used(gpu):
    text = subprocess.run(["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                          check=True, capture_output=True, text=True, timeout=20).stdout
    return int(text.split()[0]) * MIB


def scrape_all(run_dir):
    """name -> owners of every daemon that shows some; None if one does not answer."""
    found = {}
    for path in sorted((run_dir / "endpoints").glob("*.json")):
        try:
            daemon = json.loads(path.read_text())
            if daemon["role"] == "synchronizer":
                continue
            with urllib.request.urlopen(f'http://{daemon["metrics"]}/metrics', timeout=5) as answer:
                owners = parse(answer.read().decode())
        except (OSError, ValueError):
            return None
        if owners:
            found[path.stem] = owners
    return found


def in_mib(daemons):
    return {name: {owner: round(value / MIB) for owner, value in owners.items()} for name, owners in daemons.items()}


def watch(options):
    """The looks that counted, as (difference, daemons), and the number of all."""
    counted, looks, seen = [], 0, False
    deadline = time.monotonic() + options.seconds
    while time.monotonic() < deadline:
        used_before = driver_used(options.gpu)
        daemons = scrape_all(options.run_dir)
        if daemons is None or not daemons:
            if seen and daemons is None:
                break  # the run ends
            time.sleep(0.2)
            continue
        seen, looks = True, looks + 1
        if len(daemons) >= options.daemons and is_one_moment(daemons, used_before, driver_used(options.gpu)):
            counted.append((difference(daemons, options.before_mib * MIB, used_before), daemons))
        time.sleep(0.1)
    return counted, looks


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[0].removeprefix("usage: "))
    parser.add_argument("run_dir", type=pathlib.Path)
    parser.add_argument("--before-mib", type=int, required=True)
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--within-mib", type=int, default=256)
    parser.add_argument("--least-samples", type=int, default=5)
    parser.add_argument("--daemons", type=int, default=2, help="a look with fewer daemons does not count")
    options = parser.parse_args()
    counted, looks = watch(options)
    report = {"looks": looks, "counted": len(counted), "before_mib": options.before_mib}
    good = len(counted) >= options.least_samples
    if counted:
        found = [round(one / MIB) for one, _ in counted]
        report["difference_mib"] = {"least": min(found), "median": statistics.median(found), "most": max(found)}
        report["within_mib"] = options.within_mib
        good = good and max(abs(one) for one in found) <= options.within_mib
        for name, there in (("trainers_turn_mib", True), ("rollouters_turn_mib", False)):
            of_phase = [daemons for _, daemons in counted if is_trainers_state_there(daemons) == there]
            if of_phase:
                report[name] = in_mib(of_phase[-1])
    report["ok"] = good
    print(json.dumps(report))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
