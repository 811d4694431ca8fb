"""Environments made of verl's tools and of SkyRL-gym's, with the packages of PyPI, as a rollouter plays them."""
import asyncio
import json
import os
import unittest

from syncopate import registry
from syncopate.adapters import tool_calls
from syncopate.adapters.skyrl_gym import skyrl_gym_environment
from syncopate.adapters.verl import tool_schemas, verl_tools
from tests import real_packages
from tests.test_play import PlayCase

real_packages.load()

from skyrl_gym.core import Env  # noqa: E402
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput  # noqa: E402
from verl.tools.base_tool import BaseTool  # noqa: E402
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse  # noqa: E402

# Tools and environments write what happens into a file of the row.
VERL_CODE = '''
from tests import real_packages
real_packages.load()
import asyncio
from syncopate.adapters.verl import verl_tools
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

def schema(name, **types):
    properties = {key: {"type": kind} for key, kind in types.items()}
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": {
        "name": name, "description": "a tool", "parameters": {"type": "object", "properties": properties, "required": []}}})

def log(file, what):
    with open(file, "a") as out: out.write(what + "\\n")

class Add(BaseTool):
    """Remembers the sum of each episode, and rewards the right one."""
    sums = {}
    async def create(self, instance_id=None, **kwargs):
        options = kwargs["create_kwargs"]
        self.sums[instance_id] = [options["log"], options.get("truth"), None]
        log(options["log"], "create")
        if options.get("fails"): raise RuntimeError("no sandbox is left")
        return instance_id, ToolResponse(text=options.get("says"))
    async def execute(self, instance_id, parameters, **kwargs):
        file = self.sums[instance_id][0]
        log(file, "execute")
        do = parameters.get("do")
        if do == "raise": raise KeyError("the disk is full")
        if do == "picture": return ToolResponse(text="see", image=["pixels"]), 0.0, {}
        if do == "nothing": return None
        if do == "wait":
            try:
                log(file, "waits")
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                log(file, "cancelled")
                raise
        self.sums[instance_id][2] = parameters["a"] + parameters["b"]
        return ToolResponse(text=str(self.sums[instance_id][2])), 0.25, {"calls": 1}
    async def calc_reward(self, instance_id, **kwargs):
        file, truth, total = self.sums[instance_id]
        log(file, "calc_reward")
        return 1.0 if total == truth else 0.0
    async def release(self, instance_id, **kwargs):
        file = self.sums.pop(instance_id)[0]
        log(file, "release")
        if file.endswith("!"): raise RuntimeError("release has failed")

class Plain:
    """Of a version whose methods are no coroutines, with an id and a text as answers."""
    name, tool_schema = "read", schema("read", file="string").model_dump()
    logs = {}
    def create(self, instance_id, log, **kwargs):
        self.logs[instance_id] = log
        return instance_id
    def execute(self, instance_id, parameters):
        log(self.logs[instance_id], "reads")
        with open(parameters["file"]) as file: return file.read(), None, {}
    def calc_reward(self, instance_id): return 0.0
    def release(self, instance_id): log(self.logs.pop(instance_id), "release")

class Echo(BaseTool):
    """Only what a BaseTool has by itself."""

add = Add({}, schema("add", a="integer", b="integer", do="string"))
verl_tools("adder", [add])
verl_tools("strict", [add], errors="fail")
verl_tools("short", [add], max_turns=2, max_calls=1)
verl_tools("plain", [Plain()])
verl_tools("plain alone", [Plain()], threads=1)
verl_tools("two", [add, Echo({}, schema("echo"))])
'''

SKYRL_CODE = '''
from tests import real_packages
real_packages.load()
from syncopate.adapters.skyrl_gym import skyrl_gym_environment
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.tools.core import ToolGroup, tool

class Files(ToolGroup):
    def __init__(self): super().__init__("files")
    @tool
    def read(self, path):
        with open(path) as file: return file.read()

class Reader(BaseTextEnv):
    """Reads the file that a turn names; it blocks as long as nobody writes into that."""
    def __init__(self, env_config=None, extras={}):
        super().__init__()
        self.file, self.extras = extras["file"], extras
        self.init_tool_groups([Files()])
        self.log("made")
    def init(self, prompt):
        self.log("init")
        return ([*prompt, prompt[0]] if self.extras.get("more") else prompt), {}
    def step(self, action):
        self.log("step")
        message = {"role": "user", "content": self._execute_tool("files", "read", [action]) if "/" in action else action}
        output = BaseTextEnvStepOutput(observations=[message], reward=0.5, done=action == "end", metadata={})
        if action == "raise": raise KeyError("no such shelf")
        if action == "two": output["observations"].append(message)
        if action == "tool": message["role"] = "tool"
        if action == "cut": output["postprocessed_action"] = "cu"
        if action == "none": return None
        return output
    def close(self): self.log("close")
    def log(self, what):
        with open(self.file, "a") as out: out.write(what + "\\n")

skyrl_gym_environment("gsm8k_multi_turn", max_turns=3)
skyrl_gym_environment("reader", Reader)
skyrl_gym_environment("alone", Reader, threads=1)
'''


# That a row has tools is what matters to the worker: which ones is between trainer and policy.
TOOLS = [{"type": "function", "function": {"name": "add"}}]


def call(**arguments):
    return f'<tool_call>\n{json.dumps({"name": "add", "arguments": arguments})}\n</tool_call>'


def answer(*texts):
    return "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)


class VerlToolsTest(PlayCase):
    code = VERL_CODE

    async def begin_tools(self, environment, suffix="", **options):
        """The file that is written into, which is the episode's name too, and what was said first."""
        file = self.new_file() + suffix
        options = {"create_kwargs": dict(options, log=file)}
        row = {"tools": TOOLS, "extra_info": {"tools_kwargs": {"add": options, "read": options}}}
        said = await self.begin(environment, episode=file, row=json.dumps(row))
        return file, said

    async def test_shows_its_tools(self):
        described = await self.channel.unary_unary(
            "/syncopate.v1.EnvironmentService/Describe",
            request_serializer=self.message("DescribeRequest").SerializeToString,
            response_deserializer=self.message("DescribeResponse").FromString)(self.message("DescribeRequest")())
        two, = (one for one in described.environments if one.name == "two")
        shown = json.loads(two.tools_json)
        self.assertEqual([one["function"]["name"] for one in shown], ["add", "echo"])
        self.assertEqual(shown[0]["function"]["parameters"]["properties"]["a"], {"type": "integer"})

    async def test_plays_a_whole_episode(self):
        file, said = await self.begin_tools("adder", truth=5)
        self.assertEqual((said.turn, said.text), (0, ""))
        await self.act("I add ...", 1, file, calls=[("add", '{"a": 2, "b": 2}')], content="I add")
        said = await self.read()
        self.assertEqual((said.turn, list(said.tool_results), said.text, said.reward), (1, ["4"], "", 0.25))
        await self.act("...", 2, file, calls=[("add", '{"a": 2, "b": 3}')])
        self.assertEqual(list((await self.read()).tool_results), ["5"])
        await self.act("It is 5.", 3, file, content="It is 5.")
        said = await self.read()
        self.assertEqual((said.turns, said.outcome.reward.value), (3, 1.0))
        self.assertEqual(await self.lines(file, "release"), ["create", "execute", "execute", "calc_reward", "release"])

    async def test_calls_that_come_as_text_are_answered_as_text(self):
        file, _ = await self.begin_tools("adder", truth=5)
        await self.act("I add." + call(a=2, b=3), 1, file)
        said = await self.read()
        self.assertEqual((said.text, list(said.tool_results), said.reward), (answer(5), [], 0.25))
        await self.act("It is 5.", 2, file)
        self.assertEqual((await self.read()).outcome.reward.value, 1.0)

    async def test_what_a_tool_says_to_its_creation_comes_first(self):
        _, said = await self.begin_tools("adder", says="two files are open")
        self.assertEqual(said.text, "two files are open")

    async def test_each_episode_has_instances_of_its_own(self):
        one, _ = await self.begin_tools("adder", truth=5)
        other, _ = await self.begin_tools("adder", truth=5)
        for episode, b in ((one, 3), (other, 4)):
            await self.act(call(a=2, b=b), 1, episode)
            await self.read()
        for episode, reward in ((other, 0), (one, 1)):
            await self.act("done", 2, episode)
            self.assertEqual((await self.read()).outcome.reward.value, reward)

    async def test_calls_of_a_turn_are_answered_in_order_and_their_rewards_added(self):
        file, _ = await self.begin_tools("adder")
        await self.act("...", 1, file, calls=[("add", '{"a": 1, "b": 1}'), ("add", '{"a": 2, "b": 2}')])
        said = await self.read()
        self.assertEqual((list(said.tool_results), said.reward), (["2", "4"], 0.5))

    async def test_what_cannot_be_called_is_answered_with_what_is_wrong(self):
        file, _ = await self.begin_tools("adder")
        for turn, (text, wrong) in enumerate([
                ('<tool_call>{"name": "add", </tool_call>', "it is no JSON"),
                ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "its arguments are no JSON object"),
                ('<tool_call>{"name": "add", "argu', "it has no </tool_call>"),
                ('<tool_call>{"name": "sub", "arguments": {}}</tool_call>', "Unknown function 'sub'. Available tools: ['add']"),
                (call(do="raise"), "Error executing tool 'add': 'the disk is full'"),
                (call(a=1), "Error executing tool 'add': 'b'")], 1):
            await self.act(text, turn, file)
            said = await self.read()
            self.assertIn(wrong, said.text)
            self.assertEqual(said.reward, 0)
        await self.act("...", 7, file, calls=[("add", "[1]"), ("add", "{broken"), ("sub", "{}")])
        for said, wrong in zip((await self.read()).tool_results, ("no JSON object", "no JSON", "Unknown function 'sub'")):
            self.assertIn(wrong, said)

    async def test_a_turn_has_as_many_calls_as_it_may(self):
        file, _ = await self.begin_tools("short")
        await self.act(call(a=1, b=1) + call(a=2, b=2), 1, file)
        self.assertEqual((await self.read()).text, answer(2, "Not called: a turn may have 1 calls"))

    async def test_the_last_turn_is_judged_although_it_calls(self):
        file, _ = await self.begin_tools("short", truth=4)
        await self.act(call(a=1, b=1), 1, file)
        await self.read()
        await self.act(call(a=2, b=2), 2, file)
        self.assertEqual((await self.read()).outcome.reward.value, 1.25)

    async def test_an_error_fails_the_episode_where_it_shall(self):
        file, _ = await self.begin_tools("strict")
        await self.act(call(do="raise") + call(do="wait"), 1, file)
        said = await self.read()
        self.assertEqual(said.outcome.error.code, 2)
        self.assertRegex(said.outcome.error.message, r"^KeyError: 'the disk is full' \(code.py:\d+ in execute\)$")
        lines = await self.lines(file, "release")
        self.assertEqual((lines[-1], "waits" in lines), ("release", "cancelled" in lines), "the other call was told to end")

    async def test_what_is_no_text_fails_the_episode(self):
        for do, message in (("picture", "the tool 'add' answered with images"),
                            ("nothing", "execute of the tool 'add' returned")):
            file, _ = await self.begin_tools("adder")
            await self.act(call(do=do), 1, file)
            self.assertIn(message, (await self.read()).outcome.error.message)
            self.assertEqual((await self.lines(file, "release"))[-1], "release")

    async def test_a_tool_that_cannot_be_created_fails_the_episode_and_is_released(self):
        file, said = await self.begin_tools("adder", fails=True)
        self.assertIn("RuntimeError: no sandbox is left", said.outcome.error.message)
        self.assertEqual(await self.lines(file, "release"), ["create", "release"])

    async def test_a_release_that_fails_spoils_nothing(self):
        for _ in range(2):
            file, _ = await self.begin_tools("adder", suffix="!")
            await self.act("done", 1, file)
            self.assertTrue((await self.read()).outcome.HasField("reward"))
            self.assertEqual((await self.lines(file, "release"))[-1], "release")

    async def test_a_cancel_reaches_the_tool_before_its_release(self):
        file, _ = await self.begin_tools("adder")
        await self.act(call(do="wait"), 1, file)
        await self.lines(file, "waits")
        await self.cancel(file)
        self.assertEqual((await self.read()).outcome.error.code, 1)
        self.assertEqual(await self.lines(file, "release"), ["create", "execute", "waits", "cancelled", "release"])

    async def test_the_end_of_the_stream_releases(self):
        file, _ = await self.begin_tools("adder")
        await self.act(call(a=1, b=1), 1, file)
        await self.read()
        self.call.cancel()
        self.assertEqual(await self.lines(file, "release"), ["create", "execute", "release"])

    async def test_plain_methods_run_in_threads_and_their_instance_is_released_when_they_return(self):
        file, said = await self.begin_tools("plain")
        self.assertEqual(said.text, "")
        path = self.new_file()
        os.unlink(path)
        os.mkfifo(path)
        await self.act(f'<tool_call>{json.dumps({"name": "read", "arguments": {"file": path}})}</tool_call>', 1, file)
        await self.lines(file, "reads")
        await self.cancel(file)
        self.assertEqual((await self.read()).outcome.error.code, 1, "the cancel is answered while the thread blocks")
        other, _ = await self.begin_tools("plain")
        await self.act("nothing", 1, other)
        self.assertEqual((await self.read()).outcome.reward.value, 0, "others are played meanwhile")
        await self.lines(other, "release")
        self.assertEqual(await self.lines(file, "reads"), ["reads"])
        await asyncio.to_thread(lambda: open(path, "w").close())
        self.assertEqual(await self.lines(file, "release"), ["reads", "release"])

    async def test_an_instance_is_released_although_all_threads_are_lost(self):
        idle, _ = await self.begin_tools("plain alone")
        file, _ = await self.begin_tools("plain alone")
        path = self.new_file()
        os.unlink(path)
        os.mkfifo(path)
        await self.act(f'<tool_call>{json.dumps({"name": "read", "arguments": {"file": path}})}</tool_call>', 1, file)
        await self.lines(file, "reads")
        await self.cancel(file)
        await self.read()
        await self.cancel(idle)
        self.assertEqual(await self.lines(idle, "release"), ["release"])
        await asyncio.to_thread(lambda: open(path, "w").close())
        self.assertEqual(await self.lines(file, "release"), ["reads", "release"])

    async def test_more_calls_than_a_turn_has_results_do_not_end_the_episode(self):
        file, _ = await self.begin_tools("short")
        await self.act("...", 1, file, calls=[("add", '{"a": 1, "b": 2}')] * 300)
        said = await self.read()
        self.assertEqual(list(said.tool_results), ["3", *["Not called: a turn may have 1 calls"] * 255])

    async def test_a_row_may_select_tools(self):
        file = self.new_file()
        row = {"tools": TOOLS, "extra_info": {"tool_selection": ["echo"]}}
        await self.begin("two", episode=file, row=json.dumps(row))
        await self.act(call(a=1, b=1), 1, file)
        self.assertIn("Available tools: ['echo']", (await self.read()).text)
        await self.act('<tool_call>{"name": "echo", "arguments": {}}</tool_call>', 2, file)
        self.assertEqual((await self.read()).text, answer("Updated the tool state."))
        said = await self.begin("two", episode="unknown", row='{"tools": [{}], "extra_info": {"tool_selection": ["sub"]}}')
        self.assertIn("tool_selection has 'sub'; the environment has add, echo", said.outcome.error.message)


class SkyRLGymTest(PlayCase):
    code = SKYRL_CODE

    async def begin_reader(self, environment="reader", **row):
        file = self.new_file()
        said = await self.begin(environment, episode=file, row=json.dumps(dict(row, file=file, prompt="Read.")))
        return file, said

    async def blocked(self, environment):
        """The file of an episode whose step blocks, and of a FIFO that it waits for."""
        path = self.new_file()
        os.unlink(path)
        os.mkfifo(path)
        file, _ = await self.begin_reader(environment)
        await self.act(path, 1, file)
        await self.lines(file, "step")
        return file, path

    async def test_plays_a_whole_episode_of_one_that_it_has(self):
        row = '{"prompt": "What is 12 + 30?", "ground_truth": "42"}'
        self.assertEqual((await self.begin("gsm8k_multi_turn", row=row)).text, "")
        await self.act("#### 41", 1)
        said = await self.read()
        self.assertIn("tentative numeric answer", said.text)
        self.assertAlmostEqual(said.reward, 0.2 / 3, 6, "max_turns is the environment's")
        await self.act("#### 42", 2)
        self.assertEqual((await self.read()).outcome.reward.value, 1.0)

    async def test_plays_a_class_of_yours_and_closes_it(self):
        file, _ = await self.begin_reader()
        path = self.new_file()
        with open(path, "w") as out:
            out.write("what the file has")
        await self.act(path, 1, file)
        said = await self.read()
        self.assertEqual((said.text, said.reward), ("what the file has", 0.5))
        await self.act("end", 2, file)
        self.assertEqual((await self.read()).outcome.reward.value, 0.5)
        self.assertEqual(await self.lines(file, "close"), ["made", "init", "step", "step", "close"])

    async def test_an_error_fails_the_episode_and_closes_it(self):
        for text, message in (("raise", r"KeyError: 'no such shelf' \(code.py:\d+ in step\)"),
                              ("two", r"step of Reader observes 2 messages \(user, user\)"),
                              ("tool", r"step of Reader observes 1 messages \(tool\)"),
                              ("cut", r"step of Reader changes the action \(postprocessed_action\)"),
                              ("none", "step of Reader returned NoneType, which is no BaseTextEnvStepOutput")):
            file, _ = await self.begin_reader()
            await self.act(text, 1, file)
            self.assertRegex((await self.read()).outcome.error.message, message)
            self.assertEqual((await self.lines(file, "close"))[-1], "close", text)

    async def test_an_init_that_changes_the_prompt_is_refused_by_name(self):
        file, said = await self.begin_reader(more=True)
        self.assertIn("init of Reader changes the prompt", said.outcome.error.message)
        self.assertEqual((await self.lines(file, "close"))[-1], "close")

    async def test_a_cancel_is_answered_while_a_step_blocks_and_close_waits_for_the_step(self):
        file, path = await self.blocked("reader")
        await self.cancel(file)
        self.assertEqual((await self.read()).outcome.error.code, 1)
        other, _ = await self.begin_reader()
        await self.act("end", 1, other)
        await self.read()
        self.assertEqual(await self.lines(file, "step"), ["made", "init", "step"])
        await asyncio.to_thread(lambda: open(path, "w").close())
        self.assertEqual(await self.lines(file, "close"), ["made", "init", "step", "close"])

    async def test_threads_that_never_return_are_said(self):
        file, path = await self.blocked("alone")
        await self.cancel(file)
        await self.read()
        _, said = await self.begin_reader("alone")
        self.assertIn("all 1 threads of the environment 'alone' are in calls that were cancelled", said.outcome.error.message)
        await asyncio.to_thread(lambda: open(path, "w").close())
        await self.lines(file, "close")
        _, said = await self.begin_reader("alone")
        self.assertEqual(said.turn, 0, "it plays again")

    async def test_an_episode_is_closed_although_all_threads_are_lost(self):
        idle, _ = await self.begin_reader("alone")
        file, path = await self.blocked("alone")
        await self.cancel(file)
        await self.read()
        await self.cancel(idle)
        self.assertEqual(await self.lines(idle, "close"), ["made", "init", "close"])
        self.assertEqual(await self.lines(file, "step"), ["made", "init", "step"])
        await asyncio.to_thread(lambda: open(path, "w").close())
        await self.lines(file, "close")


def schema(name):
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": {"name": name, "description": "a tool"}})


class RegistrationTest(unittest.TestCase):
    def setUp(self):
        registry.ENVIRONMENTS.clear()

    def tearDown(self):
        registry.ENVIRONMENTS.clear()

    def test_schemas_are_in_openais_form(self):
        shown, = tool_schemas([BaseTool({}, schema("look"))])
        self.assertEqual((shown["type"], shown["function"]["name"]), ("function", "look"))
        json.dumps(shown)

    def test_tools_that_cannot_be_played_are_refused_by_name(self):
        class Greedy(BaseTool):
            async def execute(self, instance_id, parameters, agent_data): return ToolResponse(text=""), 0.0, {}

        class Function:
            name, tool_schema = "f", {}
            async def call(self, parameters): return ""

        class Nameless(BaseTool):
            def __init__(self): pass

        tool = BaseTool({}, schema("look"))
        for tools, options, message in (
                ([], {}, "'x' has no tools"), ([BaseTool], {}, "'x' has the class BaseTool; give it an object"),
                ([Function()], {}, "a Function, which is no BaseTool of verl: it has no create"),
                ([Nameless()], {}, "a Nameless without name or tool_schema"),
                ([tool, tool], {}, "two tools named 'look'"),
                ([Greedy({}, schema("eat"))], {}, "execute of the tool 'eat': it needs agent_data"),
                ([tool], {"errors": "hide"}, "errors='hide'"),
                ([tool], {"max_turns": 0}, "max_turns of at least 1"), ([tool], {"threads": 0}, "threads=0")):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                verl_tools("x", tools, **options)
        self.assertEqual(registry.ENVIRONMENTS, {})

    def test_environments_that_cannot_be_played_are_refused_by_name(self):
        class Numbers(Env):
            def step(self, action): return action

        class Still(BaseTextEnv):
            def __init__(self, env_config=None, extras={}): super().__init__()

        class Bare(BaseTextEnv):
            def step(self, action): return BaseTextEnvStepOutput(observations=[], reward=0.0, done=True, metadata={})

        class Later(Still):
            async def init(self, prompt): return prompt, {}
            step = Bare.step

        for env, message in (("chess", "'chess', which skyrl_gym has not; it has aime"),
                             (Numbers, "subclass of skyrl_gym's BaseTextEnv"),
                             (Still, "Still, which has no step of its own"), (Bare, "Bare, which cannot be made with env_config"),
                             (Later, "Later, whose init is an `async def`"), (Bare(), "must be a subclass")):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                skyrl_gym_environment("x", env)
        self.assertEqual(registry.ENVIRONMENTS, {})


class ToolCallsTest(unittest.TestCase):
    def read(self, text):
        return [(one.name, one.arguments, one.error) for one in tool_calls.read_calls(text)]

    def test_thoughts_call_nothing(self):
        thought = '<think>I could <tool_call>{"name": "a"}</tool_call></think>'
        self.assertEqual(self.read(thought + "no"), [])
        self.assertEqual(self.read(thought + '<tool_call>{"name": "b"}</tool_call>'), [("b", {}, "")])

    def test_arguments_may_be_a_text_of_json(self):
        text = '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>'
        self.assertEqual(self.read(text), [("a", {"x": 1}, "")])

    def test_brackets_in_brackets_are_no_call(self):
        (_, _, error), = self.read("<tool_call>" + "[" * 100_000 + "</tool_call>")
        self.assertIn("no JSON", error)


if __name__ == "__main__":
    unittest.main()
