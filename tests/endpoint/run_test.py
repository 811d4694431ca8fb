"""The endpoint of a rollouter in a run: it answers with the policy of that moment.

usage: run_test.py BINARY_FOLDER
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import serving

binaries = pathlib.Path()


class RunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = serving.scratch(cls)
        cls.run_process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "INT", "--", str(binaries / "syncopate"), "run",
             str(serving.SOURCE / "deploy/examples/reverse.yaml"), f"run.dir={cls.folder}/run", "run.steps=1000000",
             "run.rollouters=2", "endpoint.listen=127.0.0.1:0", "endpoint.sequences=16"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(cls.stop)
        deadline = time.monotonic() + serving.PATIENCE
        log = cls.folder / "run/logs/rollouter-0.log"
        cls.url = None
        while cls.url is None and time.monotonic() < deadline:
            found = re.search(r"answered at (\S+), model (\S+)", log.read_text()) if log.exists() else None
            cls.url = found and found[1].removesuffix("/v1")
            cls.model = found and found[2]
            time.sleep(0.05)  # a log file says nothing when it grows

    @classmethod
    def stop(cls):
        cls.run_process.send_signal(signal.SIGINT)
        try:
            cls.run_process.wait(timeout=serving.PATIENCE)
        except subprocess.TimeoutExpired:
            cls.run_process.kill()
            cls.run_process.wait()

    def post(self, path, body, url=None):
        """Code and body; asks again while the rollouter has no weights."""
        request = urllib.request.Request((url or self.url) + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        deadline = time.monotonic() + serving.PATIENCE
        while True:
            try:
                with urllib.request.urlopen(request, timeout=serving.PATIENCE) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:
                    return error.code, json.load(error)
                self.assertEqual(error.headers["Retry-After"], "1")
                time.sleep(0.1)

    def versions(self):
        code, answer = self.post("/v1/completions", {"model": self.model, "prompt": [1, 2, 3], "max_tokens": 4,
                                                     "return_token_ids": True, "temperature": 0})
        self.assertEqual(code, 200, answer)
        choice = answer["choices"][0]
        self.assertEqual(choice["policy_versions"][-1]["end"], len(choice["token_ids"]))
        return [(one["epoch"], one["step"]) for one in choice["policy_versions"]]

    def test_answers_come_from_newer_and_newer_versions(self):
        self.assertIsNotNone(self.url)
        first = self.versions()[0]
        deadline = time.monotonic() + serving.PATIENCE
        while self.versions()[-1] <= first:
            self.assertLess(time.monotonic(), deadline)

    def test_a_gateway_answers_while_a_rollouter_is_killed(self):
        gateway = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", str(binaries / "syncopate"), "gateway", "--run",
             str(self.folder / "run"), "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(gateway.stdout.close)
        self.addCleanup(gateway.wait, serving.PATIENCE)
        self.addCleanup(gateway.send_signal, signal.SIGINT)
        url = re.fullmatch(r"gateway at (\S+)/v1\n", gateway.stdout.readline())[1]
        asked = {"prompt": [1, 2, 3], "max_tokens": 4, "return_token_ids": True}
        self.assertEqual(self.post("/v1/completions", asked, url)[0], 200)
        deadline = time.monotonic() + serving.PATIENCE
        while self.endpoints(url) < 2:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)  # the gateway says nothing when a rollouter comes
        announced = json.loads((self.folder / "run/endpoints/rollouter-1.json").read_text())
        os.kill(announced["pid"], signal.SIGKILL)
        for _ in range(200):
            request = urllib.request.Request(url + "/v1/completions", json.dumps(asked).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=serving.PATIENCE) as answer:  # raises if it is no 200
                self.assertEqual(len(json.load(answer)["choices"][0]["token_ids"]), 4)

    @staticmethod
    def endpoints(url):
        with urllib.request.urlopen(url + "/health", timeout=serving.PATIENCE) as answer:
            return json.load(answer)["endpoints"]

    def test_the_rollouters_metrics_count_requests(self):
        announced = json.loads((self.folder / "run/endpoints/rollouter-0.json").read_text())

        def metric(name):
            with urllib.request.urlopen(f"http://{announced['metrics']}/metrics", timeout=serving.PATIENCE) as answer:
                return float(re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)[1])

        names = ['syncopate_endpoint_requests_total{result="ok"}', 'syncopate_endpoint_requests_total{result="refused"}',
                 'syncopate_endpoint_tokens_total{kind="prompt"}', 'syncopate_endpoint_tokens_total{kind="completion"}',
                 "syncopate_endpoint_time_to_first_token_seconds_count"]
        before = [metric(name) for name in names]
        self.assertEqual(self.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 4, "return_token_ids": True})[0], 200)
        self.assertEqual(self.post("/v1/completions", {"prompt": "a text"})[0], 400)
        now = [metric(name) for name in names]
        self.assertEqual([now[i] - before[i] for i in (0, 1, 2, 4)], [1, 1, 3, 1])
        self.assertIn(now[3] - before[3], range(1, 5))
        self.assertEqual(metric("syncopate_endpoint_requests_under_way"), 0)

    def test_a_text_needs_a_tokenizer(self):
        code, answer = self.post("/v1/completions", {"prompt": "Hello"})
        self.assertEqual((code, answer["error"]["code"]), (400, "no_tokenizer"))


if __name__ == "__main__":
    binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main()
