"""The Grafana dashboards: as generated, without a breach of the linter, and a linter that finds breaches."""

import copy
import pathlib
import subprocess
import sys
import tempfile
import unittest

import yaml
from sources import DASHBOARDS, GRAFANA, SOURCE, dashboards, filled_in, load_script, metrics_in, panels, rules

lint = load_script(GRAFANA / "lint.py")


class DashboardsTest(unittest.TestCase):
    def test_files_are_what_the_generator_makes(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-B", str(GRAFANA / "generate.py"), folder], check=True, timeout=60)
            made = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
        self.assertEqual(made, {path.name: path.read_text() for path in DASHBOARDS})

    def test_four_dashboards_pass_the_linter(self):
        self.assertEqual(set(dashboards()), {"weight-sync", "run", "rollouters", "daemons"})
        for name, dashboard in dashboards().items():
            self.assertEqual(list(lint.problems(dashboard)), [], name)

    def test_every_expression_parses(self):
        expressions = [filled_in(target["expr"], "r") for _, panel in panels() for target in panel["targets"]]
        self.assertGreater(len(expressions), 80)
        group = {"name": "panels", "rules": [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(expressions)]}
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({"groups": [group]}, file)
            file.flush()
            done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_metric_is_documented_or_recorded(self):
        recorded = {rule["record"] for rule in rules() if "record" in rule}
        page = (SOURCE / "docs" / "metrics.md").read_text()
        elsewhere = {"up", "scrape_duration_seconds"}  # made by Prometheus itself
        for where, expression in [(name, target["expr"]) for name, panel in panels() for target in panel["targets"]] + [
            (rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()
        ]:
            for metric in metrics_in(expression) - recorded - elsewhere:
                family = metric.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
                self.assertTrue(f"| `{family}` |" in page or f"| `{metric}` |" in page, f"{where} reads {metric}")


class LinterTest(unittest.TestCase):
    """Each test breaks a good dashboard in one way."""

    def setUp(self):
        self.dashboard = copy.deepcopy(dashboards()["daemons"])
        self.panel = next(panel for panel in self.dashboard["panels"] if panel["type"] == "timeseries")

    def assert_found(self, words):
        found = list(lint.problems(self.dashboard))
        self.assertTrue(any(words in problem for problem in found), f"{words!r} is not in {found}")

    def set_expression(self, expression):
        self.panel["targets"][0]["expr"] = expression

    def test_finds_a_data_source_that_is_not_the_variable(self):
        self.panel["datasource"] = {"type": "prometheus", "uid": "P1809F7CD0C75ACF3"}
        self.assert_found("does not use the variable $datasource")

    def test_finds_a_target_with_a_data_source_of_its_own(self):
        self.panel["targets"][0]["datasource"] = {"uid": "another"}
        self.assert_found("names a data source of its own")

    def test_finds_a_dashboard_without_the_variable(self):
        self.dashboard["templating"]["list"].pop(0)
        self.assert_found("has no variable $datasource")

    def test_finds_a_missing_unit(self):
        del self.panel["fieldConfig"]["defaults"]["unit"]
        self.assert_found("has no unit")

    def test_finds_a_missing_description(self):
        self.panel["description"] = ""
        self.assert_found("has no description")

    def test_finds_a_missing_legend(self):
        self.panel["targets"][0]["legendFormat"] = ""
        self.assert_found("has no legend")

    def test_finds_a_fixed_window(self):
        self.set_expression('rate(process_cpu_seconds_total{run="$run"}[5m])')
        self.assert_found("fixed window 5m")

    def test_finds_a_bare_counter(self):
        self.set_expression('sum(syncopate_steps_total{run="$run"})')
        self.assert_found("counter syncopate_steps_total is under no rate()")

    def test_finds_a_rate_of_a_gauge(self):
        self.set_expression('rate(process_resident_memory_bytes{run="$run"}[$__rate_interval])')
        self.assert_found("is no counter, but under rate()")

    def test_finds_an_expression_over_all_runs(self):
        self.set_expression('up{job="syncopate"}')
        self.assert_found('up is not limited to run="$run"')

    def test_finds_an_undefined_variable(self):
        self.set_expression('up{run="$run", pod="$pod"}')
        self.assert_found("uses $pod, which is not defined")

    def test_finds_panels_that_overlap(self):
        self.panel["gridPos"]["y"] -= 1
        self.assert_found("lies over")

    def test_finds_a_dashboard_that_asks_for_input(self):
        self.dashboard["__inputs"] = []
        self.assert_found("has __inputs")

    def test_finds_two_panels_with_one_title(self):
        last = self.dashboard["panels"][-1]
        last["title"] = self.panel["title"]
        self.assert_found("has two panels called")


if __name__ == "__main__":
    unittest.main()
