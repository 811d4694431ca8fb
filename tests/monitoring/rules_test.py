"""The Prometheus rules: valid, each alert explained, each seen to fire and to stay quiet."""

import re
import subprocess
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


if __name__ == "__main__":
    unittest.main()
