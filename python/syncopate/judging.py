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
from typing import List

from . import wire

_MOST_MESSAGE = 2000  # characters of an error
_MOST_VALUE = 1e30  # of a reward: what rollouters take


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
    """Of a number, or of a dict with one under "value" and numbers beside it. What is not finite is refused."""
    value, components = returned, None
    if isinstance(returned, dict):
        if "value" not in returned:
            return failed(wire.INVALID_ARGUMENT, 'the reward returned a dict without "value"')
        value = returned["value"]
        components = {str(name): float(part) for name, part in returned.items()
                      if name != "value" and isinstance(part, (int, float)) and math.isfinite(part)}
    try:
        value = float(value)
    except (TypeError, ValueError, OverflowError):
        return failed(wire.INVALID_ARGUMENT, f"the reward returned {type(value).__name__}, which is no number")
    if not abs(value) <= _MOST_VALUE:  # false for NaN
        return failed(wire.INVALID_ARGUMENT, f"the reward returned {value}; it must be a number within {_MOST_VALUE:g}")
    return wire.Outcome(value, components)


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
