"""Every YAML sample of README and docs passes `syncopate config check`, on top of the base that the line before it names:
`<!-- base: gsm8k.yaml -->` of deploy/examples, `<!-- base: none -->`, or `<!-- not checked: why -->` for what is no
configuration of a run. Where a sample names a model, files or a worker there is a tiny one in its place.
usage: yaml_samples_test.py PATH_OF_SYNCOPATE"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError as missing:
    print(f"skipped: {missing}; scripts/bootstrap.sh --tests installs it")
    sys.exit(77)

PROGRAM = None  # path of syncopate
SOURCE = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = SOURCE / "deploy" / "examples"
PAGES = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md")), SOURCE / "python" / "README.md"]
FENCE = re.compile(r"^( *)```yaml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (base|not checked): (.+) -->$")
# An indented block that begins like a configuration would escape the fences.
INDENTED = re.compile(r"(?:^|\n\n)(?: {4}#.*\n)* {4,}(?:run|model|data|rollout|reward|train|eval|staleness|checkpoint): ")
ROW = '{"prompt": "What is 1 + 2?", "question": "What is 1 + 2?", "answer": "3", "reward_model": {"ground_truth": "3"}, ' \
      '"turns": [{"role": "assistant", "content": "3"}]}\n'


def samples():
    """(where, marker's kind, marker's word, text) of every sample."""
    for page in PAGES:
        text = page.read_text()
        for fence in FENCE.finditer(text):
            where = f"{page.relative_to(SOURCE)}:{text.count(chr(10), 0, fence.start()) + 1}"
            marker = MARKER.search(text[: fence.start()].rstrip())
            yield where, *(marker.groups() if marker else (None, None)), fence.group(2)


def laid_over(base, sample):
    """The sections of both. If both have a key, the sample's value counts."""
    return {name: {**(base.get(name) or {}), **(sample.get(name) or {})} for name in {**base, **sample}}


class YamlSamplesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        (cls.folder / "rows.jsonl").write_text(ROW * 8)
        made = [sys.executable, SOURCE / "scripts" / "tiny_model.py", cls.folder / "model", "--hidden", "32", "--layers", "1", "--context", "16384",
                "--text", cls.folder / "rows.jsonl"]
        subprocess.run(list(map(str, made)), check=True, capture_output=True)
        worker = cls.folder / "syncopate-worker"
        worker.write_text("#!/bin/sh\n")
        worker.chmod(0o755)
        (cls.folder / "deploy").symlink_to(SOURCE / "deploy")  # examples name files from the root of the tree

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def check(self, configuration):
        model, data = configuration.get("model", {}), configuration.get("data", {})
        if "path" in model:
            model["path"] = str(self.folder / "model")
        for key in ("files", "eval_files"):
            if key in data:
                data[key] = [str(self.folder / "rows.jsonl")]
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(configuration))
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        return subprocess.run([PROGRAM, "config", "check", str(path)], capture_output=True, text=True, timeout=60,
                              cwd=self.folder, env=environment)

    def test_every_sample_passes_beside_its_base(self):
        checked = 0
        for where, kind, word, text in samples():
            with self.subTest(sample=where):
                self.assertIsNotNone(kind, "a line before the fence has to name its base: <!-- base: NAME.yaml -->")
                if kind != "base":
                    continue
                base = {} if word == "none" else yaml.safe_load((EXAMPLES / word).read_text())
                done = self.check(laid_over(base, yaml.safe_load(text)))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                checked += 1
        self.assertGreater(checked, 6)

    def test_every_example_passes(self):
        for path in sorted(EXAMPLES.glob("*.yaml")):
            with self.subTest(example=path.name):
                done = self.check(yaml.safe_load(path.read_text()))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_sample_that_is_wrong_is_found(self):
        base = yaml.safe_load((EXAMPLES / "gsm8k.yaml").read_text())
        for wrong in ({"reward": {"name": "regex"}}, {"train": {"learning_rte": 1}}, {"data": {"prompt_field": "none"}}):
            self.assertNotEqual(self.check(laid_over(base, wrong)).returncode, 0)

    def test_configurations_stand_between_fences(self):
        for page in PAGES:
            found = INDENTED.search(page.read_text())
            self.assertIsNone(found, f"{page.name}: write it between ```yaml and ```: {found and found.group(0)}")


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
