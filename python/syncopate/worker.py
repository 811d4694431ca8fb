"""The worker: EnvironmentService over grpc.aio for the rewards, tasks and environments of Python files.

usage: syncopate-worker [FILE...] [-m MODULE] [--listen ADDRESS] [--announce FILE] [--processes N]
                        [--socket-mode MODE] [--socket-group GROUP] [--token-file FILE] [--tls-cert FILE --tls-key FILE --tls-ca FILE] [--trust-domain NAME]
                        [--insecure-bind]

Ends with SIGTERM or SIGINT in order; what runs is cancelled.
"""
import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import Dict, List, Set

import grpc

from . import guard, judging, playing, registry, wire
from .pool import Pool

ANSWERS_A_PROCESS = 16  # that wait for it, unless a reward says otherwise
TASKS_A_RESPONSE = 256
FINISH_SECONDS = 3.0  # for environments that close when the worker ends
STALL_SECONDS = 60.0  # the loop has not moved for so long: a coroutine blocks it


class Worker:
    def __init__(self, digest: str, pool: Pool, processes: int):
        self._digest, self._pool, self._processes = digest, pool, processes
        self._calls, self._places = playing.Calls(), playing.Places()
        self._streams: Set[playing.Stream] = set()

    async def finish(self) -> None:
        """Lets environments close the episodes that are left."""
        for stream in list(self._streams):
            stream.close()
        await self._calls.finish(FINISH_SECONDS)

    async def describe(self, request: bytes, context) -> bytes:
        rows: Dict[str, dict] = {}
        for name, reward in registry.REWARDS.items():
            concurrency = reward.concurrency or ANSWERS_A_PROCESS * self._processes
            rows[name] = dict(name=name, lists=False, scores=True, concurrency=concurrency, budget=reward.budget, tasks=0,
                              groups=reward.group, tokens=reward.tokens)
        for name in registry.TASKS:
            row = rows.setdefault(name, dict(name=name, scores=False, concurrency=1, budget=60.0))
            row.update(lists=True, tasks=-1)
        for name, environment in registry.ENVIRONMENTS.items():
            row = rows.setdefault(name, dict(name=name, lists=False, scores=False, concurrency=1, budget=60.0, tasks=0))
            tools = json.dumps(environment.tools, ensure_ascii=False) if environment.tools else ""
            row.update(episodes=environment.episodes, call_budget=environment.budget, tools_json=tools)
        calls = self._calls
        return wire.write_description(self._digest, list(rows.values()), (calls.started, calls.ended, calls.cancelled))

    async def list_tasks(self, request: bytes, context):
        name, cursor, batch = wire.read_list_request(request)
        if name not in registry.TASKS:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this worker lists no tasks named {name}")
        if cursor and not cursor.isdigit():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{cursor!r} is no cursor of this worker")
        at, size = int(cursor or 0), batch if batch > 0 else TASKS_A_RESPONSE
        rows = itertools.islice(registry.TASKS[name].function(), at, None)
        while True:
            # User code may read files: away from the loop.
            part = await asyncio.to_thread(lambda: list(itertools.islice(rows, size + 1)))
            ready, more = part[:size], part[size:]
            tasks = [(str(row.get("id", at + i)), name, json.dumps(row, ensure_ascii=False, allow_nan=False))
                     for i, row in enumerate(ready)]
            at += len(ready)
            yield wire.write_tasks(tasks, str(at) if more else "")
            if not more:
                return
            rows = itertools.chain(more, rows)

    async def score(self, requests, context):
        done: "asyncio.Queue" = asyncio.Queue()
        running: Dict[str, asyncio.Task] = {}

        def begin(item: wire.Item) -> None:
            running[item.id] = asyncio.ensure_future(self._score_item(item))
            running[item.id].add_done_callback(lambda task: done.put_nowait((item, task)))

        async def read() -> None:
            try:
                async for request in requests:
                    items, cancels = wire.read_score_request(request)
                    for item in items:
                        begin(item)
                    for name in cancels:
                        if name in running:
                            running[name].cancel()
                if running:
                    await asyncio.wait(list(running.values()))
                done.put_nowait(None)
            except ValueError as error:  # what was read is no such message
                done.put_nowait(error)

        reader = asyncio.ensure_future(read())
        try:
            over = False
            while not over:
                ready = [await done.get()]
                while not done.empty() and len(ready) < 256:
                    ready.append(done.get_nowait())
                wrong = next((one for one in ready if isinstance(one, ValueError)), None)
                if wrong is not None:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no ScoreRequest: {wrong}")
                over = None in ready
                judged = [one for one in ready if one is not None]
                for item, _ in judged:
                    running.pop(item.id, None)
                if judged:
                    yield wire.write_score_response([self._result(item, task) for item, task in judged])
        finally:
            reader.cancel()
            for task in running.values():
                task.cancel()

    async def play(self, requests, context):
        out: "asyncio.Queue" = asyncio.Queue()
        stream = playing.Stream(out, self._calls, self._places)
        self._streams.add(stream)

        async def read() -> None:
            try:
                async for request in requests:
                    stream.take(wire.read_play_request(request))
                out.put_nowait(None)
            except ValueError as error:  # what was read is no such message
                out.put_nowait(error)

        reader = asyncio.ensure_future(read())
        try:
            while True:
                response = await out.get()
                if response is None:
                    return
                if isinstance(response, ValueError):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no PlayRequest: {response}")
                yield response
        finally:
            reader.cancel()
            stream.close()
            self._streams.discard(stream)

    @staticmethod
    def _result(item: wire.Item, task: asyncio.Task):
        if task.cancelled():
            outcomes, seconds = [judging.failed(wire.CANCELLED, "cancelled")] * len(item.answers), 0.0
        elif task.exception() is not None:  # not user code's: that is caught where it runs
            outcomes, seconds = [judging.raised(task.exception())] * len(item.answers), 0.0
        else:
            outcomes, seconds = task.result()
        return item.id, outcomes, seconds

    async def _score_item(self, item: wire.Item):
        begin = time.monotonic()
        reward = registry.REWARDS.get(item.environment)
        if reward is None:
            error = judging.failed(wire.NOT_FOUND, f"this worker has no reward named {item.environment}")
            return [error] * len(item.answers), 0.0
        budget = min(item.budget or reward.budget, reward.budget)
        try:
            outcomes = await asyncio.wait_for(self._judge(reward, item), budget)
        except asyncio.TimeoutError:
            outcomes = [judging.failed(wire.DEADLINE_EXCEEDED, f"not done within {budget:g} s")] * len(item.answers)
        return outcomes, time.monotonic() - begin

    async def _judge(self, reward: registry.Reward, item: wire.Item) -> List[wire.Outcome]:
        if reward.group:
            if not reward.is_async:
                return await self._pool.judge_group(reward.name, item.row_json, item.answers)
            return await self._judge_group_here(reward, item)
        if not reward.is_async:
            return await self._pool.judge(reward.name, item.row_json, [answer.text for answer in item.answers])
        return list(await asyncio.gather(*(self._judge_here(reward, item, answer) for answer in item.answers)))

    @staticmethod
    async def _judge_group_here(reward: registry.Reward, item: wire.Item) -> List[wire.Outcome]:
        try:
            answers = judging.group_answers(reward, item.answers)
            returned = await reward.function(answers, judging.read_row(item.row_json))
            return judging.group_outcomes(returned, len(answers))
        except Exception as error:  # the user's
            return [judging.raised(error)] * len(item.answers)

    @staticmethod
    async def _judge_here(reward: registry.Reward, item: wire.Item, answer: wire.Answer) -> wire.Outcome:
        try:
            return judging.outcome(await reward.function(answer.text, judging.read_row(item.row_json)))
        except Exception as error:  # the user's
            return judging.raised(error)


def _handlers(worker: Worker, door: guard.Guard):
    return grpc.method_handlers_generic_handler(wire.SERVICE, {
        "Describe": grpc.unary_unary_rpc_method_handler(door.unary("Describe", worker.describe)),
        "ListTasks": grpc.unary_stream_rpc_method_handler(door.stream("ListTasks", worker.list_tasks)),
        "Score": grpc.stream_stream_rpc_method_handler(door.stream("Score", worker.score)),
        "Play": grpc.stream_stream_rpc_method_handler(door.stream("Play", worker.play)),
    })


def _watch(moved: List[float]) -> None:
    """Ends the process when the loop stands still: its supervisor starts it again."""
    while True:
        time.sleep(1.0)
        if time.monotonic() - moved[0] > STALL_SECONDS:
            print(f"syncopate-worker: an async reward or environment has blocked the worker for {STALL_SECONDS:g} "
                  "s; it ends. Make a reward a plain def, which runs in a process of its own; what blocks in an "
                  "environment goes to asyncio.to_thread", file=sys.stderr, flush=True)
            os._exit(70)


def _announce(path: str, address: str, digest: str) -> None:
    content = json.dumps(dict(role="environment", index=0, grpc=address, metrics="", pid=os.getpid(), digest=digest))
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(content + "\n")
    os.replace(temporary, path)


def _open_socket(path: str, mode: str, group: str) -> None:
    """Gives the socket its group before its mode: no other group may call it in between."""
    try:
        if group:
            shutil.chown(path, group=group)
        os.chmod(path, int(mode, 8))
    except (LookupError, OSError) as error:
        raise SystemExit(f"{path}: group {group or '(unchanged)'}, mode {mode}: {error}") from None


async def serve(options) -> None:
    address = options.listen
    tls = [options.tls_cert, options.tls_key, options.tls_ca]
    guard.check_address(address, options.insecure_bind, any(tls))
    # A socket's mode says who may call it, and rollouters show no token there.
    is_socket = address.startswith("unix:")
    tokens = guard.Tokens(options.token_file) if options.token_file and not is_socket else None
    certificates = guard.Certificates(*tls, options.trust_domain) if any(tls) and not is_socket else None
    digest = judging.load(options.files)
    if not registry.REWARDS and not registry.TASKS and not registry.ENVIRONMENTS:
        raise SystemExit(f"{', '.join(options.files)}: nothing has @reward, @group_reward, @tasks or @environment")
    plain = [one for one in registry.REWARDS.values() if not one.is_async]
    processes = options.processes or min(os.cpu_count() or 1, 8)
    pool = Pool(processes if plain else 0, options.files)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0),
                                      ("grpc.http2.min_ping_interval_without_data_ms", 500),
                                      ("grpc.keepalive_permit_without_calls", 1),
                                      ("grpc.http2.max_ping_strikes", 0)])
    worker = Worker(digest, pool, processes)
    server.add_generic_rpc_handlers([_handlers(worker, guard.Guard(tokens, certificates))])
    if is_socket and os.path.exists(address[5:]):
        os.unlink(address[5:])  # of an earlier life
    mask = os.umask(0o177)  # a socket is for its owner alone, unless it is opened to its group below
    port = server.add_secure_port(address, certificates.credentials()) if certificates else server.add_insecure_port(address)
    os.umask(mask)
    if is_socket:
        _open_socket(address[5:], options.socket_mode, options.socket_group)
    if address.endswith(":0") and not is_socket:
        address = f"{address[:-2]}:{port}"
    await server.start()
    if options.announce:
        _announce(options.announce, address, digest)
    names = ", ".join([*registry.REWARDS, *registry.TASKS, *registry.ENVIRONMENTS])
    print(f"syncopate-worker: {names} at {address}, digest {digest[:12]}", file=sys.stderr, flush=True)

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    moved = [time.monotonic()]
    threading.Thread(target=_watch, args=(moved,), daemon=True).start()
    while not stop.is_set():
        moved[0] = time.monotonic()
        try:
            await asyncio.wait_for(stop.wait(), 1.0)
        except asyncio.TimeoutError:
            pass
    await server.stop(0.5)
    await worker.finish()
    pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="syncopate-worker", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="Python files with @reward, @tasks and @environment")
    parser.add_argument("-m", dest="modules", action="append", default=[],
                        help="installed module with such code, as syncopate.math_judge and syncopate.games are")
    parser.add_argument("--listen", default="127.0.0.1:0", help="unix:PATH or host:port; port 0: any free one")
    parser.add_argument("--socket-mode", default="0600", choices=["0600", "0660"],
                        help="of a unix:PATH: 0600, its owner alone may call; 0660, its group may, too")
    parser.add_argument("--socket-group", default="", help="of a unix:PATH; a group of this user")
    parser.add_argument("--announce", default="", help="file that says where it listens, once it does")
    parser.add_argument("--token-file", default="", help="file of '<role> <token>' lines: callers of a host:port show one")
    parser.add_argument("--tls-cert", default="", help="PEM file of this worker's certificate: a host:port speaks TLS, and a "
                        "caller is known by its certificate instead of a token")
    parser.add_argument("--tls-key", default="", help="PEM file of its key")
    parser.add_argument("--tls-ca", default="", help="PEM file of the authorities that callers' certificates come from")
    parser.add_argument("--trust-domain", default="syncopate", help="in the names of certificates")
    parser.add_argument("--insecure-bind", action="store_true", help="listen on any address, in plaintext")
    parser.add_argument("--processes", type=int, default=0, help="of the pool; 0: one a core, 8 at most")
    options = parser.parse_args()
    options.files += [f"-m{module}" for module in options.modules]
    if not options.files:
        parser.error("name a Python file, or a module with -m")
    # Not asyncio.run: at its end it waits for every task, also for user code that does not let itself be cancelled.
    asyncio.new_event_loop().run_until_complete(serve(options))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # user code may have left threads


if __name__ == "__main__":
    main()
