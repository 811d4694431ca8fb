"""Code that blocks, in threads beside the worker's loop."""
import asyncio
import concurrent.futures
import inspect
from typing import Any, Callable, Set

_ENDING_THREADS = 4


class Threads:
    """The threads of one environment, which all of its episodes share."""

    def __init__(self, environment: str, size: int):
        if size < 1:
            raise ValueError(f"the environment {environment!r} has threads={size}; it needs one at least")
        self.environment, self.size = environment, size
        self.lost = 0  # in calls that were cancelled and have not returned
        self.pool = concurrent.futures.ThreadPoolExecutor(size, thread_name_prefix=environment)
        # For calls that end an episode, which must not be left out, while all others are lost.
        self.ending = concurrent.futures.ThreadPoolExecutor(_ENDING_THREADS, thread_name_prefix=f"{environment}-ending")


class Caller:
    """Calls functions and methods for one episode: an `async def` in the loop, any other in a thread.

    A thread cannot be stopped. A call that is cancelled before its thread has begun never begins; one that has begun goes on
    until it returns by itself, and `idle` waits for it."""

    def __init__(self, threads: Threads):
        self._threads = threads
        self._running: Set[asyncio.Future] = set()

    async def call(self, function: Callable[..., Any], *args, **kwargs) -> Any:
        return await self._call(self._call_in_thread, function, args, kwargs)

    async def end(self, function: Callable[..., Any], *args, **kwargs) -> Any:
        """Calls what ends the episode: it finds a thread although all of the environment's are lost."""
        return await self._call(self._end_in_thread, function, args, kwargs)

    async def idle(self) -> None:
        """Waits until no thread runs for this episode."""
        while self._running:
            await asyncio.wait(list(self._running))

    @staticmethod
    async def _call(in_thread: Callable, function: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        returned = await in_thread(lambda: function(*args, **kwargs))
        # A plain function may also return a coroutine.
        return await returned if inspect.isawaitable(returned) else returned

    def _note_end(self, future: asyncio.Future) -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # nobody may wait for it any longer

    async def _call_in_thread(self, function: Callable[[], Any]) -> Any:
        threads = self._threads
        if threads.lost >= threads.size:
            raise RuntimeError(f"all {threads.size} threads of the environment {threads.environment!r} are in calls that were "
                               "cancelled and have not returned: give its calls a time limit of their own, or more threads")
        work = threads.pool.submit(function)
        future = self._watch(work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not work.cancel() and not future.done():
                threads.lost += 1
                future.add_done_callback(lambda _: setattr(threads, "lost", threads.lost - 1))
            raise

    async def _end_in_thread(self, function: Callable[[], Any]) -> Any:
        threads = self._threads
        pool = threads.ending if threads.lost >= threads.size else threads.pool
        return await asyncio.shield(self._watch(pool.submit(function)))

    def _watch(self, work: concurrent.futures.Future) -> asyncio.Future:
        future = asyncio.wrap_future(work)
        self._running.add(future)
        future.add_done_callback(self._note_end)
        return future
