"""Processes in which plain functions judge answers. One that hangs or is not wanted any more is killed and replaced."""
import asyncio
import pickle
import socket
import struct
import subprocess
import sys
import time
from typing import List, Optional

from . import judging, wire

_CHUNK_SECONDS = 0.005  # answers are handed over so many at a time as take about this long
_MOST_CHUNK = 64


class _Child:
    def __init__(self, files: List[str]):
        mine, its = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "syncopate.pool_child", str(its.fileno()), *files],
            pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
        its.close()
        mine.setblocking(False)
        self._socket = mine
        self._streams = None

    async def judge(self, name: str, row_json: str, texts: list) -> List[wire.Outcome]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket)
        reader, writer = self._streams
        request = pickle.dumps((name, row_json, texts))
        writer.write(struct.pack("<Q", len(request)) + request)
        await writer.drain()
        size, = struct.unpack("<Q", await reader.readexactly(8))
        return pickle.loads(await reader.readexactly(size))

    def kill(self) -> None:
        self.process.kill()
        if self._streams is not None:
            self._streams[1].close()
        else:
            self._socket.close()


class Pool:
    def __init__(self, processes: int, files: List[str]):
        self._files = files
        self._idle: "asyncio.LifoQueue[_Child]" = asyncio.LifoQueue()
        self._seconds = {}  # of one answer, by reward, smoothed
        self._all = set()
        for _ in range(processes):
            self._add()

    def _add(self) -> None:
        child = _Child(self._files)
        self._all.add(child)
        self._idle.put_nowait(child)

    async def judge(self, name: str, row_json: str, texts: List[str]) -> List[wire.Outcome]:
        """Outcomes in order. Cancelling it kills what runs."""
        size = max(1, min(_MOST_CHUNK, int(_CHUNK_SECONDS / self._seconds.get(name, 1.0))))
        chunks = [texts[at:at + size] for at in range(0, len(texts), size)]
        if len(chunks) == 1:
            return await self._judge_chunk(name, row_json, chunks[0])
        tasks = [asyncio.ensure_future(self._judge_chunk(name, row_json, chunk)) for chunk in chunks]
        try:
            return [one for part in await asyncio.gather(*tasks) for one in part]
        finally:
            for task in tasks:
                task.cancel()

    async def judge_group(self, name: str, row_json: str, answers: List[wire.Answer]) -> List[wire.Outcome]:
        """The same for a reward of groups: one process judges all answers."""
        return await self._judge_chunk(name, row_json, answers)

    async def _judge_chunk(self, name: str, row_json: str, texts: list) -> List[wire.Outcome]:
        child: Optional[_Child] = await self._idle.get()
        begin = time.monotonic()
        try:
            outcomes = await child.judge(name, row_json, texts)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._replace(child)
            code = child.process.wait()
            return [judging.failed(wire.INTERNAL, f"the process that judged it ended with {code}")] * len(texts)
        except BaseException:  # cancelled
            self._replace(child)
            raise
        each = (time.monotonic() - begin) / max(1, len(texts))
        self._seconds[name] = 0.8 * self._seconds.get(name, each) + 0.2 * each
        self._idle.put_nowait(child)
        return outcomes

    def _replace(self, child: _Child) -> None:
        child.kill()
        self._all.discard(child)
        self._add()
        # Reaped by the loop's thread soon; Popen does so when it is looked at.
        asyncio.get_running_loop().run_in_executor(None, child.process.wait)

    def close(self) -> None:
        for child in self._all:
            child.kill()
