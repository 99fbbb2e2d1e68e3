"""The built-in model, loaded once."""

from collections.abc import Iterator

import pytest

import girih

#: A template that writes the messages one after another.
TEMPLATE = "<s>{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="session")
def model() -> Iterator[girih.Model]:
    with girih.Model.open("stories260k", sequences=4, chat_template=TEMPLATE) as model:
        yield model
