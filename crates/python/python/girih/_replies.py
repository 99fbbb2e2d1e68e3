"""Replies: the whole of one, or its events as they come."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from girih import _girih

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of a token: a natural logarithm, of the model's own distribution."""

    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a token and those of the most likely ones, the most likely first."""

    id: int
    logprob: float
    top: list[Logprob]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. ``arguments`` is a JSON object in text, unless ``fault`` says why it is none."""

    id: str
    name: str
    arguments: str
    fault: str | None = None

    def parsed(self) -> Any:
        """The arguments as Python's values."""
        return json.loads(self.arguments)


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of tokens and the time that they took."""

    tokens: int
    seconds: float
    tokens_per_second: float


#: Why a reply ended: the model chose a stop token, the text reached a stop text, the number of tokens, the end of the
#: context, a complete grammar, a cancelled request, a reply that repeats itself, or a time limit.
StopKind = Literal["token", "string", "length", "context", "complete", "cancelled", "repetition", "deadline"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a reply ended, and the stop token or the stop text."""

    kind: StopKind
    token: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that is complete."""

    text: str
    """All of it as the model wrote it, without special tokens."""
    content: str
    """The text for the user; without a chat template, all of it."""
    thinking: str
    """The text of the model for itself."""
    tool_calls: list[ToolCall]
    tokens: list[int]
    """The token ids, without a stop token."""
    stop: Stop
    logprobs: list[TokenLogprobs]
    """One entry for each token, if the request asked for them."""
    prompt_logprobs: list[TokenLogprobs | None]
    """One entry for each token of the prompt, if the request asked for them; ``None`` for the first."""
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that were in the prefix cache."""
    prefill: Rate
    decode: Rate
    drafted_tokens: int
    accepted_tokens: int
    first_token_seconds: float
    seconds: float
    parsed: Any = None
    """The reply as the pydantic model that was its schema."""

    def __str__(self) -> str:
        return self.content


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a reply. ``text`` is empty unless it releases text.

    ``kind`` is ``prompt_token``, ``prefilled``, ``token`` or ``end``, the last one.
    """

    kind: Literal["prompt_token", "prefilled", "token", "end"]
    text: str = ""
    id: int | None = None
    content: str = ""
    thinking: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Pieces of calls: ``{"call": ID, "name": NAME}``, ``{"arguments": TEXT}`` and ``{"call_end": True, "fault": …}``."""
    logprobs: TokenLogprobs | None = None
    stop: Stop | None = None
    """Why the reply ended, in the last event."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The counts and times of the events ``prefilled`` and ``end``."""


def _logprobs(value: Any) -> TokenLogprobs | None:
    if value is None:
        return None
    top = [Logprob(one["id"], one["logprob"]) for one in value["top_logprobs"]]
    return TokenLogprobs(value["id"], value["logprob"], top)


def _stop(value: Any) -> Stop:
    if isinstance(value, str):
        return Stop(value)  # type: ignore[arg-type]  # the native part has these words
    if "token" in value:
        return Stop("token", token=value["token"])
    return Stop("string", text=value["string"])


def _rate(value: Any) -> Rate:
    return Rate(value["tokens"], value["seconds"], value["tokens_per_second"])


def _call(value: Any) -> ToolCall:
    function = value["function"]
    return ToolCall(value["id"], function["name"], function["arguments"], value.get("fault"))


def _parsed(schema: Any, content: str) -> Any:
    """The content as the pydantic model that is the schema, if it is one."""
    return schema.model_validate_json(content) if hasattr(schema, "model_validate_json") else None


def whole_reply(text: str, schema: Any) -> Reply:
    """The reply of the native part's JSON."""
    value = json.loads(text)
    logprobs = [entry for entry in map(_logprobs, value["logprobs"]) if entry is not None]
    return Reply(
        text=value["text"],
        content=value["content"],
        thinking=value["thinking"],
        tool_calls=[_call(call) for call in value["tool_calls"]],
        tokens=value["tokens"],
        stop=_stop(value["stop"]),
        logprobs=logprobs,
        prompt_logprobs=[_logprobs(entry) for entry in value["prompt_logprobs"]],
        prompt_tokens=value["prompt_tokens"],
        cached_tokens=value["cached_tokens"],
        prefill=_rate(value["prefill"]),
        decode=_rate(value["decode"]),
        drafted_tokens=value["drafted_tokens"],
        accepted_tokens=value["accepted_tokens"],
        first_token_seconds=value["first_token_seconds"],
        seconds=value["seconds"],
        parsed=_parsed(schema, value["content"]),
    )


def event_of(text: str) -> Event:
    """The event of the native part's JSON."""
    value = json.loads(text)
    kind, parts = value.pop("event"), value.pop("parts", [])
    released, id = value.pop("text", ""), value.pop("id", None)
    logprobs, stop = _logprobs(value.pop("logprobs", None)), value.pop("stop", None)
    return Event(
        kind=kind,
        text=released,
        id=id,
        content="".join(part.get("content", "") for part in parts),
        thinking="".join(part.get("thinking", "") for part in parts),
        calls=[part for part in parts if "content" not in part and "thinking" not in part],
        logprobs=logprobs,
        stop=None if stop is None else _stop(stop),
        fields=value,
    )


class _Request:
    """A request that runs."""

    def __init__(self, native: _girih.Reply) -> None:
        self._native = native

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the prompt."""
        return self._native.prompt_tokens

    def cancel(self) -> None:
        """Cancels the request, from any thread; the last event says so."""
        self._native.cancel()


class Stream(_Request, Iterator[Event]):
    """The events of a reply as they come. Leaving a ``with``, or dropping it, cancels the request.

    >>> import girih
    >>> model = girih.Model.open("stories260k")
    >>> with model.stream("Once upon a time", max_tokens=4) as reply:
    ...     print("".join(event.text for event in reply))
    , there was a
    """

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Event:
        event = self._native.next()
        if event is None:
            raise StopIteration
        return event_of(event)

    def close(self) -> None:
        """Cancels the request, and ends the events."""
        self._native.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream(_Request, AsyncIterator[Event]):
    """As :class:`Stream`, in an event loop. One task reads it; if that is cancelled while it waits, so is the
    request.

    >>> import asyncio, girih
    >>> async def story(model):
    ...     async with await model.astream("Once upon a time", max_tokens=4) as reply:
    ...         return "".join([event.text async for event in reply])
    >>> asyncio.run(story(girih.Model.open("stories260k")))
    ', there was a'
    """

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Event:
        while True:
            goes_on, event = self._native.poll_next()
            if event is not None:
                return event_of(event)
            if not goes_on:
                raise StopAsyncIteration
            await _readable(self._native)

    async def aclose(self) -> None:
        """Cancels the request, and ends the events."""
        self._native.close()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._native.close()


async def _readable(native: _girih.Reply) -> None:
    """Waits until there is more of a reply. A cancelled wait cancels the request."""
    import asyncio  # takes longer to import than all else

    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    file = native.fileno()
    loop.add_reader(file, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    except asyncio.CancelledError:
        native.close()
        raise
    finally:
        loop.remove_reader(file)


async def finished(native: _girih.Reply, schema: Any) -> Reply:
    """The whole reply, in an event loop."""
    while True:
        whole = native.poll_finish()
        if whole is not None:
            return whole_reply(whole, schema)
        await _readable(native)
