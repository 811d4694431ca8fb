"""What of a run reaches Weights & Biases and MLflow. Run: python -m unittest -v (in python/)."""
import glob
import io
import json
import os
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from syncopate import track  # noqa: E402

CONFIG = 'run:\n  name: "reverse"\n  seed: 7\ntrain:\n  learning_rate: 0.002\n'


def line(step, **fields):
    return json.dumps({"kind": "step", "step": step, "epoch": 1, "unix_seconds": 1000.0 + step, **fields}) + "\n"


class RunDirectory:
    def __init__(self, case):
        folder = tempfile.TemporaryDirectory()
        case.addCleanup(folder.cleanup)
        self.path = folder.name
        self.write(track.CONFIG, CONFIG)

    def write(self, name, text, mode="w"):
        with open(os.path.join(self.path, name), mode) as file:
            file.write(text)

    def append(self, text):
        self.write(track.METRICS, text, "a")

    def end(self, status="completed"):
        self.write(track.SUMMARY, json.dumps({"status": status, "eval": {"best": 0.97}}))


class FakeTarget:
    id = "abc"

    def __init__(self, known=None):
        self.known = known
        self.sent = []
        self.summary = None
        self.closed = False

    def send(self, step, numbers, unix_seconds):
        self.sent.append((step, numbers, unix_seconds))

    def finish(self, summary):
        self.summary = summary

    def close(self):
        self.closed = True


class TrackTest(unittest.TestCase):
    def setUp(self):
        self.run_dir = RunDirectory(self)
        self.targets = []

    def track(self, once=False, wait=None):
        def make(settings, name, known):
            self.settings = settings
            self.targets.append(FakeTarget(known))
            return self.targets[-1]

        return track.track(self.run_dir.path, make, "wandb", once, wait)

    def test_a_line_is_sent_once_though_the_command_runs_again(self):
        self.run_dir.append(line(1, loss=0.5) + line(2, loss=0.4))
        self.assertEqual(self.track(once=True), 2)
        self.run_dir.append(line(3, loss=0.3))
        self.assertEqual(self.track(once=True), 1)
        self.assertEqual([sent[0] for sent in self.targets[1].sent], [3])
        self.assertEqual([target.known for target in self.targets], [None, "abc"])
        self.assertTrue(all(target.closed for target in self.targets))

    def test_a_line_that_is_being_written_is_sent_when_it_is_whole(self):
        whole = line(2, loss=0.25)
        self.run_dir.append(line(1, loss=0.5) + whole[:20])
        waits = []

        def wait(seconds):
            waits.append(len(self.targets[0].sent))
            if len(waits) == 1:
                self.run_dir.append(whole[20:])
            else:
                self.run_dir.end()

        self.assertEqual(self.track(wait=wait), 2)
        self.assertEqual(waits, [1, 2])
        self.assertEqual(self.targets[0].sent[1], (2, {"loss": 0.25}, 1002.0))
        self.assertEqual(self.targets[0].summary, {"status": "completed", "eval.best": 0.97})

    def test_an_end_of_the_run_leaves_no_line_behind(self):
        # Both are there at the first look, as if the run had ended just before it.
        self.run_dir.append(line(1, loss=0.5))
        self.run_dir.end()
        self.assertEqual(self.track(), 1)

    def test_figures_have_the_names_of_what_holds_them_and_no_texts(self):
        record = {"kind": "eval", "step": 3, "unix_seconds": 1, "eval_exact": 1, "replay": True, "answer": "x", "missing": None,
                  "endless": float("inf"), "alarms": ["entropy"], "samples": [{"answer": "x"}],
                  "eval_sets": {"aime": {"pass@4": 0.5, "name": "aime"}}}
        self.assertEqual(track.figures(record), {"eval_exact": 1.0, "replay": 1.0, "alarms": 1.0, "eval_sets/aime/pass@4": 0.5})

    def test_settings_have_their_names_in_the_file(self):
        self.run_dir.end()
        self.track()
        self.assertEqual(self.settings, {"run.name": "reverse", "run.seed": 7, "train.learning_rate": 0.002})

    def test_a_line_that_is_no_json_is_named_and_left_out(self):
        self.run_dir.append("{torn\n" + line(2, loss=1))
        with unittest.mock.patch("sys.stderr", new=io.StringIO()) as errors:
            self.assertEqual(self.track(once=True), 1)
        self.assertIn("{torn", errors.getvalue())

    def test_a_file_that_is_shorter_than_what_was_sent_is_refused(self):
        self.run_dir.append(line(1, loss=0.5))
        self.track(once=True)
        self.run_dir.write(track.METRICS, "")
        with self.assertRaisesRegex(track.TrackError, "another run"):
            self.track(once=True)

    def test_a_folder_that_is_no_run_is_refused(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("sys.stderr", new=io.StringIO()) as errors:
            self.assertEqual(track.main([folder, "--to", "wandb"]), 1)
            self.assertIn("no run directory", errors.getvalue())


class ToolsTest(unittest.TestCase):
    """Against the packages themselves, without their servers."""

    def setUp(self):
        self.run_dir = RunDirectory(self)
        self.run_dir.append(line(1, loss=0.5) + line(2, loss=0.25))

    def main(self, to):
        with unittest.mock.patch("sys.stdout", new=io.StringIO()):
            self.assertEqual(track.main([self.run_dir.path, "--to", to]), 0)

    def test_wandb_keeps_them_in_its_offline_files(self):
        import wandb

        self.addCleanup(wandb.teardown)
        self.run_dir.end()
        settings = {"WANDB_MODE": "offline", "WANDB_DIR": self.run_dir.path, "WANDB_SILENT": "true"}
        with unittest.mock.patch.dict(os.environ, settings):
            self.main("wandb")
        found = glob.glob(os.path.join(self.run_dir.path, "wandb", "offline-run-*", "*.wandb"))
        self.assertEqual(len(found), 1)
        parts = (b"train.learning_rate", b"loss", b"0.25", b"eval.best")
        # A process of the package writes the file, on a busy machine after the call has returned.
        limit, content = time.monotonic() + 60, b""
        while not all(part in content for part in parts) and time.monotonic() < limit:
            time.sleep(0.05)
            with open(found[0], "rb") as file:
                content = file.read()
        for part in parts:
            self.assertIn(part, content)

    def test_mlflow_keeps_them_in_its_store(self):
        import mlflow

        self.run_dir.end()
        # Its store of files needs no database; newer versions want to be told so.
        settings = {"MLFLOW_TRACKING_URI": "file://" + os.path.join(self.run_dir.path, "mlruns"),
                    "MLFLOW_ALLOW_FILE_STORE": "true"}
        with unittest.mock.patch.dict(os.environ, settings):
            self.main("mlflow")
            client = mlflow.MlflowClient()
            experiment = client.get_experiment_by_name("syncopate")
            (run,) = client.search_runs([experiment.experiment_id])
            self.assertEqual(run.info.status, "FINISHED")
            self.assertEqual(run.data.params["train.learning_rate"], "0.002")
            self.assertEqual([(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "loss")],
                             [(1, 0.5), (2, 0.25)])
            self.assertEqual(run.data.tags["summary.eval.best"], "0.97")


if __name__ == "__main__":
    unittest.main()
