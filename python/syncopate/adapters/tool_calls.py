"""Calls of tools in a text: what a rollouter has not read as one, because it does not know the form of the model, or because
the policy is mistaken. The form is that of most models,

    <tool_call>
    {"name": "add", "arguments": {"a": 1}}
    </tool_call>

and the answer in a message of the user is

    <tool_response>
    2
    </tool_response>
"""
import json
import re
from typing import Any, Dict, List, NamedTuple

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)


class Call(NamedTuple):
    name: str
    arguments: Dict[str, Any]
    error: str = ""  # why it cannot be called; then it has no arguments


def check_call(name: str, arguments: Any) -> Call:
    """Of arguments that are an object, or JSON of one as text."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return Call(name, {}, f"its arguments are no JSON: {error}")
    return Call(name, arguments) if isinstance(arguments, dict) else Call(name, {}, "its arguments are no JSON object")


def read_calls(text: str) -> List[Call]:
    """The calls behind the thoughts, in order."""
    return [_read_call(found[1], bool(found[2])) for found in _CALL.finditer(text.rpartition("</think>")[2])]


def write_answers(answers: List[str]) -> str:
    return "\n".join(f"<tool_response>\n{answer}\n</tool_response>" for answer in answers)


def _read_call(text: str, is_closed: bool) -> Call:
    if not is_closed:
        return Call("", {}, "it has no </tool_call>")
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Call("", {}, f"it is no JSON: {error}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return Call("", {}, 'it is no JSON object with a "name"')
    return check_call(call["name"], call.get("arguments", call.get("parameters", {})))
