"""The Prometheus rules: valid, each alert explained, each seen to fire and to stay quiet."""

import re
import subprocess
import tempfile
import unittest

import yaml
from sources import RULE_TESTS, RULES, SOURCE, alerts, metrics_in, rules


def promtool(*arguments):
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def anchors(markdown):
    """The places of a page that a link can name, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


class RulesTest(unittest.TestCase):
    def test_every_file_is_valid(self):
        done = promtool("check", "rules", *RULES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_alerts_fire_when_they_should_and_not_else(self):
        done = promtool("test", "rules", *RULE_TESTS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_is_seen_to_fire_and_every_recording_rule_is_evaluated(self):
        fires, evaluated = set(), set()
        for path in RULE_TESTS:
            for test in yaml.safe_load(path.read_text())["tests"]:
                for case in test.get("alert_rule_test", []):
                    if case["exp_alerts"]:
                        fires.add(case["alertname"])
                for case in test.get("promql_expr_test", []):
                    evaluated |= metrics_in(case["expr"])
        self.assertEqual({rule["alert"] for rule in alerts()} - fires, set())
        read_by_alerts = set().union(*(metrics_in(rule["expr"]) for rule in alerts()))
        recorded = {rule["record"] for rule in rules() if "record" in rule}
        self.assertEqual(recorded - evaluated - read_by_alerts, set())

    def test_every_alert_says_what_it_means_and_where_to_read_on(self):
        places = anchors((SOURCE / "docs" / "operations.md").read_text())
        for rule in alerts():
            with self.subTest(alert=rule["alert"]):
                self.assertRegex(rule["alert"], r"^Syncopate[A-Z]\w+$")
                self.assertIn(rule["labels"]["severity"], ("warning", "critical"))
                for annotation in ("summary", "description"):
                    self.assertTrue(rule["annotations"].get(annotation))
                self.assertIn("{{ $labels.run }}", rule["annotations"]["summary"])
                page, _, place = rule["annotations"]["runbook_url"].partition("#")
                self.assertEqual(page, "docs/operations.md")
                self.assertIn(place, places)
                self.assertEqual(place, rule["alert"].lower())

    def test_no_section_explains_an_alert_that_does_not_exist(self):
        page = (SOURCE / "docs" / "operations.md").read_text()
        explained = set(re.findall(r"^### (Syncopate\w+)$", page, re.MULTILINE))
        self.assertEqual(explained, {rule["alert"] for rule in alerts()})

    def test_no_two_rules_have_one_name(self):
        names = [rule.get("alert") or rule["record"] for rule in rules()]
        self.assertEqual(sorted(names), sorted(set(names)))


class KedaQueryTest(unittest.TestCase):
    """The query by which KEDA scales rollouters, evaluated over series of a run of two rollouters."""

    # Each second the trainer waits for 0.5 s, and a rollouter for 0.25 s: 2 x (1 + 0.5 - 0.25) rollouters.
    IDLE = [("syncopate_rollouter_phase_seconds_total{phase='idle', instance='a'}", "0+15x20"),
            ("syncopate_rollouter_phase_seconds_total{phase='idle', instance='b'}", "0+15x20"),
            ("syncopate_trainer_phase_seconds_total{phase='idle'}", "0+30x20")]

    def expect(self, value, more=()):
        objects = yaml.safe_load_all((SOURCE / "deploy/kustomize/components/keda/scaled-object.yaml").read_text())
        query = next(objects)["spec"]["triggers"][0]["metadata"]["query"]
        series = [{"series": name, "values": values} for name, values in [*self.IDLE, *more]]
        test = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [
            {"expr": query, "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": value}]}]}]}
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(test, file)
            file.flush()
            done = promtool("test", "rules", file.name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_wants_as_many_rollouters_as_the_trainer_calls_useful(self):
        self.expect(7, [("syncopate_useful_rollouters", "0x5 7x15")])

    def test_wants_by_the_idle_shares_before_the_trainer_has_measured_enough(self):
        self.expect(2.5, [("syncopate_useful_rollouters", "0x20")])

    def test_wants_by_the_idle_shares_of_a_trainer_that_has_no_such_metric(self):
        self.expect(2.5)


if __name__ == "__main__":
    unittest.main()
