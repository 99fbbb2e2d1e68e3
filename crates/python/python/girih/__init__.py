"""Runs open-weight language models (safetensors and GGUF) on this machine.

>>> import girih
>>> with girih.Model.open("stories260k") as model:
...     for event in model.stream("Once upon a time", max_tokens=4):
...         print(event.text, end="")
, there was a

A chat is a list of messages; the model's own template writes the prompt:
``model.generate([{"role": "user", "content": "Hello"}])``.
"""

from girih._girih import version as _version
from girih._model import Model, Plan, backends, plan
from girih._program import program, verify
from girih._replies import (
    AsyncStream,
    Event,
    Logprob,
    Rate,
    Reply,
    Stop,
    Stream,
    TokenLogprobs,
    ToolCall,
)
from girih._settings import Message, OpenOptions, Options, Prompt, RequestSettings
from girih._tokenizer import Tokenizer
from girih.errors import (
    Cancelled,
    DeviceFailed,
    GirihError,
    NotANumber,
    NotFound,
    OutOfMemory,
    OutOfRange,
    QueueFull,
    Refused,
    TooLong,
    WaitTooLong,
)

__version__ = _version()

__all__ = [
    "AsyncStream",
    "Cancelled",
    "DeviceFailed",
    "Event",
    "GirihError",
    "Logprob",
    "Message",
    "Model",
    "NotANumber",
    "NotFound",
    "OpenOptions",
    "Options",
    "OutOfMemory",
    "OutOfRange",
    "Plan",
    "Prompt",
    "QueueFull",
    "Rate",
    "Refused",
    "Reply",
    "RequestSettings",
    "Stop",
    "Stream",
    "TokenLogprobs",
    "Tokenizer",
    "ToolCall",
    "TooLong",
    "WaitTooLong",
    "backends",
    "plan",
    "program",
    "verify",
]
