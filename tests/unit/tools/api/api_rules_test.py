"""The interface keeps buf's rules and breaks no program that was compiled against the published one; and buf, as it is
called here, finds what does. usage: api_rules_test.py PATH_OF_PROTO_FOLDER"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROTO = pathlib.Path(sys.argv.pop(1)).resolve()
BUF = pathlib.Path(sys.executable).parent / "buf"
WHEELS = next(pathlib.Path(sys.executable).parents[1].glob("lib/python3*/site-packages"))


class ApiRulesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        shutil.copytree(PROTO / "syncopate", self.folder / "syncopate")
        shutil.copy(PROTO / "buf.yaml", self.folder)
        shutil.copytree(WHEELS / "google" / "rpc", self.folder / "google" / "rpc", ignore=lambda folder, names: [
            name for name in names if name not in ("status.proto", "error_details.proto")])

    def buf(self, *words):
        return subprocess.run([BUF, *words], cwd=self.folder, capture_output=True, text=True, timeout=60)

    def lint(self):
        return self.buf("lint", "--path", "syncopate")

    def breaking(self):
        published = PROTO / "published.protoset"
        return self.buf("breaking", ".", "--exclude-imports", "--against", f"{published}#format=binpb")

    def edit(self, file, old, new):
        path = self.folder / "syncopate" / "v1" / file
        text = path.read_text()
        self.assertIn(old, text)
        path.write_text(text.replace(old, new))

    def assert_clean(self, result):
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_keeps_the_standard_rules(self):
        self.assert_clean(self.lint())

    def test_breaks_no_program_that_was_compiled_against_the_published_one(self):
        self.assert_clean(self.breaking())

    def test_a_name_out_of_style_is_found(self):
        self.edit("common.proto", "string replica_id = 2;", "string replicaId = 2;")
        self.assertIn("replicaId", self.lint().stdout)

    def test_a_field_that_is_gone_is_found(self):
        self.edit("common.proto", "string replica_id = 2;", "")
        found = self.breaking()
        self.assertEqual(found.returncode, 100)
        self.assertIn("replica_id", found.stdout)

    def test_a_field_with_another_number_is_found(self):
        self.edit("common.proto", "string replica_id = 2;", "string replica_id = 99;")
        self.assertIn("replica_id", self.breaking().stdout)

    def test_a_call_that_is_gone_is_found(self):
        self.edit("trainer.proto", "rpc RolloutMode(", "rpc RolloutModus(")
        self.assertIn("RolloutMode", self.breaking().stdout)


if __name__ == "__main__":
    if not BUF.exists():
        print("skipped: there is no buf; scripts/bootstrap.sh --tests installs it")
        sys.exit(77)
    unittest.main()
