#!/usr/bin/env python3
"""Prometheus over a run of `syncopate run` on this machine, with the rules beside this file. Finds the daemons in the
run directory, restarted ones too. Needs `prometheus` on PATH; standard library only.

    syncopate run deploy/examples/reverse.yaml run.dir=runs/first &
    deploy/prometheus/watch.py runs/first        then http://127.0.0.1:9091
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

RULES = pathlib.Path(__file__).resolve().parent / "rules"
CONFIGURATION = """\
global:
  scrape_interval: {interval}
  scrape_timeout: {interval}
  evaluation_interval: {interval}
rule_files: ["{rules}/*.yaml"]
scrape_configs:
  - job_name: syncopate
    honor_labels: true
    file_sd_configs:
      - files: ["{data}/targets.json"]
        refresh_interval: 5s
"""


def targets(run_dir):
    """What file_sd_configs read: one entry per daemon that the run directory names, with the labels of README.md."""
    found = []
    for path in sorted((run_dir / "endpoints").glob("*.json")):
        daemon = json.loads(path.read_text())
        labels = {"component": daemon["role"], "instance": path.stem, "run": run_dir.name}
        found.append({"targets": [daemon["metrics"]], "labels": labels})
    return found


def keep_targets(run_dir, data, stop):
    """Writes the targets again whenever they have changed, until `stop` is set."""
    written = None
    while True:
        try:
            now = targets(run_dir)
        except (OSError, ValueError, KeyError):
            now = written  # a file that is just being replaced: next time
        if now != written:
            (data / "targets.new").write_text(json.dumps(now))
            (data / "targets.new").replace(data / "targets.json")
            written = now
        if stop.wait(1):
            return


def command(run_dir, data, listen, interval):
    """Writes the configuration and returns the server's command line."""
    (data / "prometheus.yml").write_text(CONFIGURATION.format(interval=interval, rules=RULES, data=data))
    (data / "targets.json").write_text("[]")
    return ["prometheus", f"--config.file={data}/prometheus.yml", f"--storage.tsdb.path={data}/tsdb",
            f"--web.listen-address={listen}", "--log.level=warn"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=pathlib.Path, help="directory of the run")
    parser.add_argument("--listen", default="127.0.0.1:9091", help="address of Prometheus (%(default)s)")
    parser.add_argument("--data", type=pathlib.Path, help="folder for its data; a temporary one if not given")
    parser.add_argument("--interval", default="5s", help="of scrapes and rules (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = (options.data or pathlib.Path(temporary)).resolve()
        data.mkdir(parents=True, exist_ok=True)
        run_dir = options.run_dir.resolve()
        stop = threading.Event()
        try:
            server = subprocess.Popen(command(run_dir, data, options.listen, options.interval))
        except FileNotFoundError:
            sys.exit("watch.py: no `prometheus` on PATH; on Debian and Ubuntu: apt-get install prometheus")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.terminate())
        keeper = threading.Thread(target=keep_targets, args=(run_dir, data, stop))
        keeper.start()
        try:
            code = server.wait()
        finally:
            stop.set()
            keeper.join()
    sys.exit(code)


if __name__ == "__main__":
    main()
