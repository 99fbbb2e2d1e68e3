"""A plugin for the program `llm` (https://llm.datasette.io): `llm -m girih/stories260k "Once upon a time"`.

A package with this module and the entry point `girih = llm_girih` in the group `llm` installs it; `llm_girih_check.py`
registers it by hand.
"""

import functools
from collections.abc import Iterator

import llm

import girih

#: The models that are offered. An id of the hub or a path works as well.
MODELS = ["stories260k"]


@functools.cache
def opened(name: str) -> girih.Model:
    """Each model is loaded once."""
    return girih.Model.open(name)


class GirihModel(llm.Model):
    """A model that runs in this process."""

    can_stream = True

    class Options(llm.Options):
        max_tokens: int | None = None
        temperature: float | None = None
        seed: int | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.model_id = f"girih/{name}"

    def execute(self, prompt, stream, response, conversation) -> Iterator[str]:
        model = opened(self.name)
        settings = {name: value for name, value in prompt.options.model_dump().items() if value is not None}
        told = self.messages(prompt, conversation) if model.tokenizer.has_template else prompt.prompt
        with model.stream(told, **settings) as events:
            for event in events:
                yield event.content

    def messages(self, prompt, conversation) -> list[dict[str, str]]:
        messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
        for before in conversation.responses if conversation else []:
            messages += [
                {"role": "user", "content": before.prompt.prompt},
                {"role": "assistant", "content": before.text()},
            ]
        return [*messages, {"role": "user", "content": prompt.prompt}]


@llm.hookimpl
def register_models(register) -> None:
    for name in MODELS:
        register(GirihModel(name))
