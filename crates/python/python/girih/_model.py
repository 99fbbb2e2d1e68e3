"""A model: opening, generating, embedding."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from girih import _girih
from girih._replies import AsyncStream, Reply, Stream, finished, whole_reply
from girih._settings import Options, Prompt, RequestSettings, request_json, split_options
from girih._tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a model needs before it is loaded. Sizes are in bytes."""

    memory: dict[str, Any]
    """``weights``, ``state`` (KV cache), ``scratch``, ``output``, ``staging``, ``total``, and the same below ``device``."""
    facts: dict[str, Any]
    """Name, sizes, context, backend, arithmetic, and the parts that the backend refuses."""

    @property
    def total(self) -> int:
        """The memory of the host that is planned."""
        return int(self.memory["total"])


def plan(name: str | os.PathLike[str], **options: Unpack[Options]) -> Plan:
    """Plans a model without loading it.

    >>> import girih
    >>> girih.plan("stories260k", context=512).total < 16 << 20
    True
    """
    facts = json.loads(_girih.plan(os.fspath(name), *split_options(options)))
    return Plan(memory=facts.pop("memory"), facts=facts)


def backends() -> list[str]:
    """The names of the backends; the first is the default.

    >>> import girih
    >>> girih.backends()[0]
    'cpu'
    """
    return _girih.backends()


class Model:
    """A loaded model. Any number of threads and tasks may use it; requests above ``sequences`` wait.

    >>> import girih
    >>> with girih.Model.open("stories260k") as model:
    ...     model.generate("Once upon a time", max_tokens=8).text
    ', there was a little girl'

    The same request has the same reply, whatever else runs, on any number of threads.
    """

    def __init__(self, native: _girih.Model, facts: dict[str, Any]) -> None:
        self._native = native
        self._facts = facts

    @classmethod
    def open(
        cls,
        name: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], object] | None = None,
        **options: Unpack[Options],
    ) -> Model:
        """Opens and loads a model: a folder, a ``.gguf``, ``.safetensors`` or ``.q4nx`` file, an id among the downloaded models
        (``org/name``), or the built-in ``stories260k``. Returns when it is ready.

        ``progress(done, total)`` is called on this thread with the bytes of weights that are read. An exception in it, or
        Ctrl-C, ends the loading.

        Raises :class:`girih.NotFound` if there is no such model, :class:`girih.OutOfMemory` if it does not fit, and others
        if its files are malformed or not supported.
        """
        native, facts = _girih.Model.open(os.fspath(name), *split_options(options), progress)
        return cls(native, json.loads(facts))

    @property
    def facts(self) -> dict[str, Any]:
        """Its name, sizes, context and backend.

        >>> import girih
        >>> girih.Model.open("stories260k").facts["parameters"]
        260032
        """
        return dict(self._facts)

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return Tokenizer(self._native.tokenizer())

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text as :meth:`generate` takes it: with BOS, if the tokenizer is configured to add it."""
        return self._native.tokenize(text)

    def generate(self, prompt: Prompt, **settings: Unpack[RequestSettings]) -> Reply:
        """Waits for a whole reply to a text, to token ids, or to the messages of a conversation.

        >>> import girih
        >>> model = girih.Model.open("stories260k")
        >>> reply = model.generate("Once upon a time", temperature=0.8, seed=7, stop=["."], logprobs=0)
        >>> "." in reply.text, len(reply.logprobs) == len(reply.tokens)
        (False, True)

        Ctrl-C cancels the request. Raises :class:`girih.Refused` or :class:`girih.TooLong` if the request is wrong.
        """
        native = self._native.generate(request_json(prompt, settings))
        try:
            return whole_reply(native.finish(), settings.get("schema"))
        finally:
            native.close()

    def stream(self, prompt: Prompt, **settings: Unpack[RequestSettings]) -> Stream:
        """As :meth:`generate`; returns the events of the reply as they come."""
        return Stream(self._native.generate(request_json(prompt, settings)))

    async def agenerate(self, prompt: Prompt, **settings: Unpack[RequestSettings]) -> Reply:
        """As :meth:`generate`, in an event loop; cancelling the task cancels the request.

        >>> import asyncio, girih
        >>> model = girih.Model.open("stories260k", sequences=2)
        >>> async def both():
        ...     return await asyncio.gather(*(model.agenerate(name, max_tokens=2) for name in ("Lily", "Tom")))
        >>> [reply.text for reply in asyncio.run(both())]
        [' and T', ' and Lily']
        """
        return await finished(await self._queued(prompt, settings), settings.get("schema"))

    async def astream(self, prompt: Prompt, **settings: Unpack[RequestSettings]) -> AsyncStream:
        """As :meth:`stream`, in an event loop."""
        return AsyncStream(await self._queued(prompt, settings))

    def logits(self, prompt: str | Sequence[int]) -> Array:
        """The logits of the token that follows: an array ``[vocabulary]`` of the memory in which they were computed.

        >>> import girih
        >>> model = girih.Model.open("stories260k")
        >>> model.tokenizer.decode([int(model.logits("Once upon a").argmax())])
        'time'
        """
        return _array(self._native.logits(self._ids(prompt)))

    def hidden_states(self, prompt: str | Sequence[int]) -> dict[str, Array]:
        """The hidden states of each token as transformers numbers them (``embed``, ``layers.0.out``, …, ``head.norm``), arrays
        ``[tokens, width]``, and the ``logits``, ``[tokens, vocabulary]``.

        The first call loads the weights a second time, into an engine that keeps what it computes.

        >>> import girih
        >>> states = girih.Model.open("stories260k").hidden_states("Once upon a time")
        >>> states["head.norm"].shape, states["logits"].shape
        ((5, 64), (5, 512))
        """
        ids = self._ids(prompt)
        states = self._native.hidden_states(ids)
        return {name: _array(numbers).reshape(len(ids), -1) for name, numbers in states}

    def embed(self, texts: str | Sequence[str]) -> Array:
        """One vector for each text, ``[texts, width]``; for one text, ``[width]``. The model must be an encoder."""
        several = [texts] if isinstance(texts, str) else list(texts)
        numbers, width = self._native.embed([self.tokenize(text) for text in several])
        vectors = _array(numbers).reshape(len(several), width)
        return vectors[0] if isinstance(texts, str) else vectors

    def notes(self) -> list[str]:
        """The sentences that girih has told since the last call, such as why packed weights are not cached."""
        return self._native.notes()

    def close(self) -> None:
        """Cancels its replies and gives its memory back. Later calls raise :class:`girih.Refused`."""
        self._native.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<girih.Model {self._facts['name']!r}>"

    async def _queued(self, prompt: Prompt, settings: RequestSettings) -> _girih.Reply:
        """The reply to a request that is queued on a thread, as a long prompt takes time to tokenize."""
        import asyncio  # takes longer to import than all else

        return await asyncio.to_thread(self._native.generate, request_json(prompt, settings))

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        return self.tokenize(prompt) if isinstance(prompt, str) else [int(id) for id in prompt]


def _array(numbers: _girih.Floats) -> Array:
    """The numbers as an array, without a copy."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError("arrays of numbers need numpy: pip install 'girih[numpy]'") from error
    return numpy.frombuffer(memoryview(numbers), dtype=numpy.float32)
