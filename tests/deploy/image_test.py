"""The CPU image: what is in it, and that it runs as strictly as a restricted pod does.

usage: image_test.py BUILD_FOLDER [unittest arguments]       such as build/release, with the programs in it"""

import contextlib
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
IMAGE = SOURCE / "deploy/image"
STORAGE = SOURCE / "build/image"
BUILDAH = ["buildah", "--root", str(STORAGE / "storage"), "--runroot", str(STORAGE / "run")]
NAME = "localhost/syncopate:test-cpu"
EXAMPLE = "/usr/share/syncopate/examples/reverse.yaml"
PROGRAMS = {f"/usr/bin/{name}" for name in
            ("syncopate", "syncopate-synchronizer", "syncopate-trainer", "syncopate-rollouter")}
USER = 65532
PATIENCE_S = 300
build_folder = None


def output(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} gave {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def launch(*arguments, **keywords):
    """`run.py` with the image that this test built."""
    return subprocess.Popen([IMAGE / "run.py", "--image", NAME, *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **keywords)


def run_image(*arguments):
    """Exit code and output of one whole run."""
    with launch(*arguments) as process:
        try:
            text, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            text, _ = process.communicate(timeout=PATIENCE_S)
            raise AssertionError(f"not done after {PATIENCE_S} s\n{text}") from None
    return process.returncode, text


class ImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cleanup = contextlib.ExitStack()
        cls.folder = pathlib.Path(cls.cleanup.enter_context(tempfile.TemporaryDirectory()))
        archive = cls.folder / "image.oci.tar"
        try:
            cls.said = output(IMAGE / "build.sh", "--build", build_folder, "--tag", NAME, "--output", archive)
            container = output(*BUILDAH, "from", "--pull-never", NAME)
            cls.cleanup.callback(output, *BUILDAH, "rm", container)
            cls.root = pathlib.Path(output(*BUILDAH, "mount", container))
        except BaseException:
            cls.cleanup.close()
            raise
        with tarfile.open(archive) as tar:
            tar.extractall(cls.folder / "oci")
        cls.manifest = cls.blob(json.loads((cls.folder / "oci/index.json").read_text())["manifests"][0])
        cls.config = cls.blob(cls.manifest["config"])
        cls.bill = json.loads((cls.folder / "image.spdx.json").read_text())

    @classmethod
    def tearDownClass(cls):
        cls.cleanup.close()

    @classmethod
    def blob(cls, descriptor):
        return json.loads((cls.folder / "oci/blobs" / descriptor["digest"].replace(":", "/")).read_text())

    def files(self):
        """Path in the image and lstat of everything in it."""
        for folder, folders, names in os.walk(self.root):
            for name in folders + names:
                path = pathlib.Path(folder, name)
                yield "/" + str(path.relative_to(self.root)), path.lstat()

    def test_holds_at_most_a_gigabyte(self):
        self.assertLessEqual(sum(stat.st_size for _, stat in self.files()), 1 << 30)
        self.assertRegex(self.said, r"^image: .*, [0-9]+ MiB, ")

    def test_has_programs_and_libraries_and_nothing_else_that_runs(self):
        executable = {path for path, stat in self.files()
                      if stat.st_mode & 0o111 and (stat.st_mode & 0o170000) == 0o100000}
        self.assertEqual({path for path in executable if not re.search(r"\.so(\.|$)", path)}, PROGRAMS)
        with open(self.root / "etc/passwd", encoding="utf-8") as passwd:
            self.assertEqual({line.strip().split(":")[-1] for line in passwd}, {"/usr/sbin/nologin"})

    def test_gives_its_user_one_folder_and_nobody_any_privilege(self):
        for path, stat in self.files():
            with self.subTest(path):
                self.assertFalse(stat.st_mode & 0o6000, "set-uid or set-gid")
                owner = USER if path == "/var/lib/syncopate" else 0
                self.assertEqual((stat.st_uid, stat.st_gid), (owner, owner))
                if (stat.st_mode & 0o170000) != 0o120000 and path != "/tmp":
                    self.assertFalse(stat.st_mode & 0o022, "writable by others than its owner")

    def test_says_what_it_is(self):
        config = self.config["config"]
        self.assertEqual(config["User"], f"{USER}:{USER}")
        self.assertEqual(config["Entrypoint"], ["/usr/bin/syncopate"])
        self.assertEqual(config["WorkingDir"], "/var/lib/syncopate")
        self.assertEqual(config["Volumes"], {"/var/lib/syncopate": {}})
        labels = {key.rpartition(".")[2]: value for key, value in config["Labels"].items() if "opencontainers" in key}
        self.assertEqual(labels["title"], "syncopate")
        self.assertEqual(labels["version"], self.bill["packages"][0]["versionInfo"])
        self.assertRegex(labels["revision"], r"^([0-9a-f]{40}(-dirty)?|unknown)$")
        self.assertRegex(labels["created"], r"^20[0-9-]{8}T[0-9:]{8}Z$")
        self.assertEqual(self.config["architecture"], "amd64")

    def test_keeps_libraries_apart_from_programs_so_that_an_update_is_small(self):
        sizes = [layer["size"] for layer in self.manifest["layers"]]
        self.assertEqual(len(sizes), 3)
        self.assertLess(sizes[1] + sizes[2], sizes[0] / 10)

    def test_names_no_folder_of_the_build(self):
        for program in PROGRAMS:
            self.assertNotIn("RUNPATH", output("readelf", "--dynamic", self.root / program[1:]))

    def test_is_made_of_the_same_bytes_from_the_same_build(self):
        again = self.folder / "again"
        epoch = output("date", "+%s", "--date", self.config["config"]["Labels"]["org.opencontainers.image.created"])
        output("env", f"SOURCE_DATE_EPOCH={epoch}", IMAGE / "assemble.sh", build_folder, "cpu", again)
        digest = "tar --sort=name --exclude=contents.tsv --create --directory {} . | sha256sum"
        first, second = (output("sh", "-c", digest.format(folder)) for folder in (STORAGE / "assembled/image", again))
        shutil.rmtree(again)
        self.assertEqual(first, second)

    # --- bill of materials -------------------------------------------------------------------------------------------

    def test_bill_of_materials_names_each_binary_with_its_digest_and_package(self):
        listed = {entry["fileName"][1:]: entry for entry in self.bill["files"]}
        binaries = {path for path, stat in self.files() if (stat.st_mode & 0o170000) == 0o100000
                    and (path in PROGRAMS or path.startswith("/usr/lib") and re.search(r"\.so(\.|$)", path))}
        self.assertEqual(set(listed), binaries)
        owned = {relation["relatedSpdxElement"] for relation in self.bill["relationships"]
                 if relation["relationshipType"] == "CONTAINS"}
        for path, entry in listed.items():
            self.assertIn(entry["SPDXID"], owned)
            digests = {digest["algorithm"]: digest["checksumValue"] for digest in entry["checksums"]}
            with open(self.root / path[1:], "rb") as binary:
                self.assertEqual(hashlib.file_digest(binary, "sha256").hexdigest(), digests["SHA256"], path)

    def test_bill_of_materials_has_versions_licences_and_places_to_look_them_up(self):
        packages = {package["name"]: package for package in self.bill["packages"]}
        self.assertLessEqual({"syncopate", "libc6", "libgrpc29", "libssl3", "torch"}, set(packages))
        self.assertTrue(packages["torch"]["externalRefs"][0]["referenceLocator"].startswith("pkg:pypi/torch@2.11.0"))
        for name, package in packages.items():
            locator = package["externalRefs"][0]["referenceLocator"]
            if locator.startswith("pkg:deb/"):
                installed = output("dpkg-query", "--show", "--showformat=${Version}", name)
                self.assertEqual(package["versionInfo"], installed)
                self.assertGreater((self.root / f"usr/share/doc/{name}/copyright").stat().st_size, 0)
        self.assertEqual((self.root / "usr/share/syncopate/sbom.spdx.json").read_text(),
                         (self.folder / "image.spdx.json").read_text())

    def test_bill_of_materials_is_valid_spdx(self):
        tool = pathlib.Path(sys.executable).parent / "pyspdxtools"
        if not tool.exists():
            self.skipTest("no spdx-tools; scripts/bootstrap.sh --tests installs it")
        self.assertEqual(output(tool, "--infile", self.folder / "image.spdx.json", "--version", "SPDX-2.3"), "")

    # --- running -----------------------------------------------------------------------------------------------------

    def test_runs_the_demo_to_its_end_as_an_unprivileged_user_with_a_read_only_root(self):
        state = self.folder / "demo"
        code, text = run_image("--state", state, "run", EXAMPLE, "run.dir=/var/lib/syncopate/run")
        self.assertEqual(code, 0, text)
        summary = json.loads((state / "run/summary.json").read_text())
        self.assertEqual(summary["status"], "completed", text)
        self.assertEqual(summary["steps"], 150)
        self.assertGreaterEqual(summary["eval"]["best"], 0.95)
        self.assertEqual((summary["syncs"]["failed"], summary["staleness"]["violations"]), (0, 0))
        for path in [state / "run", *(state / "run").rglob("*")]:
            self.assertEqual((path.lstat().st_uid, path.lstat().st_gid), (USER, USER), path)

    def terminated(self, line_start, *arguments):
        """Exit code and output of a run that is told to stop when it prints such a line."""
        with launch(*arguments) as process:
            watchdog = threading.Timer(PATIENCE_S, process.terminate)
            watchdog.start()
            text = ""
            for line in process.stdout:
                text += line
                if re.search(line_start, line):
                    process.terminate()
            code = process.wait()
            watchdog.cancel()
        self.assertRegex(text, line_start)
        return code, text

    def test_the_first_process_stops_in_order_when_the_container_is_stopped(self):
        code, text = self.terminated("ready: gRPC at", "--command", "/usr/bin/syncopate-synchronizer", EXAMPLE,
                                     "run.dir=/var/lib/syncopate/run")
        self.assertEqual(code, 0, text)
        state = self.folder / "stopped"
        code, text = self.terminated("(?m)^step 1 ", "--state", state, "--", "run", EXAMPLE, "--duration", "200s",
                                     "run.dir=/var/lib/syncopate/run", "run.steps=1000000")
        self.assertEqual(code, 130, text)  # `syncopate run` was interrupted
        self.assertEqual(json.loads((state / "run/summary.json").read_text())["status"], "stopped", text)

    def test_writes_nowhere_but_to_its_state(self):
        code, text = run_image("run", EXAMPLE, "run.dir=/usr/share/syncopate/run")
        self.assertNotEqual(code, 0)
        self.assertRegex(text, "Read-only file system|Permission denied")

    def test_each_program_finds_its_libraries(self):
        for program in sorted(PROGRAMS):
            with self.subTest(program):
                code, text = run_image("--command", program, "--", "--no-such-option")
                self.assertEqual(code, 2, text)
                self.assertNotIn("shared libraries", text)

    # --- bad input ---------------------------------------------------------------------------------------------------

    def refused(self, *command):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_build_names_what_is_missing_and_who_makes_it(self):
        text = self.refused(IMAGE / "build.sh", "--build", self.folder, "--output", self.folder / "x.oci.tar")
        self.assertRegex(text, r"no .*/bin/syncopate; scripts/build\.sh makes it")
        self.assertFalse((self.folder / "x.oci.tar").exists())

    def test_build_refuses_an_unknown_variant(self):
        self.assertIn("not 'rocm'", self.refused(IMAGE / "build.sh", "--variant", "rocm"))

    def test_run_refuses_an_image_that_is_not_there(self):
        self.assertIn("buildah from", self.refused(IMAGE / "run.py", "--image", "localhost/syncopate:none"))


def why_not():
    """Returns why images cannot be built or run here; None if they can."""
    if os.geteuid() != 0:
        return "images are built and run by root"
    for tool in ("buildah", "runc", "mmdebstrap", "chrpath", "readelf"):
        if shutil.which(tool) is None:
            return f"there is no {tool}; scripts/bootstrap.sh --tests installs it"
    if platform.machine() != "x86_64":
        return "images are of x86-64 alone"
    probe = subprocess.run(["unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--fork", "true"],
                           capture_output=True, text=True)
    return f"no namespaces: {probe.stderr.strip()}" if probe.returncode != 0 else None


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build_folder = sys.argv.pop(1)
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
