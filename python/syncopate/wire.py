"""The messages of proto/syncopate/v1/environment.proto as bytes.

Own code, because grpcio is the one dependency: protobuf's runtime would be a second, and the version that user code needs
beside it is often another.
"""
import struct
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

SERVICE = "syncopate.v1.EnvironmentService"

LENGTH = 2  # FinishReason

# google.rpc.Code
CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, FAILED_PRECONDITION, INTERNAL = 1, 2, 3, 4, 5, 9, 13


class Answer(NamedTuple):
    text: str
    finish: int
    tokens: bytes = b""  # packed, as they came: read_tokens() where they are used, as a long answer takes milliseconds
    logprobs: bytes = b""


class Item(NamedTuple):
    id: str
    environment: str
    row_json: str
    answers: List[Answer]
    budget: float  # seconds; 0: not given


class Open(NamedTuple):
    episode: str
    environment: str
    row_json: str
    seed: int
    budget: float  # seconds of each call; 0: not given
    max_turns: int


class Act(NamedTuple):
    episode: str
    turn: int
    text: str
    finish: int
    tool_calls: List[Tuple[str, str]] = []  # name and arguments in JSON
    content: str = ""


class Cancel(NamedTuple):
    episode: str
    reason: str


class Outcome(NamedTuple):
    value: float = 0.0
    components: Optional[Dict[str, float]] = None
    code: int = 0  # not 0: an error
    message: str = ""
    extracted: str = ""
    rejected: bool = False  # of an episode


# -- reading


def _varint(data, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("a message that was cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def fields(data) -> Iterator[Tuple[int, Union[int, memoryview]]]:
    """Number and value of each field: an int, or the bytes of what has a length; fixed ones as their bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            if kind == 2:
                size, at = _varint(data, at)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            else:
                raise ValueError(f"a field of wire type {kind}")
            if at + size > end:
                raise ValueError("a message that was cut short")
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def _text(value) -> str:
    return str(value, "utf-8", "replace")


def read_score_request(data: bytes) -> Tuple[List[Item], List[str]]:
    items, cancels = [], []
    for number, value in fields(memoryview(data)):
        if number == 1:
            items.append(_read_item(value))
        elif number == 2:
            cancels.append(_text(value))
    return items, cancels


def _read_task(data) -> Tuple[str, str]:
    """Environment and row."""
    environment, row_json = "", "{}"
    for number, value in fields(data):
        if number == 2:
            environment = _text(value)
        elif number == 3:
            row_json = _text(value)
    return environment, row_json


def _read_seconds(data) -> float:
    parts = dict(fields(data))
    return parts.get(1, 0) + parts.get(2, 0) * 1e-9


def _read_item(data) -> Item:
    name, environment, row_json, answers, budget = "", "", "{}", [], 0.0
    for number, value in fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            environment, row_json = _read_task(value)
        elif number == 3:
            text, finish, tokens, logprobs = "", 0, b"", b""
            for part, inner in fields(value):
                if part == 1:
                    text = _text(inner)
                elif part == 2:
                    finish = inner
                elif part == 3:  # a writer may send numbers one by one
                    tokens += _number(inner) if isinstance(inner, int) else bytes(inner)
                elif part == 4:
                    logprobs += bytes(inner)
            answers.append(Answer(text, finish, tokens, logprobs))
        elif number == 4:
            budget = _read_seconds(value)
    return Item(name, environment, row_json, answers, budget)


def read_tokens(packed: bytes) -> List[int]:
    tokens, at = [], 0
    while at < len(packed):
        token, at = _varint(packed, at)
        tokens.append(token)
    return tokens


def read_logprobs(packed: bytes) -> List[float]:
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def read_play_request(data: bytes) -> Union[Open, Act, Cancel, None]:
    """None: a request of a later version."""
    for number, value in fields(memoryview(data)):
        found = dict(fields(value)) if number in (1, 2, 3) else {}
        if number == 1:
            environment, row_json = _read_task(found.get(2, b""))
            return Open(_text(found.get(1, b"")), environment, row_json, int.from_bytes(found.get(3, b""), "little"),
                        _read_seconds(found.get(4, b"")), found.get(5, 0))
        if number == 2:
            return Act(_text(found.get(1, b"")), found.get(2, 0), _text(found.get(3, b"")), found.get(4, 0),
                       [_read_tool_call(call) for part, call in fields(value) if part == 5], _text(found.get(6, b"")))
        if number == 3:
            return Cancel(_text(found.get(1, b"")), _text(found.get(2, b"")))
    return None


def _read_tool_call(data) -> Tuple[str, str]:
    found = dict(fields(data))
    return _text(found.get(1, b"")), _text(found.get(2, b""))


def read_list_request(data: bytes) -> Tuple[str, str, int]:
    """Environment, cursor, batch."""
    found = dict(fields(memoryview(data)))
    return _text(found.get(1, b"")), _text(found.get(2, b"")), found.get(3, 0)


# -- writing


def _number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(number: int, value: int) -> bytes:
    return _number(number << 3) + _number(value) if value else b""


def _bytes(number: int, value: Union[str, bytes]) -> bytes:
    if isinstance(value, str):
        value = value.encode("utf-8", "replace")
    return _number(number << 3 | 2) + _number(len(value)) + value


def _float(number: int, value: float) -> bytes:
    return _number(number << 3 | 5) + struct.pack("<f", value)


def _double(number: int, value: float) -> bytes:
    return _number(number << 3 | 1) + struct.pack("<d", value)


def _duration(number: int, seconds: float) -> bytes:
    nanos = int(seconds * 1e9)
    return _bytes(number, _int(1, nanos // 10**9) + _int(2, nanos % 10**9))


def write_outcome(outcome: Outcome) -> bytes:
    if outcome.code:
        return _bytes(2, _int(1, outcome.code) + _bytes(2, outcome.message))
    parts = [_float(1, outcome.value)]
    for name, value in (outcome.components or {}).items():
        parts.append(_bytes(2, _bytes(1, name) + _float(2, value)))
    if outcome.extracted:
        parts.append(_bytes(3, outcome.extracted))
    return _bytes(1, b"".join(parts))


def write_observe(episode: str, turn: int, text: str, reward: Optional[float], seconds: float,
                  tool_results: Sequence[str] = ()) -> bytes:
    parts = [_bytes(1, episode), _int(2, turn), _bytes(3, text)]
    if reward is not None:
        parts.append(_float(4, reward))
    parts.append(_double(5, seconds))
    return _bytes(1, b"".join(parts + [_bytes(6, result) for result in tool_results]))


def write_closed(episode: str, turns: int, outcome: Outcome, seconds: float) -> bytes:
    return _bytes(2, _bytes(1, episode) + _int(2, turns) + _bytes(3, write_outcome(outcome)) + _double(4, seconds) +
                  _int(5, outcome.rejected))


def write_score_response(items: List[Tuple[str, List[Outcome], float]]) -> bytes:
    """Of (id, outcomes, seconds)."""
    return b"".join(
        _bytes(1, _bytes(1, name) + b"".join(_bytes(2, write_outcome(one)) for one in outcomes) +
               _double(3, seconds)) for name, outcomes, seconds in items)


def write_error(code: int, message: str, reason: str) -> bytes:
    """google.rpc.Status with an ErrorInfo, as a call's error details."""
    info = _bytes(1, reason) + _bytes(2, "syncopate")
    detail = _bytes(1, "type.googleapis.com/google.rpc.ErrorInfo") + _bytes(2, info)
    return _int(1, code) + _bytes(2, message) + _bytes(3, detail)


def write_description(digest: str, environments: List[dict], calls: Tuple[int, int, int] = (0, 0, 0)) -> bytes:
    """Of dicts with name, lists, scores, concurrency, budget, tasks; episodes, call_budget and tools_json if it plays; groups and
    tokens if it scores groups. `calls`: of environments, that were started, have ended, and were cancelled."""
    parts = [_bytes(1, digest)]
    for one in environments:
        row = [_bytes(1, one["name"]), _int(2, one["lists"]), _int(3, one["scores"]), _int(4, one["concurrency"]),
               _duration(5, one["budget"]), _int(6, one["tasks"])]
        if "episodes" in one:
            row += [_int(7, True), _int(8, one["episodes"]), _duration(9, one["call_budget"])]
            row.append(_bytes(12, one.get("tools_json", "")))
        row += [_int(10, one.get("groups", False)), _int(11, one.get("tokens", False))]
        parts.append(_bytes(2, b"".join(row)))
    parts.append(_bytes(3, b"".join(_int(number, count) for number, count in enumerate(calls, 1))))
    return b"".join(parts)


def write_tasks(rows: List[Tuple[str, str, str]], next_cursor: str) -> bytes:
    """Of (id, environment, row_json)."""
    tasks = [_bytes(1, _bytes(1, name) + _bytes(2, environment) + _bytes(3, row)) for name, environment, row in rows]
    return b"".join(tasks) + (_bytes(2, next_cursor) if next_cursor else b"")
