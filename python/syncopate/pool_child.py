"""One process of the pool: judges what it is sent, one answer after the other. Ends when the worker does.

usage: python -m syncopate.pool_child DESCRIPTOR FILE...
"""
import ctypes
import os
import pickle
import signal
import socket
import struct
import sys


def _read(connection, size: int) -> bytes:
    parts = []
    while size > 0:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _judge(judging, reward, text: str, row_json: str):
    try:
        # A row anew for each: user code may change it.
        return judging.outcome(reward.function(text, judging.read_row(row_json)))
    except Exception as error:  # the user's
        return judging.raised(error)


def main() -> None:
    # Also if the worker is killed while user code hangs here.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))

    from . import judging, registry
    judging.load(sys.argv[2:])

    while True:
        name, row_json, texts = pickle.loads(_read(connection, struct.unpack("<Q", _read(connection, 8))[0]))
        reward = registry.REWARDS[name]
        if reward.group:
            outcomes = judging.judge_group(reward, row_json, texts)
        else:
            outcomes = [_judge(judging, reward, text, row_json) for text in texts]
        answer = pickle.dumps(outcomes)
        connection.sendall(struct.pack("<Q", len(answer)) + answer)


if __name__ == "__main__":
    main()
