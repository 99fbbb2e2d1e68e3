"""A worker of NVIDIA Dynamo over the package `girih`, without etcd or NATS:

    python worker.py MODEL --discovery-backend file --request-plane tcp --event-plane zmq

MODEL is a folder with config.json and tokenizer.json, which Dynamo's frontend reads, too. The frontend tokenizes and detokenizes, finds
stop texts and routes; the worker takes token ids and returns token ids. What girih cannot do is refused by name. Workers publish
no events of their cache, as the package has no interface for that: `girih-dynamo` in this folder does, and so do servers
(`girih serve --kv-events`).

Needs `girih`, `ai-dynamo-runtime` and `ai-dynamo` (1.6.0 was tried).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from dynamo._core import Context
from dynamo.common.backend.engine import EngineConfig, GenerateChunk, GenerateRequest, LLMEngine, LlmRegistration
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig

import girih

BLOCK = 64
"""Tokens of a block of girih's KV cache."""

CHUNK = 128
"""The most tokens of prompts in a step."""

SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")

FINISH = {"length": "length", "context": "length", "cancelled": "cancelled", "deadline": "cancelled"}
"""Dynamo's reason for each of girih's; all others are `stop`."""

NEUTRAL: dict[str, Any] = {"n": 1, "best_of": 1, "use_beam_search": False, "length_penalty": 1.0}
"""Settings that girih has not, with the only value that is accepted."""

GRAMMARS = {"json": "schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
"""girih's name for each kind of guided decoding."""

WITHOUT_EFFECT = (
    "reasoning_ended",
    "reasoning_parser_kwargs",
    "nvext.cache_salt",
    "nvext.extra_fields",
    "nvext.token_in",
    "sampling_options.detokenize",
)
"""Keys of `extra_args` that concern the frontend, or parsers of thinking of other engines. The salt stands in the routes, too."""


def refuse(what: str, is_asked: object) -> None:
    if is_asked:
        raise ValueError(f"girih's worker does not support {what}; leave it out")


def grammar(asked: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        refuse(f"{name} of guided decoding", name not in GRAMMARS)
    refuse("several grammars at once", len(given) > 1)
    return {GRAMMARS[name]: value for name, value in given.items()}


def sampling(asked: dict[str, Any]) -> dict[str, Any]:
    for name, value in NEUTRAL.items():
        refuse(f"{name} {asked.get(name)}", asked.get(name) not in (None, value))
    settings = {name: asked[name] for name in SAMPLING if asked.get(name) is not None}
    if (top_k := asked.get("top_k")) is not None:
        settings["top_k"] = 0 if top_k == -1 else top_k
    if (seed := asked.get("seed")) is not None:
        settings["seed"] = seed % 2**64
    return {**settings, **grammar(asked.get("guided_decoding") or {})}


def extra_keys(extra: dict[str, Any]) -> list[str]:
    """The keys of `extra_args`: those of its two objects `nvext` and `sampling_options` behind theirs."""
    inner = {name: extra[name] for name in ("nvext", "sampling_options") if isinstance(extra.get(name), dict)}
    return [name for name in extra if name not in inner] + [f"{name}.{key}" for name, keys in inner.items() for key in keys]


def stops(request: GenerateRequest, room: int, has_grammar: bool) -> dict[str, Any]:
    """Where the reply ends. More tokens than the context has are cut; the frontend finds texts."""
    asked = request.get("stop_conditions") or {}
    refuse("max_thinking_tokens", asked.get("max_thinking_tokens") is not None)
    # girih ends a reply where the model does, and the package does not tell these tokens.
    refuse("ignore_eos", asked.get("ignore_eos"))
    max_tokens = room if asked.get("max_tokens") is None else min(room, asked["max_tokens"])
    lists = [asked.get(f"stop_token_ids{kind}") or [] for kind in ("", "_visible", "_hidden")]
    lists.append(request.get("eos_token_ids") or [])  # type: ignore[arg-type]
    tokens = {token for tokens in lists for token in tokens}
    if has_grammar:
        # A grammar takes no other ends than the model's own, which the frontend names, too.
        tokens -= set(request.get("eos_token_ids") or [])  # type: ignore[call-overload]
    return {"max_tokens": max_tokens, "min_tokens": asked.get("min_tokens") or 0, "stop_tokens": sorted(tokens)}


def settings_of(request: GenerateRequest, room: int) -> dict[str, Any]:
    for name in ("prompt_embeds", "multi_modal_data", "prefill_result", "encoder_result", "bootstrap_info", "require_reasoning"):
        refuse(name, request.get(name))
    for name in extra_keys(request.get("extra_args") or {}):
        refuse(f"{name} of extra_args", name not in WITHOUT_EFFECT)
    sampled = sampling(request.get("sampling_options") or {})
    has_grammar = any(name in sampled for name in GRAMMARS.values())
    settings = {"text": False, **sampled, **stops(request, room, has_grammar)}
    output, routing = request.get("output_options") or {}, request.get("routing") or {}
    refuse("prompt_logprobs", output.get("prompt_logprobs") is not None)
    if output.get("logprobs") is not None:
        settings["logprobs"] = output["logprobs"]
    if routing.get("lora_name"):
        settings["adapter"] = routing["lora_name"]
    if routing.get("cache_salt"):
        settings["tenant"] = routing["cache_salt"]
    return settings


def with_logprobs(chunk: GenerateChunk, found: girih.TokenLogprobs | None) -> GenerateChunk:
    if found is not None:
        chunk["log_probs"] = [found.logprob]
        top = [{"rank": rank, "token_id": one.id, "token": None, "logprob": one.logprob} for rank, one in enumerate(found.top, 1)]
        chunk["top_logprobs"] = [top]
    return chunk


class GirihEngine(LLMEngine):
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.model: girih.Model | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[GirihEngine, WorkerConfig]:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("model")
        parser.add_argument("--served-model-name")
        parser.add_argument("--context", type=int, default=4096)
        parser.add_argument("--sequences", type=int, default=8)
        parser.add_argument("--threads", type=int)
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--component", default="backend")
        parser.add_argument("--endpoint", default="generate")
        parser.add_argument("--endpoint-types", default="chat,completions")
        parser.add_argument("--discovery-backend", default="etcd")
        parser.add_argument("--request-plane", default="tcp")
        parser.add_argument("--event-plane")
        args = parser.parse_args(argv)
        config = WorkerConfig(
            namespace=args.namespace,
            component=args.component,
            endpoint=args.endpoint,
            model_name=args.model,
            served_model_name=args.served_model_name or args.model,
            endpoint_types=args.endpoint_types,
            discovery_backend=args.discovery_backend,
            request_plane=args.request_plane,
            event_plane=args.event_plane,
        )
        return cls(args), config

    def open(self) -> girih.Model:
        options: girih.Options = {"context": self.args.context, "sequences": self.args.sequences, "chunk": CHUNK}
        if self.args.threads:
            options["threads"] = self.args.threads
        return girih.Model.open(self.args.model, **options)

    async def start(self, worker_id: int) -> EngineConfig:
        del worker_id
        self.model = await asyncio.to_thread(self.open)
        registration = LlmRegistration(
            context_length=self.args.context,
            kv_cache_block_size=BLOCK,
            total_kv_blocks=self.args.sequences * -(-self.args.context // BLOCK),
            max_num_seqs=self.args.sequences,
            max_num_batched_tokens=CHUNK,
        )
        name = self.args.served_model_name or self.args.model
        return EngineConfig(model=self.args.model, served_model_name=name, llm=registration)

    async def generate(self, request: GenerateRequest, context: Context) -> AsyncGenerator[GenerateChunk, None]:
        assert self.model is not None, "Dynamo starts an engine before it asks it"
        prompt = list(request["token_ids"])
        settings = settings_of(request, max(1, self.args.context - len(prompt)))
        count = 0
        # A client that leaves ends the request.
        async with await self.model.astream(prompt, **settings) as events:
            async for event in events:
                if context.is_stopped():
                    break
                if event.kind == "token":
                    count += 1
                    yield with_logprobs({"token_ids": [event.id or 0], "index": 0}, event.logprobs)
                elif event.stop is not None:
                    # The frontend wants the token that ended the reply, and hides it where it must.
                    last = [] if event.stop.token is None else [event.stop.token]
                    yield ended(FINISH.get(event.stop.kind, "stop"), len(prompt), count + len(last), last, event.fields)
                    return
        yield ended("cancelled", len(prompt), count, [], {})

    async def cleanup(self) -> None:
        model, self.model = self.model, None
        if model is not None:
            await asyncio.to_thread(model.close)


def ended(reason: str, prompt: int, count: int, last: list[int], fields: dict[str, Any]) -> GenerateChunk:
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
    if (cached := fields.get("cached_tokens")) is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"token_ids": last, "index": 0, "finish_reason": reason, "completion_usage": usage}


if __name__ == "__main__":
    run(GirihEngine)
