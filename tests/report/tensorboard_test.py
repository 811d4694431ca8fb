"""The trainer's TensorBoard files, read by TensorBoard.

usage: tensorboard_test.py BINARY_FOLDER
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from tensorboard.backend.event_processing import event_accumulator

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TAGS = {"reward/reward_mean": "reward_mean", "policy/loss": "loss", "policy/learning_rate": "learning_rate", "data/trained_tokens": "trained_tokens",
        "off_policy/staleness_max": "staleness_max", "time/wait_seconds": "wait_seconds"}

binaries = pathlib.Path()


def run(*arguments):
    done = subprocess.run([str(binaries / "syncopate"), "run", *map(str, arguments), "--quiet"], capture_output=True, text=True,
                          timeout=170)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)


def read(folder):
    events = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0})
    events.Reload()
    return events


class TensorBoardTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.run_dir = self.folder / "run"

    def start(self, *overrides):
        run(SOURCE / "deploy/examples/reverse.yaml", f"run.dir={self.run_dir}", "run.steps=12", "data.batch_groups=4",
            "rollout.samples=4", "checkpoint.every_steps=5", "checkpoint.at_end=false", "eval.prompts=8", *overrides)

    def lines(self, kind):
        """step -> the line of metrics.jsonl that counts."""
        all_lines = map(json.loads, (self.run_dir / "metrics.jsonl").read_text().splitlines())
        return {line["step"]: line for line in all_lines if line["kind"] == kind}

    def test_tensorboard_shows_every_step_once_and_what_a_resume_has_rolled_back_no_more(self):
        self.start()
        run("--resume", self.run_dir, "run.steps=15")
        self.assertEqual(len(list((self.run_dir / "tensorboard").iterdir())), 2)
        events = read(self.run_dir / "tensorboard")
        steps = self.lines("step")
        for tag, figure in TAGS.items():
            scalars = events.Scalars(tag)
            self.assertEqual([one.step for one in scalars], list(range(1, 16)), tag)
            for one in scalars:
                self.assertAlmostEqual(one.value, steps[one.step][figure], delta=1e-6 * max(1, abs(one.value)), msg=tag)
                self.assertAlmostEqual(one.wall_time, steps[one.step]["unix_seconds"], delta=5)
        tags = {tag.split("/")[1] for tag in events.Tags()["scalars"] if not tag.startswith(("evaluation", "reward_parts/"))}
        self.assertLessEqual(tags, set(steps[1]), "a figure has another name in metrics.jsonl")
        for one in events.Scalars("reward_parts/dense"):
            self.assertAlmostEqual(one.value, steps[one.step]["reward_parts"]["dense"], places=6)
        evaluations = self.lines("eval")
        for one in events.Scalars("evaluation_parts/dense"):
            self.assertAlmostEqual(one.value, evaluations[one.step]["eval_reward_parts"]["dense"], places=6)
        for one in events.Scalars("evaluation/reward_mean"):
            self.assertAlmostEqual(one.value, evaluations[one.step]["eval_reward"], places=6)

    def test_it_can_be_switched_off(self):
        self.start("metrics.tensorboard=false", "run.steps=2")
        self.assertFalse((self.run_dir / "tensorboard").exists())


if __name__ == "__main__":
    binaries = pathlib.Path(sys.argv.pop())
    unittest.main()
