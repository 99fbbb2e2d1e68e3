#!/usr/bin/env python3
"""Renders chat templates with transformers' Jinja, for `cargo test -p girih-words templates`.

    scripts/render_templates.py TEMPLATES OUT

For each `NAME.jinja` in TEMPLATES, OUT gets `NAME.jinja` and `NAME.jsonl`: a line per conversation, with
tools, thinking and other variables, and its text or the error. Set GIRIH_TEST_TEMPLATES to OUT.
"""

import datetime
import json
import shutil
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

DAY = datetime.datetime(2024, 7, 26, tzinfo=datetime.timezone.utc)

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "A city, such as \"Orléans\""},
            "days": {"type": "integer", "default": 1},
            "units": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "at": {"type": "array", "items": {"type": "number"}},
            "options": {"type": "object", "properties": {"wind": {"type": "boolean"}}}},
            "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time.",
        "parameters": {"type": "object", "properties": {}}}},
]


def call(name, arguments, id):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "Be brief & <kind>."}
USER = {"role": "user", "content": "Will it rain?\nIn 'Orléans' \"today\""}
THINKS = {"role": "assistant", "content": "Yes.", "reasoning_content": "Clouds.\n\nMany.", "thinking": "Clouds.\n\nMany."}
TAGGED = {"role": "assistant", "content": "<think>\nClouds.\n</think>\n\nYes."}
CALLS = {"role": "assistant", "content": "I look.", "reasoning_content": "A tool.", "thinking": "A tool.", "tool_calls": [
    call("get_weather", {"city": "Orléans", "days": 2, "at": [1.5, 2], "options": {"wind": True}}, "call00001")]}
TWO_CALLS = {"role": "assistant", "content": "", "tool_calls": [
    call("get_weather", {"city": "Paris"}, "call00001"), call("now", {}, "call00002")]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"rain\": true}"}
RESULT_2 = {"role": "tool", "name": "now", "tool_call_id": "call00002", "content": "12:00"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Two"}, {"type": "text", "text": " parts"}]}

CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, {"role": "assistant", "content": "Yes."}, USER],
    "thinking": [USER, THINKS, USER],
    "tagged": [USER, TAGGED, USER],
    "ends-in-reply": [USER, THINKS],
    "calls": [SYSTEM, USER, CALLS, RESULT],
    "calls-answered": [USER, CALLS, RESULT, {"role": "assistant", "content": "It rains."}, USER],
    "two-calls": [USER, TWO_CALLS, RESULT, RESULT_2],
    "parts": [PARTS],
    "developer": [{"role": "developer", "content": "Be brief."}, USER],
}

VARIABLES = [
    {},
    {"enable_thinking": False, "thinking": False},
    {"enable_thinking": True, "thinking": True, "reasoning_effort": "high", "reasoning_strength": "low"},
]


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.jinja")):
        shutil.copy(path, out)
        try:
            template = _compile_jinja_template(path.read_text(encoding="utf-8"))
        except Exception as error:
            print(f"{path.name}: {error}")
            continue
        with open(out / f"{path.stem}.jsonl", "w", encoding="utf-8") as file:
            for name, messages in CONVERSATIONS.items():
                for tools in (None, TOOLS):
                    for variables in VARIABLES:
                        prompt = name != "ends-in-reply"
                        kwargs = {"bos_token": "<bos>", "eos_token": "<eos>", **variables}
                        row = {"scenario": name, "messages": messages, "tools": tools,
                            "add_generation_prompt": prompt, "kwargs": kwargs}
                        try:
                            row["rendered"] = template.render(messages=messages, tools=tools, documents=None,
                                add_generation_prompt=prompt, strftime_now=DAY.strftime, **kwargs)
                        except Exception as error:
                            row["error"] = f"{type(error).__name__}: {error}"
                        file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
