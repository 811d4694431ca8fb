"""Sends the figures of a run to Weights & Biases or MLflow, also while it goes on. Reads the run directory; changes the file
tracked.json in it alone.

usage: python -m syncopate.track RUN_DIR --to wandb|mlflow [--project NAME] [--name NAME] [--once]

The tool is configured by its own variables (WANDB_MODE=offline, WANDB_API_KEY, MLFLOW_TRACKING_URI, ...), and installed by
`pip install wandb` or `pip install mlflow-skinny`. Each line of metrics.jsonl is sent once: tracked.json keeps how far the file
was sent and the tool's name of its run, so that a second call goes on where the first one ended, in the same run of the tool.
Ends when the run has ended and all of it is sent; with --once, when all that is there now is sent.
"""
import argparse
import json
import math
import os
import sys
import time

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CONFIG = "config.resolved.yaml"
TRACKED = "tracked.json"
LOOK_EVERY = 1.0  # seconds between two looks at a run that goes on
WHAT_ORDERS = ("step", "epoch", "kind", "unix_seconds")  # fields of a line that are no figures


class TrackError(Exception):
    """What the user can mend; its text says how."""


def figures(record):
    """{name: number} of one line of metrics.jsonl. Fields of an object get its name before theirs: sets/aime/mean. What is no
    finite number is left out; alarms are counted."""
    found = {}

    def add(name, value):
        if isinstance(value, bool):
            found[name] = float(value)
        elif isinstance(value, (int, float)):
            if math.isfinite(value):
                found[name] = float(value)
        elif isinstance(value, dict):
            for key, inner in value.items():
                add(f"{name}/{key}", inner)
        elif name == "alarms":
            found[name] = float(len(value))

    for name, value in record.items():
        if name not in WHAT_ORDERS:
            add(name, value)
    return found


def flat(settings, prefix=""):
    """{section.key: value} of the configuration."""
    found = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found


class Lines:
    """The complete lines of a file that grows, from a place on."""

    def __init__(self, path, offset=0):
        self.path = path
        self.offset = offset  # of the first line that was not read

    def read(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(0, os.SEEK_END)
                if file.tell() < self.offset:
                    raise TrackError(f"{self.path} is shorter than what was sent of it: it is of another run. Remove "
                                     f"{TRACKED} beside it to send it as a new one")
                file.seek(self.offset)
                new = file.read()
        except FileNotFoundError:
            return []
        end = new.rfind(b"\n") + 1  # a line that is being written has no end yet
        lines = new[:end].splitlines()
        self.offset += end
        return lines


class WandbTarget:
    """Weights & Biases. The step of the run is a figure of its own: a run that goes back to a checkpoint repeats steps, and
    wandb's own counter may only rise."""

    def __init__(self, project, name, settings, known):
        try:
            import wandb
        except ImportError:
            raise TrackError("wandb is not installed: pip install wandb") from None
        self._run = wandb.init(project=project, name=name, id=known or None, resume="allow", config=settings)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.id = self._run.id

    def send(self, step, numbers, unix_seconds):
        self._run.log({**numbers, "step": step, "unix_seconds": unix_seconds})

    def finish(self, summary):
        self._run.summary.update(summary)

    def close(self):
        self._run.finish()


class MlflowTarget:
    """MLflow, by its client alone: no run is left open if this process dies."""

    LONGEST_PARAMETER = 6000  # characters that MLflow takes
    MOST_PARAMETERS = 100     # of one call

    def __init__(self, project, name, settings, known):
        try:
            import mlflow
            from mlflow.entities import Metric, Param
        except ImportError:
            raise TrackError("mlflow is not installed: pip install mlflow-skinny") from None
        self._metric = Metric
        self._client = mlflow.MlflowClient()
        if known:
            self.id = known
            self._client.get_run(known)
            return
        experiment = self._client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(project)
        self.id = self._client.create_run(number, run_name=name).info.run_id
        parameters = [Param(key, str(value)[:self.LONGEST_PARAMETER]) for key, value in settings.items()]
        for begin in range(0, len(parameters), self.MOST_PARAMETERS):
            self._client.log_batch(self.id, params=parameters[begin:begin + self.MOST_PARAMETERS])

    def send(self, step, numbers, unix_seconds):
        at = int(unix_seconds * 1000)
        self._client.log_batch(self.id, metrics=[self._metric(key, value, at, step) for key, value in numbers.items()])

    def finish(self, summary):
        for key, value in summary.items():
            self._client.set_tag(self.id, f"summary.{key}", str(value))
        self._client.set_terminated(self.id, "FINISHED" if summary.get("status") == "completed" else "KILLED")

    def close(self):
        pass  # each call was answered


TARGETS = {"wandb": WandbTarget, "mlflow": MlflowTarget}


def _load(path):
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError:
        raise TrackError(f"{path} is no JSON: remove it, and the run is sent anew") from None


def _save(path, content):
    with open(path + ".new", "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def _settings(run_dir):
    import yaml  # both tools bring it

    path = os.path.join(run_dir, CONFIG)
    try:
        with open(path) as file:
            return flat(yaml.safe_load(file))
    except FileNotFoundError:
        raise TrackError(f"{run_dir} is no run directory: it has no {CONFIG}") from None


def track(run_dir, make_target, to, once=False, wait=time.sleep):
    """Sends what was not sent; returns the number of lines. `make_target(settings, name, known)` opens the tool's run, where
    `known` is its name from an earlier call or None."""
    settings = _settings(run_dir)
    tracked_path = os.path.join(run_dir, TRACKED)
    tracked = _load(tracked_path)
    state = tracked.setdefault(to, {"offset": 0})
    target = make_target(settings, os.path.basename(os.path.abspath(run_dir)), state.get("run"))
    state["run"] = target.id
    _save(tracked_path, tracked)
    lines = Lines(os.path.join(run_dir, METRICS), state["offset"])
    sent = 0
    try:
        while True:
            # The summary is written behind the last line: what is read after it was seen is all.
            summary = _load(os.path.join(run_dir, SUMMARY))
            for line in lines.read():
                try:
                    record = json.loads(line)
                except ValueError:
                    print(f"track: a line of {METRICS} is no JSON and is left out: {line[:80]!r}", file=sys.stderr)
                    continue
                target.send(int(record.get("step", 0)), figures(record), float(record.get("unix_seconds", 0)))
                sent += 1
            if state["offset"] != lines.offset:
                state["offset"] = lines.offset
                _save(tracked_path, tracked)
            if summary:
                target.finish({key: value for key, value in flat(summary).items() if not isinstance(value, list)})
                return sent
            if once:
                return sent
            wait(LOOK_EVERY)
    finally:
        target.close()


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m syncopate.track", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", help="directory of the run (run.dir)")
    parser.add_argument("--to", choices=sorted(TARGETS), required=True)
    parser.add_argument("--project", default="syncopate", help="project of wandb, experiment of MLflow")
    parser.add_argument("--name", help="name of the tool's run; else that of the run directory")
    parser.add_argument("--once", action="store_true", help="send what is there now, and end")
    options = parser.parse_args(arguments)

    def make_target(settings, name, known):
        return TARGETS[options.to](options.project, options.name or name, settings, known)

    try:
        sent = track(options.run_dir, make_target, options.to, options.once)
    except TrackError as error:
        print(f"track: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"track: {sent} lines sent to {options.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
