"""Every Python sample of the documentation does what its page says. Run: python -m unittest -v (in python/).

A sample is a fenced block that begins with ```python. One that nothing here can run has a line
<!-- not run: WHY --> above it.
"""
import glob
import http.server
import inspect
import json
import os
import re
import socket
import sys
import threading
import time
import unittest
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

from syncopate import judging, registry  # noqa: E402
from tests import real_packages  # noqa: E402

real_packages.load()

# A row as rewards get it: docs/rewards.md, "The row".
ROW = {"prompt": "What is 12 + 30?", "answer": "42", "ground_truth": "42"}

_FENCE = re.compile(r"^( *)(`{3,})(\w*)[^\n]*\n(.*?)^ *\2 *$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- not run: .+ -->\s*$")
_PYTHON = re.compile(r"^ {4,}(?:from [\w.]+ import |import \w|def \w+\(|@\w+\(|async def )", re.MULTILINE)


def pages():
    found = sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))
    return [os.path.join(ROOT, "README.md"), os.path.join(ROOT, "python", "README.md"), *found]


def samples():
    """(page:line, code) of each that is to be run."""
    for page in pages():
        with open(page) as file:
            text = file.read()
        for block in _FENCE.finditer(text):
            if block[3] != "python" or _MARKER.search(text[:block.start()]):
                continue
            yield f"{os.path.relpath(page, ROOT)}:{text[:block.start()].count(chr(10)) + 1}", block[4]


class DocumentationTest(unittest.TestCase):
    def setUp(self):
        registry.REWARDS.clear()
        registry.TASKS.clear()
        registry.ENVIRONMENTS.clear()

    def test_every_sample_runs(self):
        ran = 0
        for place, code in samples():
            with self.subTest(place):
                self.setUp()
                if "serve_forever" in code:
                    self.check_service(code)
                elif "from openai import" in code:
                    compile(code, place, "exec")  # a client of the endpoint: without one it only has to be Python
                else:
                    if "from openenv" in code:
                        code = code.replace("127.0.0.1:8000", self.start_openenv())
                    exec(compile(code, place, "exec"), {"__name__": "sample"})
                    self.assertTrue(registry.REWARDS or registry.TASKS or registry.ENVIRONMENTS, "it registers nothing")
                    self.check_functions()
                ran += 1
        self.assertGreater(ran, 0)

    def test_the_example_file_runs(self):
        judging.load([os.path.join(ROOT, "deploy", "examples", "custom_reward.py")])
        self.assertEqual(set(registry.REWARDS), {"short", "polite", "verl_exact"})
        self.check_functions()

    def test_the_example_environment_runs(self):
        judging.load([os.path.join(ROOT, "deploy", "examples", "guess_number.py")])
        self.assertEqual(set(registry.ENVIRONMENTS), {"guess_number"})
        self.check_functions()

    def test_no_sample_hides_in_an_indented_block(self):
        for page in pages():
            with open(page) as file:
                outside = _FENCE.sub("", file.read())
            self.assertIsNone(_PYTHON.search(outside), f"{page}: write Python in a ```python block")

    def check_functions(self):
        for reward in registry.REWARDS.values():
            if reward.group:
                self.check_group_function(reward)
                continue
            values = {}
            for answer in ("It is 42", "no idea, please"):
                returned = reward.function(answer, dict(ROW))
                if inspect.isawaitable(returned):
                    returned = self.complete(returned)
                outcome = judging.outcome(returned)
                self.assertEqual(outcome.message, "", f"{reward.name}({answer!r})")
                values[answer] = outcome.value
            if reward.name != "verl_exact":  # only for the answer that is nothing else
                self.assertEqual(len(set(values.values())), 2, f"{reward.name} judges both answers alike")
        for environment in registry.ENVIRONMENTS.values():
            self.complete(getattr(self, f"check_{environment.name}", self.check_environment)(environment))
        for listed in registry.TASKS.values():
            rows = list(listed.function())
            self.assertGreater(len(rows), 0)
            for row in rows:
                self.assertIsInstance(json.loads(json.dumps(row))["prompt"], (str, list))

    def check_group_function(self, reward):
        answers = [registry.Answer(text, "stop", list(range(size)), [-0.5] * size)
                   for text, size in (("It is 42", 4), ("It must be 42", 5), ("no idea", 2))]
        returned = reward.function(answers, dict(ROW))
        if inspect.isawaitable(returned):
            returned = self.complete(returned)
        self.assertEqual([one.value for one in judging.group_outcomes(returned, 3)], [1, 0, 0])

    async def check_environment(self, environment):
        episode = environment.make()
        self.assertEqual(judging.said(await episode.reset(dict(ROW), 7), None).text, "")
        for turn, (text, said) in enumerate([("1", "higher"), ("99", "lower"), ("no idea", None)], 1):
            answer = judging.said(await episode.step(registry.Action(text, turn)), None)
            self.assertLess(answer.reward, 0, text)
            self.assertIn(answer.text, [said] if said else ["higher", "Write a number."])
        self.assertEqual(judging.said(await episode.step(registry.Action("42", 4)), None).value, 1.0)

    async def check_shop(self, environment):
        episode = environment.make()
        await episode.reset({"prices": {"tea": 250}}, 7)
        call = registry.ToolCall("price", {"article": "tea"})
        answer = judging.said(await episode.step(registry.Action("...", 1, tool_calls=[call])), None)
        self.assertEqual(answer.tool_results, ["250"])
        self.assertEqual(judging.said(await episode.step(registry.Action("It is 250.", 2)), None).value, 1.0)

    async def check_adder(self, environment):
        self.assertEqual([tool["function"]["name"] for tool in environment.tools], ["add"])
        episode = environment.make()
        self.assertEqual(judging.said(await episode.reset(dict(ROW), 7), None).text, "")
        call = registry.ToolCall("add", {"a": 12, "b": 30})
        answer = judging.said(await episode.step(registry.Action("...", 1, tool_calls=[call])), None)
        self.assertEqual(answer.tool_results, ["42"])
        self.assertEqual(judging.said(await episode.step(registry.Action("It is 42.", 2)), None).code, 0)
        await episode.close()

    async def check_gsm8k_multi_turn(self, environment):
        episode = environment.make()
        self.assertEqual(judging.said(await episode.reset(dict(ROW), 7), None).text, "")
        answer = judging.said(await episode.step(registry.Action("#### 41", 1)), None)
        self.assertIn("numeric answer", answer.text)
        self.assertEqual(judging.said(await episode.step(registry.Action("#### 42", 2)), None).value, 1.0)
        await episode.close()

    async def check_echo(self, environment):
        episode = environment.make()
        await episode.reset(dict(ROW), 2**63)
        answer = judging.said(await episode.step(registry.Action("Hello", 1)), None)
        self.assertEqual((json.loads(answer.text)["echoed_message"], answer.reward), ("Hello", 0.5))
        self.assertEqual(judging.said(await episode.step(registry.Action("bye", 2)), None).value, 0.25)
        await episode.close()

    def start_openenv(self):
        """Where a server of openenv listens, with the echo environment of its templates."""
        import uvicorn
        from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

        class EchoAction(Action):
            message: str

        class EchoObservation(Observation):
            echoed_message: str

        class EchoEnvironment(Environment):
            SUPPORTS_CONCURRENT_SESSIONS = True
            state = State()

            def reset(self, seed=None, episode_id=None, **options):
                return EchoObservation(echoed_message="ready")

            def step(self, action, timeout_s=None, **options):
                is_last = action.message == "bye"
                return EchoObservation(echoed_message=action.message, reward=0.25 if is_last else 0.5, done=is_last)

        app = create_fastapi_app(EchoEnvironment, EchoAction, EchoObservation, max_concurrent_envs=4)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        listening = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        limit = time.monotonic() + 20
        while not server.started and time.monotonic() < limit:
            time.sleep(0.01)

        def stop():
            server.should_exit = True
            thread.join(10)
        self.addCleanup(stop)
        return "127.0.0.1:%d" % listening.getsockname()[1]

    @staticmethod
    def complete(coroutine):
        import asyncio
        return asyncio.run(coroutine)

    def check_service(self, code):
        """A service of "http": asked as docs/rewards.md says, at a free port instead of the sample's."""
        started = []

        class Server(http.server.ThreadingHTTPServer):
            def __init__(self, address, handler):
                super().__init__((address[0], 0), handler)

            def serve_forever(self, poll_interval=0.01):
                started.append(self)
                thread = threading.Thread(target=super().serve_forever, args=(poll_interval,), daemon=True)
                thread.start()

        original = http.server.ThreadingHTTPServer
        http.server.ThreadingHTTPServer = Server
        try:
            exec(compile(code, "service", "exec"), {"__name__": "__main__"})
        finally:
            http.server.ThreadingHTTPServer = original
        server, = started
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        answers = [{"text": text, "finish": "stop", "row": ROW} for text in ("It is 42", "no idea")]
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/score",
                                         json.dumps({"answers": answers}).encode(), {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as response:
            self.assertEqual(json.load(response), {"rewards": [1.0, 0.0]})


if __name__ == "__main__":
    unittest.main()
