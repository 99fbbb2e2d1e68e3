"""A tokenizer with its chat template."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from girih import _girih
from girih._settings import Message, OpenOptions, dumps, open_json


class Tokenizer:
    """A tokenizer with its chat template: of a model, or opened without one.

    >>> import girih
    >>> tokenizer = girih.Tokenizer.open("stories260k")
    >>> tokenizer.decode(tokenizer.encode("a cat"))
    'a cat'
    """

    def __init__(self, native: _girih.Tokenizer) -> None:
        self._native = native
        self._facts: dict[str, Any] | None = None

    @classmethod
    def open(cls, name: str | os.PathLike[str], **options: Unpack[OpenOptions]) -> Tokenizer:
        """Opens the tokenizer of a model: a folder (which may hold no weights), a GGUF, or an id in the cache."""
        return cls(_girih.Tokenizer.open(os.fspath(name), open_json(options)))

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """The ids of a text. With ``special``, special tokens that it spells become special tokens. With ``bos``, BOS and EOS
        are added if the tokenizer is configured to.
        """
        return self._native.encode(text, special, bos)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, with or without special tokens."""
        return self._native.decode(list(ids), special)

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """A conversation as the chat template writes it. ``tools``, ``documents``, ``add_generation_prompt`` and
        ``continue_final_message`` are those of transformers; other names are variables of the template.

        >>> import girih
        >>> template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
        >>> tokenizer = girih.Tokenizer.open("stories260k", chat_template=template)
        >>> tokenizer.render([{"role": "user", "content": "Hello"}])
        '[Hello]'
        """
        return "".join(span["text"] for span in self.spans(messages, **variables))

    def spans(self, messages: Sequence[Message], **variables: Any) -> list[dict[str, str]]:
        """As :meth:`render`, split by who wrote it: ``{"text": …, "origin": "template"}`` or ``"user"``. Special tokens that a
        user spells stay text.
        """
        spans: list[dict[str, str]] = json.loads(self._native.render(_conversation(messages, variables)))
        return spans

    def encode_chat(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """The ids of a conversation as the chat template writes it."""
        return self._native.encode_chat(_conversation(messages, variables))

    def token(self, id: int) -> str | None:
        """The token of an id as the vocabulary spells it."""
        return self._native.token(id)

    def id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it."""
        return self._native.id(token)

    @property
    def bos(self) -> int | None:
        """The id that begins a sequence."""
        bos: int | None = self._all_facts()["bos"]
        return bos

    @property
    def eos(self) -> int | None:
        """The id that ends a sequence."""
        eos: int | None = self._all_facts()["eos"]
        return eos

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template."""
        return bool(self._all_facts()["has_template"])

    def __len__(self) -> int:
        return int(self._all_facts()["size"])

    def _all_facts(self) -> dict[str, Any]:
        if self._facts is None:
            self._facts = json.loads(self._native.facts())
        return self._facts


#: The names of a conversation that are no variables of the template.
_FIELDS = ("tools", "documents", "add_generation_prompt", "continue_final_message")


def _conversation(messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
    fields = {name: value for name, value in variables.items() if name in _FIELDS}
    others = {name: value for name, value in variables.items() if name not in _FIELDS}
    if others:
        fields["chat_template_kwargs"] = others
    return dumps({**fields, "messages": [dict(message) for message in messages]})
