"""Embeddings of the small encoder of the fixtures, with the tokenizer of the built-in model, which has as many tokens."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import girih

numpy = pytest.importorskip("numpy")

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[girih.Model]:
    folder = tmp_path_factory.mktemp("encoder")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(REPOSITORY / "tests" / "fixtures" / "bert" / name, folder)
    shutil.copy(REPOSITORY / "crates" / "girih" / "assets" / "stories260k" / "tokenizer.json", folder)
    with girih.Model.open(folder, sequences=2) as model:
        yield model


def test_a_vector_does_not_depend_on_the_other_texts(encoder: girih.Model) -> None:
    both = encoder.embed(["a cat", "a dog runs"])
    assert both.shape == (2, 48) and both.dtype == numpy.float32
    assert numpy.array_equal(both[0], encoder.embed("a cat"))
    assert not numpy.array_equal(both[0], both[1])


def test_an_encoder_generates_nothing(encoder: girih.Model) -> None:
    assert encoder.facts["is_encoder"] is True
    with pytest.raises(girih.Refused, match="is an encoder and generates no text"):
        encoder.generate("a cat")
    with pytest.raises(girih.TooLong):
        encoder.embed("a cat " * 200)
