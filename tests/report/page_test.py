"""The page of a run in a real browser.

usage: page_test.py BINARY_FOLDER
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import runs
from chromium import Chromium

LONG = 10_000  # steps
WIDTHS = (360, 800, 1920)
# The limit of the time that opening LONG steps may take, which is 2 s on an idle machine; bench/report_open.py measures it.
OPEN_SECONDS = 10
# Set it to a folder to keep the pictures that the browser has drawn.
PICTURES = os.environ.get("SYNCOPATE_REPORT_PICTURES", "")

binaries = pathlib.Path()

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Charts that have drawn a line or an area with more than one point inside their plot.
DRAWN = """[...document.querySelectorAll('.card')].filter(card =>
  [...card.querySelectorAll('path')].some(path => path.getTotalLength() > 20)).map(card => card.querySelector('h3').textContent)"""
CHARTS = ("Reward", "Evaluation", "Evaluation by file", "Evaluation by data_source", "Parts of the evaluation's reward",
          "Range of rewards", "Parts of the reward", "Groups without signal", "Loss", "Learning rate", "Entropy", "Gradient norm",
          "Staleness", "KL to the behaviour policy", "Length of answers", "Length of the evaluation's answers", "Throughput", "Idle",
          "Where a step's time goes")


def report(*arguments):
    return subprocess.run([str(binaries / "syncopate"), "report", *map(str, arguments)], capture_output=True, text=True, timeout=120)


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.browser = Chromium()
        cls.addClassCleanup(cls.browser.close)
        cls.long_run = runs.make_run(cls.folder, LONG, name="long")
        cls.pages = {}

    def page(self, name, *run_dirs):
        if name not in self.pages:
            path = self.folder / f"{name}.html"
            done = report(*run_dirs, "--output", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.strip(), str(path))
            self.pages[name] = path.as_uri()
        return self.pages[name]

    def assert_clean(self, where):
        self.assertEqual(self.browser.complaints(), [], where)
        self.assertEqual(self.browser.requests(), [], where)
        self.assertEqual(self.browser.evaluate(OVERFLOW), 0, f"{where}: it is wider than the window")

    def test_every_chart_is_drawn_at_every_width_in_light_and_dark(self):
        page = self.page("long", self.long_run)
        for width in WIDTHS:
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    self.browser.open(page, width, dark=dark)
                    self.assert_clean(width)
                    drawn = self.browser.evaluate(DRAWN)
                    self.assertEqual([name for name in CHARTS if name not in drawn], [])
                    ground = self.browser.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
                    self.assertEqual(max(ground[:3]) < 60, dark, ground)
                    if PICTURES:
                        self.browser.screenshot(f"{PICTURES}/report-{width}-{'dark' if dark else 'light'}.png")

    def test_ten_thousand_steps_open_soon_and_keep_their_extremes(self):
        seconds = self.browser.open(self.page("long", self.long_run), 1920)
        print(f"{LONG} steps opened in {seconds:.2f} s")
        self.assertLess(seconds, OPEN_SECONDS)
        shown = self.browser.evaluate("data.runs[0].steps.figures.reward_mean")
        rewards = [runs.step_line(step)["reward_mean"] for step in range(1, LONG + 1)]
        self.assertAlmostEqual(max(shown["high"]), max(rewards), places=4)
        self.assertAlmostEqual(min(shown["low"]), min(rewards), places=4)
        self.assertLess(len(shown["mean"]), 2049)

    def test_no_text_of_a_run_becomes_markup(self):
        run = runs.make_run(self.folder, 30, texts=runs.HOSTILE, every=10, name="<b>hostile<b> & co")
        page = self.page("hostile", run)
        self.browser.open(page, 1280)
        self.browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        self.assert_clean("hostile")
        self.assertIsNone(self.browser.evaluate("window.hacked"))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('img, b script, iframe, #samples svg').length"), 0)
        self.assertEqual(self.browser.evaluate("document.scripts.length"), 2)
        self.assertEqual(self.browser.evaluate("document.querySelector('h1').textContent"), "<b>hostile<b> & co")
        shown = self.browser.evaluate("[...document.querySelectorAll('.answer')].map(one => one.querySelectorAll('dd')[1].textContent)")
        # JSON has no lone surrogates, and the browser's text nodes keep NUL.
        self.assertEqual(shown, [text.encode("utf-16", "surrogatepass").decode("utf-16") for text in runs.HOSTILE])

    def test_a_policy_forbids_what_is_not_the_page(self):
        self.browser.open(self.page("long", self.long_run), 800)
        with self.assertRaises(RuntimeError):
            self.browser.evaluate("new Promise((done, fail) => { const s = document.createElement('img'); s.onload = done;"
                                  " s.onerror = () => fail(new Error('refused')); s.src = 'https://example.com/x.png' })")
        self.browser.evaluate("(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 2';"
                              " document.body.append(s) })()")
        self.assertIsNone(self.browser.evaluate("window.hacked"))

    def test_several_runs_lie_over_each_other_and_can_be_hidden(self):
        others = [runs.make_run(self.folder, steps, name=f"run-{steps}") for steps in (300, 500)]
        for width in (360, 1920):
            self.browser.open(self.page("several", self.long_run, *others), width)
            self.assert_clean(width)
            self.assertEqual(self.browser.evaluate("document.querySelectorAll('.run').length"), 3)
            legend = "[...document.querySelectorAll('.card')].find(card => card.querySelector('h3').textContent === 'Reward').querySelectorAll('.legend li').length"
            self.assertEqual(self.browser.evaluate(legend), 3)
            self.browser.evaluate("document.querySelector('.run').click()")
            self.assertEqual(self.browser.evaluate(legend), 2)
            self.assert_clean(width)
            if PICTURES:
                self.browser.screenshot(f"{PICTURES}/report-several-{width}.png")

    def test_the_keyboard_reads_a_chart(self):
        self.browser.open(self.page("long", self.long_run), 1280)
        self.browser.evaluate("document.querySelector('.plot svg').focus()")
        for key in ("End", "ArrowLeft", "ArrowLeft"):
            self.browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        words = self.browser.evaluate("document.getElementById('tooltip').hidden ? '' : document.getElementById('tooltip').textContent")
        self.assertRegex(words, r"^step 9,9\d\d · .*2027.* mean reward0\.\d+")
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", key="+", text="+")
        self.assertGreater(self.browser.evaluate("view.range.step[0]"), 1000)
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", key="0", text="0")
        self.assertIsNone(self.browser.evaluate("view.range.step"))
        self.assertEqual(self.browser.complaints(), [])

    def test_charts_are_drawn_over_what_the_reader_chooses(self):
        self.browser.open(self.page("long", self.long_run), 1280)
        for axis, pattern in (("samples", r"^2\.5\d M samples · step 9,9\d\d"), ("tokens", r"^4\d\.\d M tokens · step 9,9\d\d"),
                              ("time", r"^33:\d\d · step 9,9\d\d"), ("step", r"^step 9,9\d\d")):
            with self.subTest(axis):
                self.browser.evaluate(f"(() => {{ const over = document.getElementById('axis'); over.value = '{axis}';"
                                      " over.dispatchEvent(new Event('change')) })()")
                drawn = self.browser.evaluate(DRAWN)
                self.assertEqual([name for name in CHARTS if name not in drawn], [])
                self.browser.evaluate("document.querySelector('.plot svg').focus()")
                for key in ("End", "ArrowLeft", "ArrowLeft"):
                    self.browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
                self.assertRegex(self.browser.evaluate("document.getElementById('tooltip').textContent"), pattern)
        self.assert_clean("axes")

    def test_a_failed_run_says_why_as_the_terminal_did_and_which_checkpoint_is_the_best(self):
        run = runs.make_run(self.folder, 30, every=10, name="failed")
        (run / "summary.json").write_text(json.dumps({
            "status": "failed", "checkpoints": {"failed": 2},
            "run": {"outcome": "failed", "reason": "trainer-0 exited with code 1", "log": ["no room on <b>the</b> device", "the end"]}}))
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / "best.json").write_text('{"checkpoint": "e1-s20", "reward_mean": 0.75}')
        self.browser.open(self.page("failed", run), 1280)
        self.assert_clean("failed")
        notices = self.browser.evaluate("[...document.querySelectorAll('.notice')].map(one => one.textContent)")
        self.assertEqual(notices[:3], ["the run failed: trainer-0 exited with code 1", "no room on <b>the</b> device\nthe end",
                                       "2 checkpoints could not be saved"])
        self.assertIn("best checkpoint e1-s20: 0.75", self.browser.evaluate("document.getElementById('glance').textContent"))

    def test_it_prints(self):
        self.browser.open(self.page("long", self.long_run), 1280)
        self.browser.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.assertEqual(self.browser.evaluate("getComputedStyle(document.querySelector('.controls')).display"), "none")
        self.assertEqual(self.browser.evaluate("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)")
        self.assertGreater(len(self.browser.call("Page.printToPDF")["data"]), 20_000)
        self.browser.call("Emulation.setEmulatedMedia", media="")


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def test_the_page_goes_into_the_run_directory_unless_told_otherwise(self):
        run = runs.make_run(self.folder, 3)
        done = report(run)
        self.assertEqual((done.returncode, done.stdout), (0, f"{run}/report.html\n"))
        self.assertIn("<!doctype html>", (run / "report.html").read_text())
        self.assertIn("<!doctype html>", report(run, "--output", "-").stdout)

    def test_what_is_no_run_is_refused(self):
        done = report(self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is no run directory", done.stderr)

    def test_damage_is_named_and_the_rest_is_shown(self):
        run = runs.make_run(self.folder, 20)
        with open(run / "metrics.jsonl", "a") as lines:
            lines.write('{"kind": "step", "st\n[]\n')
        (run / "summary.json").write_text("{")
        page = report(run, "--output", "-").stdout
        self.assertIn("2 lines of metrics.jsonl are damaged", page)
        self.assertIn("summary.json is damaged", page)
        self.assertIn('"reward_mean"', page)


if __name__ == "__main__":
    binaries = pathlib.Path(sys.argv.pop())
    unittest.main()
