#!/usr/bin/env python3
"""Plays episodes with one Python worker over one stream, and cancels calls of a tool that sleeps: turns a second, for each
second of the clock and of the worker's processor, and the time until a cancel is answered.

    .venv/bin/python bench/play_worker.py [--episodes 64] [--turns 40] [--rounds 5] [--cancels 50]

The client is Python, too, and takes as much of the processor as the worker does. Needs grpcio.
"""
import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time

import grpc

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python")
sys.path.insert(0, PACKAGE)
from syncopate import wire  # noqa: E402: of the checkout

CODE = '''
import asyncio
from syncopate import Turn, environment

@environment("counts", budget=60.0)
class Counts:
    async def reset(self, task, seed): self.turns = 0
    async def step(self, action):
        self.turns += 1
        return Turn(f"{self.turns} {action.text}", reward=0.25)

@environment("tool", budget=60.0)
class Tool:
    async def reset(self, task, seed): pass
    async def step(self, action): await asyncio.sleep(3600)
'''
TEXT = "x" * 200  # of a turn


def field(number, value):
    return wire._bytes(number, value) if isinstance(value, (str, bytes)) else wire._int(number, value)


def open_request(name, environment):
    return field(1, field(1, name) + field(2, field(2, environment) + field(3, "{}")))


def act_request(name, turn):
    return field(2, field(1, name) + field(2, turn) + field(3, TEXT) + field(4, 1))


def cancel_request(name):
    return field(3, field(1, name) + field(2, "measured"))


def read_response(data):
    """Episode, turn, and whether the episode is over."""
    (kind, value), = wire.fields(memoryview(data))
    found = dict(wire.fields(value))
    return str(found[1], "utf-8"), found.get(2, 0), kind == 2


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def play(channel, pid, episodes, turns):
    call = channel.stream_stream("/syncopate.v1.EnvironmentService/Play")()
    for number in range(episodes):
        await call.write(open_request(str(number), "counts"))
    for _ in range(episodes):
        await call.read()
    began, used = time.monotonic(), processor_seconds(pid)
    for number in range(episodes):
        await call.write(act_request(str(number), 1))
    for _ in range(episodes * turns):
        name, turn, over = read_response(await call.read())
        assert not over, f"episode {name} ended"
        if turn < turns:
            await call.write(act_request(name, turn + 1))
    took, used = time.monotonic() - began, processor_seconds(pid) - used
    call.cancel()
    return episodes * turns / took, episodes * turns / used


async def cancel(channel, count):
    call = channel.stream_stream("/syncopate.v1.EnvironmentService/Play")()
    took = []
    for number in range(count):
        name = f"tool-{number}"
        await call.write(open_request(name, "tool"))
        await call.read()
        await call.write(act_request(name, 1))
        await asyncio.sleep(0.01)  # the tool has begun
        began = time.monotonic()
        await call.write(cancel_request(name))
        answered, _, over = read_response(await call.read())
        took.append(time.monotonic() - began)
        assert answered == name and over, f"{answered} was answered for {name}"
    return took


async def measure(options, address, pid):
    async with grpc.aio.insecure_channel(address) as channel:
        for _ in range(options.rounds):
            by_clock, by_processor = await play(channel, pid, options.episodes, options.turns)
            print(f"{by_clock:.0f} turns/s, {by_processor:.0f} in a second of the worker's processor")
        took = await cancel(channel, options.cancels)
        print(f"a cancel is answered after {1000 * statistics.median(took):.2f} ms (median of {len(took)}), "
              f"{1000 * max(took):.2f} ms at most")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in [("episodes", 64), ("turns", 40), ("rounds", 5), ("cancels", 50)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        code, announced = os.path.join(folder, "code.py"), os.path.join(folder, "announced")
        with open(code, "w") as file:
            file.write(CODE)
        address = f"unix:{folder}/worker.sock"
        worker = subprocess.Popen([sys.executable, "-m", "syncopate.worker", code, "--listen", address, "--announce", announced],
                                  env=dict(os.environ, PYTHONPATH=PACKAGE))
        try:
            limit = time.monotonic() + 30
            while not os.path.exists(announced):
                if worker.poll() is not None or time.monotonic() > limit:
                    raise SystemExit("the worker did not start")
                time.sleep(0.01)
            asyncio.run(measure(options, address, worker.pid))
        finally:
            worker.terminate()
            worker.wait(10)


if __name__ == "__main__":
    main()
