"""The page of a run that goes on: who may see it, and that it follows the run.

usage: live_page_test.py BINARY_FOLDER
"""

import collections
import http.client
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from chromium import Chromium, find

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 120

binaries = pathlib.Path()


class LivePageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.daemons = subprocess.Popen(
            ["setpriv", "--pdeathsig", "INT", "--", str(binaries / "syncopate"), "run", str(SOURCE / "deploy/examples/reverse.yaml"),
             f"run.dir={cls.folder}/live", "run.steps=1000000", "reward.name=dense + 0.5*exact", "metrics.train_samples=0.5", "--json", "--web"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        cls.addClassCleanup(cls.stop)
        started = json.loads(cls.daemons.stdout.readline())
        # A full pipe would block the command, and the page with it.
        cls.reader = threading.Thread(target=lambda: collections.deque(cls.daemons.stdout, maxlen=0), daemon=True)
        cls.reader.start()
        cls.url = started["page"]
        cls.port = int(cls.url.rstrip("/").rsplit(":", 1)[1])

    @classmethod
    def stop(cls):
        cls.daemons.send_signal(signal.SIGINT)
        try:
            cls.daemons.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            cls.daemons.kill()
            cls.daemons.wait()
        cls.reader.join(timeout=PATIENCE)
        cls.daemons.stdout.close()

    def get(self, path, host=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{self.port}"})
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), body

    def steps(self, have=""):
        status, _, body = self.get(f"/new.json{have}")
        self.assertEqual(status, 200)
        return json.loads(body)["steps"]

    def wait_for_steps(self, count):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            steps = self.steps()
            if len(steps["at"]) >= count:
                return steps
            time.sleep(0.2)
        raise AssertionError(f"no {count} steps within {PATIENCE} s")

    def test_it_is_a_page_that_no_other_site_may_frame_or_read(self):
        status, headers, body = self.get("/")
        self.assertEqual(status, 200)
        self.assertIn("<!doctype html>", body)
        self.assertIn("frame-ancestors 'none'", headers["Content-Security-Policy"])
        self.assertIn("connect-src 'self'", headers["Content-Security-Policy"])
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertNotIn("Access-Control-Allow-Origin", headers)

    def test_a_request_in_another_name_is_refused(self):
        for host in ("evil.example", f"evil.example:{self.port}", "127.0.0.1", f"127.0.0.1:{self.port}.evil.example", "localhost:1"):
            for path in ("/", "/new.json"):
                status, _, body = self.get(path, host)
                self.assertEqual(status, 421, host)
                self.assertNotIn("reward", body)
        self.assertEqual(self.get("/", f"localhost:{self.port}")[0], 200)

    def test_there_is_nothing_else(self):
        for path in ("/metrics", "/../config.resolved.yaml", "/new.json/x"):
            self.assertEqual(self.get(path)[0], 404)

    def test_only_this_machine_can_reach_it(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address would be ours
            except OSError:
                self.skipTest("this machine has no other address")
            own = probe.getsockname()[0]
        with socket.socket() as other:
            self.assertNotEqual(other.connect_ex((own, self.port)), 0)

    def test_an_address_that_is_not_loopback_is_refused(self):
        for address in ("0.0.0.0:0", "192.0.2.1:80", "[::]:0"):
            done = subprocess.run([str(binaries / "syncopate"), "run", str(SOURCE / "deploy/examples/reverse.yaml"),
                                   f"run.dir={self.folder}/refused", "--web", address], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, address)
            self.assertIn("only this machine may reach it", done.stderr)

    def samples(self, query=""):
        status, headers, body = self.get(f"/samples.json{query}")
        self.assertEqual(status, 200, body)
        self.assertEqual(headers["Content-Type"], "application/json")
        return json.loads(body)

    def test_samples_are_searched_newest_first_and_in_pages(self):
        deadline = time.monotonic() + PATIENCE
        while len(self.samples()["samples"]) < 20:
            self.assertLess(time.monotonic(), deadline, "no samples")
            time.sleep(0.2)
        first = self.samples("?kind=train")
        self.assertTrue(all(one["kind"] == "train" for one in first["samples"]))
        steps = [one["step"] for one in first["samples"]]
        self.assertEqual(steps, sorted(steps, reverse=True))
        second = self.samples(f"?kind=train&from={first['next']}")
        key = lambda one: (one["group"], one["attempt"], one["sample"])
        self.assertFalse({key(one) for one in first["samples"]} & {key(one) for one in second["samples"]})
        for one in self.samples("?reward_from=0.5&q=EXACT")["samples"]:
            self.assertGreaterEqual(one["reward"], 0.5)
            self.assertIn("exact", one["reward_parts"])
        self.assertEqual(self.samples("?q=no+answer+says+this")["samples"], [])
        status, _, body = self.get("/samples.json?step_from=many")
        self.assertEqual((status, json.loads(body)["error"].split(":")[0]), (400, "step_from"))
        self.assertEqual(self.get("/samples.json", "evil.example")[0], 421)

    def test_what_is_new_continues_what_one_has(self):
        whole = self.wait_for_steps(5)
        have = len(whole["at"]) - 2
        rest = self.steps(f"?steps={have}&steps_span={whole['span']}")
        self.assertEqual(rest["from"], have - 1)
        self.assertEqual(rest["at"][:3], whole["at"][have - 1:])
        self.assertEqual(self.steps(f"?steps={have}&steps_span={whole['span'] * 2}")["from"], 0)
        self.assertEqual(self.steps("?steps=-1&steps_span=x&steps=9999999999999999999999")["from"], 0)

    @unittest.skipUnless(find(), "no Chromium")
    def test_a_browser_follows_the_run(self):
        with Chromium(PATIENCE) as browser:
            browser.open(self.url, 1280)
            before = browser.evaluate("data.runs[0].steps.at.length")
            browser.wait_for(f"data.runs[0].steps.at.length > {before + 5} && data.runs[0].syncs.at.length > 1")
            browser.wait_for("document.querySelectorAll('.answer').length > 0")
            browser.wait_for("document.querySelectorAll('#recorded-list .answer').length > 0")
            browser.wait_for("[...document.querySelectorAll('h3')].some(one => one.textContent === 'Parts of the reward')")
            self.assertEqual(browser.evaluate("document.getElementById('subtitle').textContent").split(" ")[0], "running")
            self.assertEqual(browser.complaints(), [])
            self.assertTrue(all(url.startswith(self.url) for url in browser.requests()), browser.requests())


class BeginningTest(unittest.TestCase):
    def test_what_began_the_steps_is_said_before_them_though_a_rollouter_is_ready_after_them(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        # `syncopate run` finds the daemons beside itself: the second rollouter there begins when a step has been made.
        shutil.copy(binaries / "syncopate", folder)
        for daemon in ("synchronizer", "trainer"):
            (folder / f"syncopate-{daemon}").symlink_to(binaries / f"syncopate-{daemon}")
        late = folder / "syncopate-rollouter"
        late.write_text(f"""#!/bin/sh
            case "$*" in *rollouter.index=1*)
              until grep -qs '"kind":"step"' '{folder}/run/metrics.jsonl'; do sleep 0.05; done ;;
            esac
            exec '{binaries}/syncopate-rollouter' "$@"
            """)
        late.chmod(0o755)
        run = subprocess.run(
            ["setpriv", "--pdeathsig", "INT", "--", str(folder / "syncopate"), "run", str(SOURCE / "deploy/examples/reverse.yaml"),
             f"run.dir={folder}/run", "run.steps=60", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        self.assertEqual(run.returncode, 0, run.stderr)
        events = [json.loads(line) for line in run.stdout.splitlines()]
        self.assertEqual(events[0]["event"], "started")
        steps = [event["metrics"]["step"] for event in events if event.get("metrics", {}).get("kind") == "step"]
        self.assertEqual(steps, list(range(1, 61)))
        self.assertEqual(events[-1]["event"], "ended")


if __name__ == "__main__":
    binaries = pathlib.Path(sys.argv.pop()).resolve()
    unittest.main(verbosity=2)  # which says why a test was skipped
