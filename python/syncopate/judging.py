"""From what user code returns or raises to an outcome, and the loading of user code."""
import hashlib
import importlib
import importlib.util
import json
import math
import os
import sys
import time
import traceback
from typing import List, Optional, Sequence, Union

from . import registry, wire

_MOST_MESSAGE = 2000  # characters of an error
_MOST_VALUE = 1e30  # of a reward: what rollouters take
_MOST_TEXT = 1 << 20  # characters, and bytes, of what an environment says to one call, in all: more is cut off
MOST_RESULTS = 256  # of tools in one turn


def failed(code: int, message: str) -> wire.Outcome:
    return wire.Outcome(code=code, message=message[:_MOST_MESSAGE])


def raised(error: BaseException) -> wire.Outcome:
    """Of user code: the message says where, and the traceback goes to standard error, one a second at most."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    _tracebacks.show(error)
    # The end says where: what is too long is cut before it.
    return failed(wire.UNKNOWN, f"{type(error).__name__}: {error}"[:_MOST_MESSAGE - len(where)] + where)


class _Tracebacks:
    """Tracebacks on standard error, one a second at most and a count of the others: a reward that fails for everything
    fails thousands of times a second."""

    def __init__(self):
        self._next, self._left_out = 0.0, 0

    def show(self, error: BaseException) -> None:
        if time.monotonic() < self._next:
            self._left_out += 1
            return
        self._next = time.monotonic() + 1.0
        more = f"({self._left_out} more failures since the last traceback)\n" if self._left_out else ""
        self._left_out = 0
        sys.stderr.write(more + "".join(traceback.format_exception(type(error), error, error.__traceback__)))
        sys.stderr.flush()


_tracebacks = _Tracebacks()


def outcome(returned) -> wire.Outcome:
    """Of a number, or of a dict with one under "value", numbers beside it, and under "extracted" the answer that was found in
    the text. What is not finite is refused."""
    value, components, extracted = returned, None, ""
    if isinstance(returned, dict):
        if "value" not in returned:
            return failed(wire.INVALID_ARGUMENT, 'the reward returned a dict without "value"')
        value = returned["value"]
        extracted = str(returned.get("extracted") or "")
        components = {str(name): float(part) for name, part in returned.items()
                      if name not in ("value", "extracted") and isinstance(part, (int, float)) and math.isfinite(part)}
    try:
        value = float(value)
    except (TypeError, ValueError, OverflowError):
        return failed(wire.INVALID_ARGUMENT, f"the reward returned {type(value).__name__}, which is no number")
    if not abs(value) <= _MOST_VALUE:  # false for NaN
        return failed(wire.INVALID_ARGUMENT, f"the reward returned {value}; it must be a number within {_MOST_VALUE:g}")
    return wire.Outcome(value, components, extracted=extracted)


def group_answers(reward: registry.Reward, answers: List[wire.Answer]) -> List[registry.Answer]:
    """What a function of @group_reward gets."""
    return [registry.Answer(answer.text, "length" if answer.finish == wire.LENGTH else "stop",
                            wire.read_tokens(answer.tokens) if reward.tokens else None,
                            wire.read_logprobs(answer.logprobs) if reward.tokens else None) for answer in answers]


def group_outcomes(returned, count: int) -> List[wire.Outcome]:
    """One for each answer. Where one is not good, none is: the rewards of a group belong together."""
    try:
        values = list(returned)
    except TypeError:
        return [failed(wire.INVALID_ARGUMENT, f"the reward of a group returned {type(returned).__name__}, which is no "
                                              "list")] * count
    if len(values) != count:
        return [failed(wire.INVALID_ARGUMENT, f"the reward of a group returned {len(values)} values for {count} "
                                              "answers")] * count
    outcomes = [outcome(value) for value in values]
    wrong = next((one for one in outcomes if one.code), None)
    return outcomes if wrong is None else [wrong] * count


def judge_group(reward: registry.Reward, row_json: str, answers: List[wire.Answer]) -> List[wire.Outcome]:
    """By a plain function."""
    try:
        return group_outcomes(reward.function(group_answers(reward, answers), read_row(row_json)), len(answers))
    except Exception as error:  # the user's
        return [raised(error)] * len(answers)


def said(returned, error: Optional[BaseException]) -> Union[registry.Turn, wire.Outcome]:
    """Of what an environment's call returned or raised: a turn after which the episode goes on, or the outcome of it."""
    if error is not None:
        return raised(error)
    turn = returned
    if turn is None or isinstance(turn, str):
        turn = registry.Turn(turn or "")
    elif isinstance(turn, dict):
        if "tools" in turn:
            return failed(wire.INVALID_ARGUMENT, "an environment cannot change its tools: the policy reads them once, in its "
                                                 "prompt; declare them with @environment(..., tools=[...])")
        try:
            turn = registry.Turn(**turn)
        except TypeError as wrong:
            return failed(wire.INVALID_ARGUMENT, f"the environment returned a dict that is no Turn: {wrong}")
    if not isinstance(turn, registry.Turn) or not isinstance(turn.text, str):
        return failed(wire.INVALID_ARGUMENT, f"the environment returned {type(returned).__name__}; it must be a Turn, a "
                                             "dict with its fields, a text or None")
    results = turn.tool_results
    if not isinstance(results, (list, tuple)) or not all(isinstance(one, str) for one in results):
        return failed(wire.INVALID_ARGUMENT, "Turn.tool_results must be a list of texts, one for each call that is answered")
    if len(results) > MOST_RESULTS:
        return failed(wire.INVALID_ARGUMENT, f"Turn.tool_results has {len(results)} texts; a turn may have {MOST_RESULTS}: "
                                             "answer the first calls, and leave the others without an answer")
    if results and turn.text:
        return failed(wire.INVALID_ARGUMENT, "a Turn has text or tool_results, not both")
    reward = None
    if turn.reward is not None:
        judged = outcome(turn.reward)
        if judged.code:
            return judged
        reward = judged.value
    if turn.done or turn.rejected:
        return wire.Outcome(reward or 0.0, rejected=bool(turn.rejected))
    return registry.Turn(*_cut([turn.text]), reward, tool_results=_cut(results))


def _cut(texts: Sequence[str]) -> List[str]:
    """All together have so many bytes: the later ones get what the earlier ones leave. A lone surrogate, which is no text in
    UTF-8, becomes a question mark."""
    cut, left = [], _MOST_TEXT
    for text in texts:
        kept = text[:left].encode("utf-8", "replace")[:left]
        left -= len(kept)
        cut.append(kept.decode("utf-8", "ignore"))
    return cut


def read_row(row_json: str) -> dict:
    row = json.loads(row_json or "{}")
    if not isinstance(row, dict):
        raise ValueError("the row is no JSON object")
    return row


def load(files: List[str]) -> str:
    """Imports user code, which registers what it has: files, and modules written "-mname". Gives the digest of it and of
    what lies beside it."""
    paths = []
    for number, file in enumerate(files):
        if file.startswith("-m"):
            paths.append(importlib.import_module(file[2:]).__file__)
            continue
        paths.append(file)
        folder = os.path.dirname(os.path.abspath(file))
        if folder not in sys.path:
            sys.path.insert(0, folder)
        spec = importlib.util.spec_from_file_location(f"syncopate_user_{number}", file)
        if spec is None or not os.path.exists(file):
            raise SystemExit(f"{file}: there is no such Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return _digest(paths)


def _digest(files: List[str]) -> str:
    folders = {os.path.dirname(os.path.abspath(file)) for file in files}
    own = {os.path.abspath(file) for file in files}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not path or not path.endswith(".py") or "site-packages" in path:
            continue
        path = os.path.abspath(path)
        package = os.path.dirname(os.path.abspath(__file__))
        if any(path.startswith(folder + os.sep) for folder in folders) and not path.startswith(package + os.sep):
            own.add(path)
    digest = hashlib.sha256()
    for name, path in sorted((os.path.basename(path), path) for path in own):
        with open(path, "rb") as file:
            content = file.read()
        digest.update(f"{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()
