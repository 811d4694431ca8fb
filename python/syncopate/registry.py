"""Names of rewards, tasks and environments, and the decorators that give them."""
import dataclasses
import inspect
from typing import Any, Callable, Dict, Iterable, List, Optional

ASYNC_CONCURRENCY = 256  # answers that a coroutine judges at once unless it says otherwise


@dataclasses.dataclass
class Reward:
    name: str
    function: Callable[..., Any]
    concurrency: int  # 0: as the worker's processes allow
    budget: float  # seconds for the answers of one item, unless the caller gives less
    group: bool = False  # function(answers, row) judges all answers of a group together
    tokens: bool = False  # these answers have their tokens

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


@dataclasses.dataclass
class Answer:
    """One answer of a group."""
    text: str
    finish: str = "stop"  # or "length": it was cut off
    tokens: Optional[List[int]] = None  # with tokens=True
    logprobs: Optional[List[float]] = None  # one a token: with what log-probability it was sampled, 0 if it was given


@dataclasses.dataclass
class Tasks:
    name: str
    function: Callable[[], Iterable[dict]]


@dataclasses.dataclass
class ToolCall:
    """A tool that the policy calls."""
    name: str
    arguments: Any  # a dict, unless the policy is mistaken


@dataclasses.dataclass
class Action:
    """What the policy wrote in one turn."""
    text: str  # all of it
    turn: int  # from 1
    finish: str = "stop"  # or "length": it was cut off
    tool_calls: List[ToolCall] = dataclasses.field(default_factory=list)  # of the row's tools, as far as they can be read
    content: str = ""  # the text outside of these calls; "" without tools


@dataclasses.dataclass
class Turn:
    """What an environment says to it."""
    text: str = ""  # what the policy reads next, as a message of the user
    reward: Optional[float] = None  # of the action
    done: bool = False  # no action follows
    rejected: bool = False  # the sample must not be learned from; no action follows
    tool_results: List[str] = dataclasses.field(default_factory=list)  # in place of `text`: messages of the role tool


@dataclasses.dataclass
class Environment:
    name: str
    make: Callable[[], Any]  # the object of one episode
    episodes: int  # at once
    budget: float  # seconds of one call, unless the caller gives less
    tools: List[dict] = dataclasses.field(default_factory=list)  # in OpenAI's form


REWARDS: Dict[str, Reward] = {}
TASKS: Dict[str, Tasks] = {}
ENVIRONMENTS: Dict[str, Environment] = {}


def reward(name: str, *, concurrency: Optional[int] = None, budget: float = 60.0):
    """Makes `function(answer, row)` the reward `name`.

    `answer` is the text that was generated, `row` the row of the data file, a dict with all that the file has there and
    the right answer under "ground_truth" (None if the file has none). It returns a finite number, or a dict
    with that under "value" and other numbers that are shown beside it. A plain function runs in a process of a pool, where
    it may block, hang or crash; an `async def` runs beside others in the worker itself, and must not block.
    """

    def register(function):
        if name in REWARDS:
            raise ValueError(f"two rewards are named {name!r}")
        default = ASYNC_CONCURRENCY if inspect.iscoroutinefunction(function) else 0
        REWARDS[name] = Reward(name, function, default if concurrency is None else concurrency, budget)
        return function

    return register


def group_reward(name: str, *, tokens: bool = False, concurrency: Optional[int] = None, budget: float = 60.0):
    """Makes `function(answers, row)` the reward `name` that judges all answers of a group together.

    `answers` is a list of Answer, `row` as `reward` has it. It returns a list with a number, or a dict as `reward` takes it,
    for each answer in order. The answers of a group fail and are repeated together. With `tokens` an Answer has the ids and
    the log-probabilities of its tokens. A plain function runs in a process of a pool, an `async def` in the worker itself.
    """

    def register(function):
        reward(name, concurrency=concurrency, budget=budget)(function)
        REWARDS[name].group, REWARDS[name].tokens = True, tokens
        return function

    return register


def tasks(name: str):
    """Makes `function()` the list of tasks `name`: it returns or yields rows, each a dict, the same ones each time."""

    def register(function):
        if name in TASKS:
            raise ValueError(f"two lists of tasks are named {name!r}")
        TASKS[name] = Tasks(name, function)
        return function

    return register


def environment(name: str, *, tools: Iterable[dict] = (), episodes: int = 1024, budget: float = 60.0):
    """Makes a class the environment `name`. Each episode has an object of its own, made without arguments, with

        async def reset(self, task, seed)   begins the episode: `task` is the row, as rewards get it
        async def step(self, action)        answers an Action
        async def close(self)               if there is one: the episode is over, however it ended

    The first two return a Turn, a dict with its fields, a text, or None for nothing. `tools`, in OpenAI's form, are shown
    to the policy in the prompt of each row that has no field `tools` of its own; its calls come as Action.tool_calls, and
    Turn.tool_results answers them.

    An episode is played anew with the same seed when one of them raises, so it should be a function of task, seed and
    actions. They run beside others in the worker itself and must not block: what blocks goes to `asyncio.to_thread`. A call
    that is not wanted any more is cancelled, as tasks of asyncio are, at its next `await`. `close` is called when the last
    call has ended, and has 10 seconds.
    """

    def register(cls):
        if name in ENVIRONMENTS:
            raise ValueError(f"two environments are named {name!r}")
        if episodes < 1:
            raise ValueError(f"the environment {name!r} has episodes={episodes}; it must play one at least")
        for method in ("reset", "step"):
            if not inspect.iscoroutinefunction(getattr(cls, method, None)):
                raise TypeError(f"the environment {name!r} needs a method `async def {method}`")
        if hasattr(cls, "close") and not inspect.iscoroutinefunction(cls.close):
            raise TypeError(f"the method `close` of the environment {name!r} must be an `async def`")
        ENVIRONMENTS[name] = Environment(name, cls, episodes, budget, [_check_tool(tool) for tool in tools])
        return cls

    return register


def _check_tool(tool: dict) -> dict:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise TypeError(f'a tool is {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}, not {tool!r}')
    return tool


def verl_reward(name: str, **options):
    """The same for a function of verl's signature, compute_score(data_source, solution_str, ground_truth, extra_info)."""

    def register(compute_score):
        def arguments(answer, row):
            return dict(data_source=row.get("data_source"), solution_str=answer, ground_truth=row["ground_truth"],
                        extra_info=row.get("extra_info"))

        def value(score):
            return {"value": score["score"], **score} if isinstance(score, dict) else score

        if inspect.iscoroutinefunction(compute_score):
            async def function(answer, row):
                return value(await compute_score(**arguments(answer, row)))
        else:
            def function(answer, row):
                return value(compute_score(**arguments(answer, row)))
        reward(name, **options)(function)
        return compute_score

    return register
