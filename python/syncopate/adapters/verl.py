"""An environment made of verl's tools: objects of classes that derive from verl.tools.base_tool.BaseTool.

    verl_tools("shop", [Search(config={}, tool_schema=None)])

The policy reads the tools' schemas in its prompt. Each episode has an instance of each tool: `create` when it begins,
`execute` for each call that the policy writes, `calc_reward` when it writes a turn without a call, which ends the episode, and
`release` however the episode ends. The methods may be `async def`, as verl's are, or plain, and then run in threads.
"""
import asyncio
import inspect
import uuid
from typing import Any, Dict, List, Optional

from .. import judging, registry
from . import tool_calls
from .blocking import Caller, Threads

_METHODS = ("create", "execute", "calc_reward", "release")


def tool_schemas(tools) -> List[dict]:
    """verl's schemas of the tools in OpenAI's form, as a row may have them under `tools`."""
    return [_schema(tool) for tool in tools]


def verl_tools(name: str, tools, *, max_turns: Optional[int] = None, max_calls: int = 8, errors: str = "tell",
               threads: int = 32, episodes: int = 1024, budget: float = 60.0) -> None:
    """Makes the environment `name` of tools that all episodes share, as verl's do.

    A turn's reward is the sum of what `execute` gave; the last one's has what `calc_reward` of each tool gives, too.
    `max_turns`: the turn after which `calc_reward` is asked in any case; give it where rollout.max_turns has a limit that
    is reached. `max_calls`: of one turn; more are answered with an error. `errors`: what an exception of `execute` is,
    "tell": an answer that the policy reads, as in verl, or "fail": a failure of the episode, which is played anew.
    `threads`: for methods that are no `async def`.
    """
    tools = list(tools)
    if errors not in ("tell", "fail"):
        raise ValueError(f"the environment {name!r} has errors={errors!r}; it is 'tell' or 'fail'")
    if max_calls < 1 or (max_turns is not None and max_turns < 1):
        raise ValueError(f"the environment {name!r} needs max_calls and max_turns of at least 1")
    _check_tools(name, tools)
    setting = _Setting({tool.name: tool for tool in tools}, max_turns, max_calls, errors == "tell", Threads(name, threads))
    episode = type(f"verl_tools({name!r})", (_Episode,), {"setting": setting})
    registry.environment(name, tools=tool_schemas(tools), episodes=episodes, budget=budget)(episode)


class _Setting:
    """What the episodes of one environment share."""

    def __init__(self, tools: Dict[str, Any], max_turns: Optional[int], max_calls: int, tells_errors: bool, threads: Threads):
        self.tools, self.max_turns, self.max_calls = tools, max_turns, max_calls
        self.tells_errors, self.threads = tells_errors, threads


class _Instance:
    """A tool's state in one episode."""

    def __init__(self, tool, options: Dict[str, dict]):
        self.tool, self.options = tool, options
        self.id = str(uuid.uuid4())
        self.is_created = False  # else `create` has not returned: it failed, or was cancelled


class _Episode:
    setting: _Setting

    def __init__(self):
        self._caller = Caller(self.setting.threads)
        self._instances: Dict[str, _Instance] = {}

    async def reset(self, task: dict, seed: int):
        extra = task.get("extra_info")
        extra = extra if isinstance(extra, dict) else {}
        options = task.get("tools_kwargs") or extra.get("tools_kwargs") or {}
        said = []
        for tool_name in self._select(extra.get("tool_selection")):
            instance = _Instance(self.setting.tools[tool_name], options.get(tool_name) or {})
            self._instances[tool_name] = instance
            text = await self._create(instance)
            if text:
                said.append(text)
        return "\n".join(said)

    async def step(self, action: registry.Action):
        calls = [tool_calls.check_call(one.name, one.arguments) for one in action.tool_calls]
        if not calls:
            calls = tool_calls.read_calls(action.text)
        if not calls:
            return registry.Turn(reward=await self._closing_reward(), done=True)
        answers = await _gather([self._answer(call, place) for place, call in enumerate(calls)])
        reward = sum(score for _, score in answers)
        if self.setting.max_turns is not None and action.turn >= self.setting.max_turns:
            return registry.Turn(reward=reward + await self._closing_reward(), done=True)
        texts = [text for text, _ in answers]
        if action.tool_calls:
            return registry.Turn(reward=reward, tool_results=texts[:judging.MOST_RESULTS])
        return registry.Turn(tool_calls.write_answers(texts), reward)

    async def close(self):
        # The tools hear of the end even if somebody stops to wait for it: a thread may take its time.
        await asyncio.shield(asyncio.ensure_future(self._release()))

    def _select(self, selection) -> List[str]:
        """Those that the row names, as verl has it, or all."""
        names = list(selection or self.setting.tools)
        unknown = [one for one in names if one not in self.setting.tools]
        if unknown:
            raise ValueError(f"the row's extra_info.tool_selection has {', '.join(map(repr, unknown))}; the environment has "
                             f"{', '.join(self.setting.tools)}")
        return names

    async def _create(self, instance: _Instance) -> str:
        """What the tool says to its creation."""
        create, given = instance.tool.create, instance.options.get("create_kwargs") or {}
        parameters = inspect.signature(create).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        # verl has passed these by name, and passes them as one dict now.
        arguments = {key: value for key, value in given.items() if takes_any or key in parameters}
        if takes_any or "create_kwargs" in parameters:
            arguments["create_kwargs"] = given
        if "instance_id" in parameters:
            arguments["instance_id"] = instance.id
        created = await self._caller.call(create, **arguments)
        # verl has returned the id alone, and returns what the tool says with it now.
        instance.id, response = created if isinstance(created, tuple) else (created, None)
        instance.is_created = True
        return _text(instance.tool.name, response)

    async def _answer(self, call: tool_calls.Call, place: int):
        """The text that the policy reads, and the reward."""
        if call.error:
            return f"This call cannot be read: {call.error}", 0.0
        instance = self._instances.get(call.name)
        if instance is None:
            return f"Unknown function '{call.name}'. Available tools: {list(self._instances)}", 0.0
        if place >= self.setting.max_calls:
            return f"Not called: a turn may have {self.setting.max_calls} calls", 0.0
        try:
            returned = await self._caller.call(instance.tool.execute, instance.id, call.arguments,
                                               **(instance.options.get("execute_kwargs") or {}))
        except Exception as error:  # the tool's
            if not self.setting.tells_errors:
                raise
            return f"Error executing tool '{call.name}': {error}", 0.0
        if not isinstance(returned, tuple) or len(returned) != 3:
            raise TypeError(f"execute of the tool {call.name!r} returned {type(returned).__name__}; verl's return a "
                            "response, a reward and metrics")
        response, score, _ = returned
        return _text(call.name, response), 0.0 if score is None else float(score)

    async def _closing_reward(self) -> float:
        rewards = [await self._caller.call(one.tool.calc_reward, one.id, **(one.options.get("calc_reward_kwargs") or {}))
                   for one in self._instances.values()]
        return sum(0.0 if one is None else float(one) for one in rewards)

    async def _release(self) -> None:
        await self._caller.idle()
        for instance in self._instances.values():
            try:
                await self._caller.end(instance.tool.release, instance.id, **(instance.options.get("release_kwargs") or {}))
            except Exception as error:  # the tool's
                if instance.is_created:  # else it may not know the instance
                    judging.raised(error)


async def _gather(coroutines) -> list:
    """All results, or the first error when no other runs any longer."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except Exception:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _text(tool_name: str, response) -> str:
    """Of verl's ToolResponse, or of a text, which tools of earlier versions return."""
    if response is None or isinstance(response, str):
        return response or ""
    for kind in ("image", "video"):
        if getattr(response, kind, None):
            raise TypeError(f"the tool {tool_name!r} answered with {kind}s; an environment speaks in text alone")
    text = getattr(response, "text", None)
    if text is not None and not isinstance(text, str):
        raise TypeError(f"the tool {tool_name!r} answered with {type(response).__name__}; verl's answer with a ToolResponse")
    return text or ""


def _schema(tool) -> dict:
    schema = tool.tool_schema
    return schema if isinstance(schema, dict) else schema.model_dump(exclude_unset=True, exclude_none=True)


def _check_tools(environment: str, tools: list) -> None:
    if not tools:
        raise ValueError(f"the environment {environment!r} has no tools")
    names: List[str] = []
    for tool in tools:
        if isinstance(tool, type):
            raise TypeError(f"the environment {environment!r} has the class {tool.__name__}; give it an object, "
                            f"{tool.__name__}(config, tool_schema)")
        missing = [method for method in _METHODS if not callable(getattr(tool, method, None))]
        if missing:
            raise TypeError(f"the environment {environment!r} has a {type(tool).__name__}, which is no BaseTool of verl: it "
                            f"has no {' and no '.join(missing)}. Functions of @function_tool are not supported; make them a "
                            "BaseTool")
        if not getattr(tool, "name", None) or getattr(tool, "tool_schema", None) is None:
            raise TypeError(f"the environment {environment!r} has a {type(tool).__name__} without name or tool_schema; its "
                            "__init__ must call that of BaseTool")
        if tool.name in names:
            raise ValueError(f"the environment {environment!r} has two tools named {tool.name!r}")
        names.append(tool.name)
        _check_execute(environment, tool)


def _check_execute(environment: str, tool) -> None:
    parameters = list(inspect.signature(tool.execute).parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one.name for one in parameters if one not in positional[:2] and one.default is one.empty
              and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    if needed:
        raise TypeError(f"the environment {environment!r} cannot call execute of the tool {tool.name!r}: it needs "
                        f"{' and '.join(needed)}, which verl's agent loop has alone")
