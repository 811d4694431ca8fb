"""An environment made of one of SkyRL-gym: a subclass of skyrl_gym.envs.base_text_env.BaseTextEnv.

    skyrl_gym_environment("gsm8k_multi_turn")

`init` begins an episode, `step` answers a turn, `close` ends it however it ends. They run in threads, as they may block.
"""
import asyncio
import copy
import inspect
from typing import Any, Callable, Optional

from .. import registry
from .blocking import Caller, Threads


def skyrl_gym_environment(name: str, env=None, *, config: Any = None, max_turns: Optional[int] = None, threads: int = 64,
                          episodes: int = 1024, budget: float = 60.0) -> None:
    """Makes the environment `name` of `env`: an id of skyrl_gym's registry, or a subclass of BaseTextEnv; without it, the id
    `name`.

    It gets `config` as `env_config`, and as `extras` the row, with `max_turns` if that is given, and with `reward_spec` of
    the row's right answer if the row has none. `threads`: so many calls run at once.
    """
    make = _maker(name, env or name)
    setting = _Setting(make, config, max_turns, Threads(name, threads))
    episode = type(f"skyrl_gym_environment({name!r})", (_Episode,), {"setting": setting})
    registry.environment(name, episodes=episodes, budget=budget)(episode)


class _Setting:
    """What the episodes of one environment share."""

    def __init__(self, make: Callable[..., Any], config: Any, max_turns: Optional[int], threads: Threads):
        self.make, self.config, self.max_turns, self.threads = make, config, max_turns, threads


class _Episode:
    setting: _Setting

    def __init__(self):
        self._caller = Caller(self.setting.threads)
        self._env = None

    async def reset(self, task: dict, seed: int):
        extras = dict(task)
        extras.setdefault("reward_spec", {"method": "rule", "ground_truth": task.get("ground_truth")})
        if self.setting.max_turns is not None:
            extras["max_turns"] = self.setting.max_turns
        prompt = task.get("messages") or [{"role": "user", "content": task.get("prompt") or ""}]
        begun, _ = await self._caller.call(self._begin, copy.deepcopy(prompt), extras)
        if begun != prompt:
            raise TypeError(f"init of {type(self._env).__name__} changes the prompt, and the policy has read the row's by "
                            "then: write what it makes into the rows")

    async def step(self, action: registry.Action):
        output = await self._caller.call(self._env.step, action.text)
        return _turn(output, action.text, type(self._env).__name__)

    async def close(self):
        # The environment hears of the end even if somebody stops to wait for it: a thread may take its time.
        await asyncio.shield(asyncio.ensure_future(self._close()))

    def _begin(self, prompt: list, extras: dict):
        # Here, so that `close` finds it even if nobody waits for it any longer.
        self._env = self.setting.make(env_config=self.setting.config, extras=extras)
        return self._env.init(prompt)

    async def _close(self) -> None:
        await self._caller.idle()
        if self._env is not None:
            await self._caller.end(self._env.close)


def _turn(output, action: str, env: str) -> registry.Turn:
    if not isinstance(output, dict) or not {"observations", "reward", "done"} <= output.keys():
        raise TypeError(f"step of {env} returned {type(output).__name__}, which is no BaseTextEnvStepOutput with observations, "
                        "reward and done")
    if output.get("postprocessed_action") not in (None, action):
        raise TypeError(f"step of {env} changes the action (postprocessed_action), and tokens that were sampled stay as they "
                        "are: end the turn with rollout.stop instead")
    if output["done"]:
        return registry.Turn(reward=output["reward"], done=True)
    return registry.Turn(_text(output["observations"] or [], env), output["reward"])


def _text(observations: list, env: str) -> str:
    if not observations:
        return ""
    message = observations[0]
    if len(observations) > 1 or message.get("role") != "user" or not isinstance(message.get("content"), str):
        roles = ", ".join(str(one.get("role")) for one in observations)
        raise TypeError(f"step of {env} observes {len(observations)} messages ({roles}); one message of the user, with a "
                        "text, can be said in a turn")
    return message["content"]


def _maker(name: str, env) -> Callable[..., Any]:
    """The function that makes the object of one episode."""
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv
    cls = env
    if isinstance(env, str):
        if env not in skyrl_gym.registry:
            raise ValueError(f"the environment {name!r} is made of {env!r}, which skyrl_gym has not; it has "
                             f"{', '.join(skyrl_gym.registry)}")
        entry = skyrl_gym.registry[env].entry_point
        cls = skyrl_gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    if not isinstance(cls, type) or not issubclass(cls, BaseTextEnv):
        raise TypeError(f"the environment {name!r} is made of {cls!r}; it must be a subclass of skyrl_gym's BaseTextEnv, "
                        "which reads and writes text")
    try:
        inspect.signature(cls).bind(env_config=None, extras={})
    except TypeError as error:
        raise TypeError(f"the environment {name!r} is made of {cls.__name__}, which cannot be made with env_config and extras: "
                        f"{error}") from None
    if cls.step is BaseTextEnv.step:
        raise TypeError(f"the environment {name!r} is made of {cls.__name__}, which has no step of its own")
    for method in ("init", "close"):
        if inspect.iscoroutinefunction(getattr(cls, method)):
            raise TypeError(f"the environment {name!r} is made of {cls.__name__}, whose {method} is an `async def`; "
                            "skyrl_gym's are plain")
    if isinstance(env, str):
        return lambda **options: skyrl_gym.make(env, **options)
    return cls
