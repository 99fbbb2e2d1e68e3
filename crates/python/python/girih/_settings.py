"""The options of a model and the settings of a request, as types and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from girih._program import find_program
from girih.errors import Refused

if TYPE_CHECKING:
    from typing import TypeAlias

#: A message of a conversation, such as ``{"role": "user", "content": "Hello"}``.
Message: TypeAlias = Mapping[str, Any]

#: What a reply continues: a text, token ids, or the messages of a conversation.
Prompt: TypeAlias = "str | Sequence[int] | Sequence[Message]"


class OpenOptions(TypedDict, total=False):
    """How a model or a tokenizer is opened."""

    chat_template: str
    """A Jinja template in place of the model's own."""
    reply_style: str
    """The style of thinking and calls in replies, such as ``hermes``; detected from the template by default."""
    adapters: Mapping[str, str]
    """LoRA adapters: their names and folders."""
    projector: str
    """The file of the image tower of a GGUF."""
    allow_key: str | Sequence[str]
    """Keys of the model's configuration that are unknown and may be ignored."""
    pack: str
    """``q8_0``: matrices in floats are quantized when they are loaded, as ``girih quantize --type q8_0`` does it."""
    architectures: str | Sequence[str]
    """Descriptions (TOML) of architectures that girih does not include."""
    cache: str
    """The folder of packed weights; by default the one that the program has."""


class Options(OpenOptions, total=False):
    """How a model is opened and run."""

    backend: str
    """``cpu``, ``interpreter``, ``npu``, ``openvino`` or ``gpu``, perhaps with ``:device``."""
    backend_options: Mapping[str, str]
    """The backend's own options, such as ``{"act-precision": "f32"}``."""
    threads: int
    """Number of threads (does not affect results)."""
    kv: str
    """The type of the KV cache: ``f32``, ``f16`` (default), ``bf16``, ``q8_0`` or ``q4_0``."""
    context: int
    """The maximum number of tokens of a sequence; by default the model's, at most 4096."""
    chunk: int
    """The maximum number of rows of one step; 512 by default."""
    sequences: int
    """The maximum number of requests that run at once; 1 by default."""
    waiting: int
    """The maximum number of requests that wait; 64 by default."""
    max_wait: float
    """The maximum time in seconds for which a request waits."""
    step_time: float
    """The time in seconds that a step with rows of prompts should take beside replies; without it, ``chunk`` bounds it."""
    tenant_waiting: int
    """The maximum number of waiting requests of one tenant."""
    tenant_requests: int
    """The maximum number of requests of one tenant that have not ended."""
    output_rows: int
    """The maximum number of rows of logits of one step; more speed up ``prompt_logprobs``."""
    drafts: str | Mapping[str, str]
    """``off``, ``prompt-lookup``, ``mtp`` or ``{"model": NAME}``; they change no reply."""
    draft_max: int
    """The maximum number of tokens of a draft; 15 by default."""
    prompt_cache: Mapping[str, Any]
    """``{"folder": PATH, "limit": BYTES}``: where the state of prompts is kept for later runs."""
    unread_events: int
    """The number of unread events at which a request is suspended; 1024 by default."""


class RequestSettings(TypedDict, total=False):
    """The settings of a request. Absent ones are the model's own, else greedy."""

    max_tokens: int
    """The maximum number of tokens of the reply; 256 by default, or fewer if the context has less room."""
    min_tokens: int
    """The number of tokens before which neither the model nor a stop ends the reply."""
    fill_context: bool
    """Lets the reply be as long as the context allows."""
    special: bool
    """Parses special tokens in a prompt of text."""
    truncate: bool
    """Drops the oldest tokens when the context is full, instead of refusing the request."""
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    mirostat_tau: float
    mirostat_eta: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_range: int
    logit_bias: Mapping[int, float]
    """Added to the logits of single tokens; minus infinity rules one out."""
    seed: int
    """The seed; 0 by default, so a repeated request has the same reply."""
    stop: str | Sequence[str]
    """Texts before which the reply ends."""
    stop_tokens: Sequence[int]
    """Tokens that end the reply beside the model's own."""
    include_stop: bool
    """Lets the reply end after its stop text and not before it."""
    text: bool
    """False: the reply has token ids alone."""
    logprobs: int
    """Reports the log-probability of each token, and of this number of most likely ones (0 to 20)."""
    prompt_logprobs: int
    """As ``logprobs``, for the tokens of the prompt."""
    thinking_budget: int
    """Ends the model's thinking after this number of tokens."""
    tools: Sequence[Mapping[str, Any]]
    """Tools that the model may call, in OpenAI's form."""
    tool_choice: str
    """``auto``, ``required``, or the name of the tool that must be called."""
    documents: Sequence[Mapping[str, Any]]
    """Documents for the chat template."""
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any]
    """Variables for the chat template."""
    schema: Any
    """A JSON Schema, or a pydantic model: the reply is JSON that it accepts."""
    json_object: bool
    """The reply is any JSON object."""
    regex: str
    """The reply matches this regular expression as a whole."""
    choice: Sequence[str]
    """The reply is one of these texts."""
    grammar: str
    """The reply is a text of this grammar (GBNF or Lark)."""
    adapter: str
    """The name of the adapter that is used."""
    draft_max: int
    tenant: str
    """Whom the request belongs to: tenants share time fairly, and no cached state."""
    queue_timeout: float
    """The maximum time in seconds until the request begins."""
    timeout: float
    """The maximum time in seconds until the end."""


#: The variables of the environment that girih reads: where caches are, and how the hub is reached.
_VARIABLES = (
    "HOME",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
)


def open_json(options: Mapping[str, Any]) -> str:
    """The options of opening as JSON, with the environment and the program of this package."""
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return json.dumps({**options, "variables": variables, "program": find_program()})


def split_options(options: Options) -> tuple[str, str]:
    """The options of opening and of running as JSON."""
    of_opening = OpenOptions.__optional_keys__
    opening = {name: value for name, value in options.items() if name in of_opening}
    running = {name: value for name, value in options.items() if name not in of_opening}
    return open_json(opening), dumps(running)


def dumps(value: Mapping[str, Any]) -> str:
    """JSON, without what JSON does not know."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Refused(f"a setting cannot be written as JSON: {error}") from None


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """The fields of a prompt."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    items = list(prompt)
    if items and all(isinstance(item, Mapping) for item in items):
        return {"messages": [dict(item) for item in items if isinstance(item, Mapping)]}
    # Numbers of numpy are integers, but no JSON.
    return {"prompt": [item.__index__() if hasattr(item, "__index__") else item for item in items]}


def request_json(prompt: Prompt, settings: RequestSettings) -> str:
    """A request as JSON."""
    fields: dict[str, Any] = {**settings, **prompt_fields(prompt)}
    schema: Any = fields.get("schema")
    if schema is not None and hasattr(schema, "model_json_schema"):
        fields["schema"] = schema.model_json_schema()
    bias = fields.get("logit_bias")
    if isinstance(bias, Mapping):
        fields["logit_bias"] = {str(id): "-inf" if value == float("-inf") else value for id, value in bias.items()}
    return dumps(fields)
