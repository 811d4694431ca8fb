#!/usr/bin/env python3
"""usage: scripts/chat_template_reference.py golden               rewrites tests/unit/text/template/golden/cases.jsonl
       scripts/chat_template_reference.py fuzz OUT COUNT SEED [TEMPLATE.jinja ...]

Chat templates times random conversations, rendered by the reference (PyPI jinja2) as transformers sets it up; errors
stay errors. Without templates of one's own, those of tests/unit/text/template/golden: written here, with the features that
published ones use. `build/release/bin/chat_template_compare OUT` holds ours against it. Needs an environment of its own:

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install jinja2==3.1.6
"""
import datetime
import json
import pathlib
import random
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/unit/text/template/golden"
NOW = 1752148800
TEXTS = ["Hello, how are you?", "  padded \n", "", "naïve “quotes” \"x\" 'y' \\ \t", "日本語 👍🏽", "<think>\nsome thought\n</think>\n\nanswer",
         "<tool_response>x</tool_response>", "line1\nline2\n\n", '{"a": [1, 2.5, null]}', "</think>", "a" * 50]


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller):
        return caller()


def reference():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)
    return environment


def tools(r):
    properties = {"city": {"type": "string", "description": "The city"}, "n": {"type": ["integer", "null"], "default": 3, "enum": [1, 2, 3]},
                  "t": {"type": "number", "minimum": 0.5}, "o": {"type": "object", "properties": {"k": {"type": "boolean"}}},
                  "l": {"type": "array", "items": {"type": "string"}}}
    return [{"type": "function", "function": {"name": r.choice(["get_weather", "search"]), "description": r.choice(["Get it.", "naïve <b>", "two\nlines"]),
             "parameters": {"type": "object", "properties": properties, "required": ["city"]}}} for _ in range(r.randrange(1, 3))]


def tool_calls(r, messages, answer):
    arguments = {"city": r.choice(["Paris", "Zürich"]), "n": r.randrange(5), "x": r.choice([1.5, 1e20, -0.00001, True, None, [1, "a"], {"k": 2}])}
    call = {"type": "function", "function": {"name": "get_weather", "arguments": json.dumps(arguments) if r.random() < .3 else arguments}}
    if r.random() < .6:
        call["id"] = "abcdef123"
    answer["tool_calls"] = [call] + ([dict(call)] if r.random() < .3 else [])
    if r.random() < .5:
        answer["content"] = r.choice([None, ""])
    for _ in answer["tool_calls"]:
        messages.append({"role": "tool", "name": "get_weather", "tool_call_id": call.get("id", "abcdef123"), "content": r.choice(["22.0", '{"t": 1}'])})
    if r.random() < .6:
        messages.append({"role": "assistant", "content": r.choice(TEXTS)})


def conversation(r, with_tools):
    messages = [{"role": "system", "content": r.choice(TEXTS)}] if r.random() < .5 else []
    for _ in range(r.randrange(1, 4)):
        messages.append({"role": "user", "content": r.choice(TEXTS)})
        if r.random() < .1:
            messages[-1]["content"] = [{"type": "text", "text": r.choice(TEXTS)}] + ([{"type": "image"}] if r.random() < .5 else [])
        if r.random() < .25:
            continue
        answer = {"role": "assistant", "content": r.choice(TEXTS)}
        if r.random() < .3:
            answer["reasoning_content"] = r.choice(["thought", "", "a\nb"])
        messages.append(answer)
        if with_tools and r.random() < .6:
            tool_calls(r, messages, answer)
    return messages


def context(r):
    with_tools = r.random() < .5
    made = {"messages": conversation(r, with_tools), "tools": tools(r) if with_tools else None, "documents": None,
            "add_generation_prompt": r.random() < .5, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    if not with_tools and r.random() < .5:
        del made["tools"]
    if r.random() < .4:
        made["enable_thinking"] = r.random() < .5
    return made


def rendered(environment, text, values):
    try:
        return {"text": environment.from_string(text).render(**values)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def write(out, count, seed, paths):
    environment, r = reference(), random.Random(seed)
    cases = refused = 0
    with open(out, "w", encoding="utf-8") as file:
        for path in paths:
            text = pathlib.Path(path).read_text(encoding="utf-8")
            for _ in range(count):
                values = context(r)
                case = {"template": str(path) if out.parent != GOLDEN else path.name, "context": values, "now": NOW}
                case |= rendered(environment, text, values)
                file.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")
                cases, refused = cases + 1, refused + ("error" in case)
    print(cases, "cases,", refused, "of them refused by the reference")


def expressions():
    """What single expressions give: tests/unit/text/template/golden/expressions.jsonl from expressions.txt."""
    environment = reference()
    values = {"s": " A naïve 'Text' with  blanks\n", "n": 7, "f": 2.5, "l": [3, 1, 2], "d": {"b": 1, "a": [1, {"c": None}], "items": 2},
              "words": ["b", "A", "c", "a"], "people": [{"name": "x", "age": 3}, {"name": "y"}, {"name": "z", "age": 1}], "e": "", "none": None,
              "t": True, "long": 1e22, "small": 0.00001}
    with open(GOLDEN / "expressions.jsonl", "w", encoding="utf-8") as out:
        for line in (GOLDEN / "expressions.txt").read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("##"):
                case = {"source": line, "context": values, "now": NOW} | rendered(environment, line, values)
                out.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")


def main(command, *arguments):
    own = sorted(GOLDEN.glob("*.jinja"))
    if command == "golden":
        write(GOLDEN / "cases.jsonl", 12, 1, own)
        expressions()
    elif command == "fuzz":
        out, count, seed, *paths = arguments
        write(pathlib.Path(out), int(count), int(seed), [pathlib.Path(p) for p in paths] or own)
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])
