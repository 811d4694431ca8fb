"""Episodes of users' environments: what one stream of EnvironmentService.Play does."""
import asyncio
import collections
import json
import sys
import time
from typing import Callable, Dict, Optional, Set

from . import judging, registry, wire

MOST_CLOSED = 4096  # episodes that are over and whose last answer is still known
CANCEL_SECONDS = 1.0  # a cancelled call has so long to end; its episode is closed then, whatever it does
CLOSE_SECONDS = 10.0  # for an environment's `close`; it is cancelled then


class Calls:
    """Calls of users' reset and step since the worker began; the three agree when none is under way. It knows all tasks of
    user code that run, those of `close` too."""

    def __init__(self):
        self.started = self.ended = self.cancelled = 0
        self._running: Set[asyncio.Task] = set()

    def count(self, task: asyncio.Task) -> None:
        """Counts a call, and its end when it has one."""
        self.started += 1
        self._keep(task)
        task.add_done_callback(self._count_end)

    def close(self, state) -> None:
        """Begins the `close` of an environment's object, if it has one. What that raises is printed."""
        if state is not None and hasattr(state, "close"):
            self._keep(asyncio.ensure_future(_close(state)))

    async def finish(self, seconds: float) -> None:
        """Waits until nothing runs, and at most for so long."""
        limit = time.monotonic() + seconds
        while self._running and time.monotonic() < limit:
            await asyncio.wait(list(self._running), timeout=limit - time.monotonic())
            await asyncio.sleep(0)  # what has ended may begin a `close`

    def _keep(self, task: asyncio.Task) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _count_end(self, task: asyncio.Task) -> None:
        if task.cancelled():
            self.cancelled += 1
        else:
            self.ended += 1


async def _close(state) -> None:
    try:
        await asyncio.wait_for(state.close(), CLOSE_SECONDS)
    except asyncio.TimeoutError:
        print(f"syncopate-worker: close() of {type(state).__name__} was not done within {CLOSE_SECONDS:g} s and was "
              "cancelled", file=sys.stderr, flush=True)
    except Exception as error:  # the user's
        judging.raised(error)


class _Episode:
    def __init__(self, opening: wire.Open):
        self.opening = opening
        self.environment: Optional[registry.Environment] = None
        self.state = None  # the user's object
        self.budget = 0.0  # seconds of each call
        self.answered = -1  # the last turn that was answered; 0: the reset
        self.answer = b""
        self.task: Optional[asyncio.Task] = None  # of the call under way
        self.turn = 0  # of that call
        self.call: Optional[asyncio.Task] = None  # the last one of user code: it may go on when nobody waits for it


class Places:
    """The episodes that are open at each environment, over all streams of the worker. Who finds no place waits, in order."""

    def __init__(self):
        self._open: Dict[str, Set[_Episode]] = collections.defaultdict(set)
        self._waiting: Dict[str, "collections.OrderedDict[_Episode, Callable]"] = collections.defaultdict(collections.OrderedDict)

    def enter(self, episode: _Episode, begin: Callable[[], None]) -> None:
        """Calls `begin` once the episode has a place: now, or when others leave."""
        self._waiting[episode.environment.name][episode] = begin
        self._fill(episode.environment)

    def waits(self, episode: _Episode) -> bool:
        return episode.environment is not None and episode in self._waiting[episode.environment.name]

    def leave(self, episode: _Episode) -> None:
        """Of an episode that has a place, or waits, or neither."""
        if episode.environment is None:
            return
        self._waiting[episode.environment.name].pop(episode, None)
        self._open[episode.environment.name].discard(episode)
        self._fill(episode.environment)

    def _fill(self, environment: registry.Environment) -> None:
        taken, waiting = self._open[environment.name], self._waiting[environment.name]
        while waiting and len(taken) < environment.episodes:
            episode, begin = waiting.popitem(last=False)
            taken.add(episode)
            begin()


class Stream:
    """The episodes of one stream: requests in, responses into `out`. Each call of user code is a task of its own, so a slow
    one holds up nobody else."""

    def __init__(self, out: "asyncio.Queue", calls: Calls, places: Places):
        self._out = out
        self._calls = calls
        self._places = places
        self._episodes: Dict[str, _Episode] = {}
        self._closed: "collections.OrderedDict[str, bytes]" = collections.OrderedDict()

    def take(self, request) -> None:
        if isinstance(request, wire.Open):
            self._open(request)
        elif isinstance(request, wire.Act):
            self._act(request)
        elif isinstance(request, wire.Cancel):
            self._cancel(request)

    def close(self) -> None:
        """The stream has ended: so has everything of it."""
        # Those that wait go first: they are not to begin at the places that the others leave.
        for episode in sorted(self._episodes.values(), key=self._places.waits, reverse=True):
            task, episode.task = episode.task, None
            if task is not None:
                task.cancel()
            self._release(episode)
        self._episodes.clear()

    def _open(self, opening: wire.Open) -> None:
        if self._repeat(opening.episode, 0):
            return
        if opening.episode in self._episodes:
            return self._close(self._episodes[opening.episode],
                               judging.failed(wire.INVALID_ARGUMENT, "the episode was opened again after its first turn"))
        episode = self._episodes[opening.episode] = _Episode(opening)
        environment = registry.ENVIRONMENTS.get(opening.environment)
        if environment is None:
            return self._close(episode, judging.failed(wire.NOT_FOUND,
                                                       f"this worker has no environment named {opening.environment}"))
        episode.environment = environment
        episode.budget = min(opening.budget or environment.budget, environment.budget)

        async def reset():
            row = judging.read_row(opening.row_json)
            if environment.tools and not row.get("tools"):
                raise RuntimeError(f"the prompt does not show the tools of the environment {opening.environment!r}: the "
                                   "trainer could not ask this worker for them when it started. Let it reach "
                                   "environment.address and start it again, or write them into the field `tools` of each row")
            episode.state = environment.make()
            return await episode.state.reset(row, opening.seed)

        self._places.enter(episode, lambda: self._call(episode, 0, reset))

    def _act(self, act: wire.Act) -> None:
        if self._repeat(act.episode, act.turn):
            return
        episode = self._episodes.get(act.episode)
        if episode is None:
            error = judging.failed(wire.NOT_FOUND, "this stream has no such episode")
            self._out.put_nowait(wire.write_closed(act.episode, 0, error, 0.0))
            return
        if episode.task is not None or act.turn != episode.answered + 1 or act.turn < 1:
            return self._close(episode, judging.failed(
                wire.INVALID_ARGUMENT, f"turn {act.turn} came after turn {episode.answered} was answered last"))
        action = registry.Action(act.text, act.turn, "length" if act.finish == wire.LENGTH else "stop",
                                 [_tool_call(*call) for call in act.tool_calls], act.content)
        self._call(episode, act.turn, lambda: episode.state.step(action))

    def _repeat(self, name: str, turn: int) -> bool:
        """Whether the request was made before; then it gets the same answer, or the one that is being made."""
        if name in self._closed:
            self._out.put_nowait(self._closed[name])
            return True
        episode = self._episodes.get(name)
        if episode is None:
            return False
        if turn == episode.answered:
            self._out.put_nowait(episode.answer)
            return True
        return turn == episode.turn and (episode.task is not None or self._places.waits(episode))

    def _cancel(self, cancel: wire.Cancel) -> None:
        episode = self._episodes.get(cancel.episode)
        if episode is None:
            if cancel.episode in self._closed:
                self._out.put_nowait(self._closed[cancel.episode])
            return
        outcome = judging.failed(wire.CANCELLED, f"cancelled: {cancel.reason}")
        if episode.task is None:
            return self._close(episode, outcome)
        # The tool hears of it first: who reads the answer knows that it has ended, if it ends when it is told to.
        task, episode.task = episode.task, None
        task.cancel()

        async def end():
            await asyncio.wait([task], timeout=CANCEL_SECONDS)
            self._close(episode, outcome)

        episode.task = asyncio.ensure_future(end())

    def _call(self, episode: _Episode, turn: int, function) -> None:
        """Runs user code for this turn. Its answer is that of the code, or comes when its budget is over: a call that does not
        let itself be cancelled is left alone then."""
        began = time.monotonic()
        episode.turn = turn
        task = episode.task = episode.call = asyncio.ensure_future(_guard(function))
        self._calls.count(task)

        def late():
            if episode.task is not task:
                return
            episode.task = None
            task.cancel()
            self._close(episode, judging.failed(wire.DEADLINE_EXCEEDED, f"not done within {episode.budget:g} s"),
                        time.monotonic() - began, turn)

        timer = asyncio.get_running_loop().call_later(episode.budget, late)

        def ended(_):
            timer.cancel()
            if episode.task is task:  # else it is late, or cancelled from outside
                episode.task = None
                self._answer(episode, turn, task, time.monotonic() - began)

        task.add_done_callback(ended)

    def _answer(self, episode: _Episode, turn: int, task: asyncio.Task, seconds: float) -> None:
        if task.cancelled():
            said = judging.failed(wire.CANCELLED, "the environment cancelled itself")
        else:
            said = judging.said(*task.result())
        if isinstance(said, wire.Outcome):
            return self._close(episode, said, seconds, turn)
        episode.answered = turn
        episode.answer = wire.write_observe(episode.opening.episode, turn, said.text, said.reward, seconds,
                                            said.tool_results)
        self._out.put_nowait(episode.answer)

    def _close(self, episode: _Episode, outcome: wire.Outcome, seconds: float = 0.0, turns: Optional[int] = None) -> None:
        name = episode.opening.episode
        if self._episodes.get(name) is not episode:
            return  # the stream has ended
        del self._episodes[name]
        answer = wire.write_closed(name, max(episode.answered, 0) if turns is None else turns, outcome, seconds)
        self._closed[name] = answer
        if len(self._closed) > MOST_CLOSED:
            self._closed.popitem(last=False)
        self._out.put_nowait(answer)
        self._release(episode)

    def _release(self, episode: _Episode) -> None:
        """Closes the user's object once its last call has ended: its methods never run beside each other. Its place is free."""
        if episode.call is None or episode.call.done():
            self._calls.close(episode.state)
        else:
            episode.call.add_done_callback(lambda _: self._calls.close(episode.state))
        self._places.leave(episode)


def _tool_call(name: str, arguments_json: str) -> registry.ToolCall:
    try:
        return registry.ToolCall(name, json.loads(arguments_json))
    except (ValueError, RecursionError):  # the latter: brackets in brackets, thousands deep
        return registry.ToolCall(name, arguments_json)


async def _guard(function):
    """What user code returned, or what it raised."""
    try:
        return await function(), None
    except Exception as error:  # the user's
        return None, error
