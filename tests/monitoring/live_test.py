"""The real Prometheus over a live run with mutual TLS: every rule and every panel finds what it asks for, and labels stay bounded.

usage: live_test.py BINARY_FOLDER
"""

import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from sources import PROMETHEUS, SOURCE, alerts, filled_in, load_script, metrics_in, panels, rules

PATIENCE = 180  # seconds, for what takes a few on an idle machine
RUN = "live"
SCRAPES = 15
STEPS = 45

# The only label names that may appear. The first three belong to the target.
LABELS = {"component", "instance", "run", "job", "role", "version", "le", "phase", "transport", "kind", "result",
          "outcome", "model_name", "grpc_service", "grpc_method", "grpc_type", "grpc_code", "quantile",
          "reason", "age", "finished_reason", "rollouters", "owner"}
MOST_SERIES = 2000  # of one daemon

binaries = pathlib.Path()
metrics_doc = load_script(SOURCE / "scripts" / "metrics_doc.py")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, done):
    """Polls until `done` returns a true value, and returns the value."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        result = done()
        if result:
            return result
        time.sleep(0.5)
    raise AssertionError(f"{what}: not within {PATIENCE} s")


class LiveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.run_dir = cls.folder / RUN
        cls.log = open(cls.folder / "log", "w+b")
        cls.addClassCleanup(cls.log.close)
        certificates = cls.folder / "certificates"
        subprocess.run([str(SOURCE / "scripts/make-certs.sh"), str(certificates)], check=True, timeout=60,
                       stdout=cls.log, stderr=cls.log)
        cls.daemons = cls.start(str(binaries / "syncopate"), "run", str(SOURCE / "deploy/examples/reverse.yaml"), "--quiet",
                                f"run.dir={cls.run_dir}", "run.steps=1000000", "checkpoint.every_steps=10",
                                f"security.tls_ca={certificates}/ca.crt",
                                f"security.tls_cert={certificates}/{{role}}.crt",
                                f"security.tls_key={certificates}/{{role}}.key")
        cls.url = f"http://127.0.0.1:{free_port()}"
        cls.start(sys.executable, "-B", str(PROMETHEUS / "watch.py"), str(cls.run_dir), "--interval", "1s", "--listen",
                  cls.url.removeprefix("http://"), "--data", str(cls.folder / "prometheus"))
        try:
            wait_for("four daemons scraped", cls.enough_scraped)
        except AssertionError as error:
            cls.log.seek(0)
            raise AssertionError(f"{error}\n{cls.log.read().decode()}") from None

    @classmethod
    def start(cls, *command):
        # The child dies with the test, also if the test is killed.
        command = ["setpriv", "--pdeathsig", "INT", "--", *command]
        process = subprocess.Popen(command, stdout=cls.log, stderr=cls.log)
        cls.addClassCleanup(cls.stop, process)
        return process

    @staticmethod
    def stop(process):
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @classmethod
    def api(cls, path, **parameters):
        with urllib.request.urlopen(f"{cls.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    @classmethod
    def query(cls, expression):
        return cls.api("query", query=expression)["result"]

    @classmethod
    def enough_scraped(cls):
        if cls.daemons.poll() is not None:
            raise AssertionError("the run has ended")
        try:
            scrapes = cls.query(f'count(count_over_time(up{{job="syncopate"}}[5m]) >= {SCRAPES})')
            steps = cls.query(f"syncopate_steps_total >= {STEPS}")
            # A rule that reads another rule's record is one evaluation later.
            rounds = cls.query("run:syncopate_weight_sync_duration_seconds:p99_baseline_6h")
        except urllib.error.URLError:
            return False
        return scrapes and int(scrapes[0]["value"][1]) == 4 and steps and rounds

    def test_every_panel_shows_data(self):
        end = time.time()
        for dashboard, panel in panels():
            for target in panel["targets"]:
                with self.subTest(dashboard=dashboard, panel=panel["title"], target=target["refId"]):
                    data = self.api("query_range", query=filled_in(target["expr"], RUN), start=end - 10, end=end, step=1)
                    self.assertTrue(data["result"])

    def test_every_rule_is_evaluated_and_every_record_made(self):
        found = {rule["name"]: rule for group in self.api("rules")["groups"] for rule in group["rules"]}
        self.assertEqual(set(found), {rule.get("alert") or rule["record"] for rule in rules()})
        for name, rule in found.items():
            with self.subTest(rule=name):
                self.assertEqual(rule["health"], "ok", rule.get("lastError"))
                if rule["type"] == "recording":
                    self.assertTrue(self.query(f'{name}{{run="{RUN}"}}'))

    def test_every_metric_that_an_alert_reads_is_there(self):
        for rule in alerts():
            for metric in metrics_in(rule["expr"]):
                with self.subTest(alert=rule["alert"], metric=metric):
                    self.assertTrue(self.query(f'{metric}{{run="{RUN}"}}'))

    def test_no_alert_fires_over_a_healthy_run(self):
        self.assertEqual(self.query('ALERTS{alertstate="firing"}'), [])

    def test_variables_of_the_dashboards_find_the_run(self):
        self.assertEqual(self.api("label/run/values", **{"match[]": "syncopate_build_info"}), [RUN])
        instances = self.api("label/instance/values", **{"match[]": 'syncopate_build_info{component="rollouter"}'})
        self.assertEqual(instances, ["rollouter-0", "rollouter-1"])

    def test_labels_are_bounded_and_series_do_not_multiply(self):
        for series in self.api("series", **{"match[]": '{job="syncopate"}'}):
            self.assertLessEqual(set(series) - {"__name__"}, LABELS, series)
        samples = 'scrape_samples_post_metric_relabeling{job="syncopate"}'
        most = self.query(f"max_over_time({samples}[5m])")
        self.assertEqual(len(most), 4)
        for daemon in most:
            self.assertLess(float(daemon["value"][1]), MOST_SERIES, daemon)
        self.assertEqual(self.query(f"max_over_time({samples}[5m]) > (min_over_time({samples}[5m]) > 0)"), [])

    def test_every_daemon_passes_promtool_but_for_the_names_of_vllm(self):
        for role, text in metrics_doc.scrape_run(self.run_dir).items():
            done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
            complaints = [line for line in (done.stdout + done.stderr).splitlines() if line]
            allowed = [line for line in complaints if line.startswith("vllm:") and line.endswith("should not contain ':'")]
            self.assertEqual(complaints, allowed, role)
            self.assertEqual(len(allowed), 11 if role == "rollouter" else 0, role)

    def test_the_page_of_metrics_is_current(self):
        page = (SOURCE / "docs" / "metrics.md").read_text()
        self.assertEqual(metrics_doc.page_of_run(self.run_dir), page,
                         "write it again: scripts/metrics_doc.py RUN_DIR > docs/metrics.md")

    def test_pictures_are_drawn(self):
        folder = self.folder / "pictures"
        command = [sys.executable, "-B", str(SOURCE / "scripts/monitoring_pictures.py"), self.url, RUN, str(folder), "30"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("weight-sync", "run"):
            self.assertGreater((folder / f"dashboard-{name}.png").stat().st_size, 50_000)


if __name__ == "__main__":
    binaries = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
