#!/usr/bin/env python3
"""Measure how much of each prompt of a conversation a server takes from its cache.

    scripts/conversation_cache.py TOKENIZER [--girih target/release/girih] [--turns 10]

TOKENIZER is a folder with `tokenizer.json` and a `tokenizer_config.json` that has a chat template with thinking and
tools, such as that of Qwen3. Makes a small Qwen3.5 with random weights and this vocabulary, serves it, and talks with it
for some turns: a question, a call of a tool after some thinking, its result, an answer after some thinking. The client
sends the whole history each time, and the template drops the thinking of earlier turns.

Prints for each request the tokens of its prompt, those that are equal to the beginning of an earlier prompt (which the
script counts with transformers), and those that the server took from its cache. Values that a model carries are
copied at ends of blocks of 64 tokens and at the end of a prompt, so the cached tokens are fewer than the equal ones. Exits
with 1 if the cached tokens of all requests but the first are below 90 % of the equal ones. Needs torch and
transformers.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import torch
import transformers

SHARE = 0.9
"""The least share of cached tokens among the equal ones."""

CONTEXT = 8192

Message = dict[str, Any]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Returns the {name} of a city on a day, from measurements of its stations.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "day": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
    for name in ("temperature", "rainfall", "wind")
]


def write_model(folder: Path, tokenizer: Path) -> None:
    """Write a small Qwen3.5 with random weights and the tokenizer."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)
    vocabulary = len(transformers.AutoTokenizer.from_pretrained(tokenizer))
    config = transformers.Qwen3_5TextConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    transformers.Qwen3_5ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def turn(index: int) -> list[list[Message]]:
    """Return what a turn adds to the history before each of its requests."""
    city = ("Bern", "Oslo", "Lima", "Kyoto", "Cairo")[index % 5]
    call = {"name": TOOLS[index % 3]["function"]["name"], "arguments": json.dumps({"city": city, "day": f"May {index + 1}"})}
    thinking = f"The question of turn {index} is about {city}. " * 6
    return [
        [{"role": "user", "content": f"What was measured in {city} on day {index + 1} of May? " + "Please be exact. " * 8}],
        [
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": thinking + "A tool knows it.",
                "tool_calls": [{"id": f"call_{index}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{index}", "content": json.dumps({"station": city, "values": list(range(24))})},
        ],
    ]


def answer(index: int) -> Message:
    """Return the reply that ends a turn."""
    thinking = "The result has a value for each hour of the day. " * 6
    return {"role": "assistant", "content": f"The stations measured {index} to {index + 23}. " * 4, "reasoning_content": thinking}


def for_template(messages: list[Message]) -> list[Message]:
    """Return messages whose calls have their arguments as objects, as the server gives them to a template."""

    def parsed(call: Message) -> Message:
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}

    return [
        {**message, "tool_calls": [parsed(call) for call in message["tool_calls"]]} if "tool_calls" in message else message
        for message in messages
    ]


def equal_start(first: list[int], second: list[int]) -> int:
    """Return the number of equal tokens at the beginning of two prompts."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def main() -> None:
    """Talk with the server, and print what was cached."""
    parser = argparse.ArgumentParser(description="Measure what a server caches of a conversation.")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--girih", default="target/release/girih")
    parser.add_argument("--turns", type=int, default=10)
    args = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), args.tokenizer)
        command = [args.girih, "serve", folder, "--port", "0", "--context", str(CONTEXT), "--served-name", "small"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            shares = talk(server, tokenizer, args.turns)
        finally:
            server.terminate()
            server.wait()
    print(f"cached {shares:.1%} of the tokens that were equal to earlier ones")
    sys.exit(shares < SHARE)


def talk(server: subprocess.Popen, tokenizer: Any, turns: int) -> float:
    """Hold the conversation, and return the share of cached tokens among the equal ones."""
    address = next(word.rstrip("/.") for line in server.stdout for word in line.split() if word.startswith("http://"))
    history: list[Message] = [{"role": "system", "content": "You report what weather stations have measured. " * 10}]
    prompts: list[list[int]] = []
    equals, cached_tokens = 0, 0
    print("request  prompt  equal  cached  share")
    for index in range(turns):
        for added in turn(index):
            history += added
            text = tokenizer.apply_chat_template(for_template(history), tools=TOOLS, tokenize=False, add_generation_prompt=True)
            prompt = tokenizer(text)["input_ids"]
            equal = max((equal_start(prompt, earlier) for earlier in prompts), default=0)
            body = {"model": "small", "messages": history, "tools": TOOLS, "max_tokens": 8, "temperature": 0}
            request = urllib.request.Request(
                f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as reply:
                usage = json.load(reply)["usage"]
            assert usage["prompt_tokens"] == len(prompt), (usage, len(prompt))
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            share = f"{cached / equal:.1%}" if equal else "-"
            print(f"{len(prompts):7}  {len(prompt):6}  {equal:5}  {cached:6}  {share}")
            prompts.append(prompt)
            equals, cached_tokens = equals + equal, cached_tokens + cached
        history.append(answer(index))
    return cached_tokens / equals


if __name__ == "__main__":
    main()
