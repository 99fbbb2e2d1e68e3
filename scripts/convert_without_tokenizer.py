#!/usr/bin/env python3
"""Run llama.cpp's converter on a model that has no tokenizer.

    scripts/convert_without_tokenizer.py LLAMA_CPP MODEL --outfile model.gguf --outtype bf16

LLAMA_CPP is a folder with `convert_hf_to_gguf.py`; the other arguments are the converter's. The tokens of the GGUF
are made up. Needs torch, transformers and gguf.
"""

import json
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def set_vocabulary(model: Any) -> None:
    """Write tokens that stand for nothing, as many as the embedding has rows."""
    count = model.find_hparam(["vocab_size"])
    model.gguf_writer.add_vocab_size(count)
    model.gguf_writer.add_tokenizer_model("gpt2")
    model.gguf_writer.add_tokenizer_pre("gpt-2")
    model.gguf_writer.add_token_list([f"<{i}>" for i in range(count)])
    model.gguf_writer.add_token_types([1] * count)
    model.gguf_writer.add_token_merges([])


@contextmanager
def counted_tokens(model: Path) -> Iterator[None]:
    """Have a `tokenizer.json` in which the converter of Gemma counts the tokens that the embedding keeps."""
    path = model / "tokenizer.json"
    config = json.loads((model / "config.json").read_text())
    count = config.get("text_config", config).get("vocab_size", 0)
    is_made = not path.exists()
    if is_made:
        path.write_text(json.dumps({"model": {"vocab": {f"<{i}>": i for i in range(count)}}, "added_tokens": []}))
    try:
        yield
    finally:
        if is_made:
            path.unlink()


def classes(base: type) -> list[type]:
    """Return a class with all classes derived from it."""
    return [base, *(below for derived in base.__subclasses__() for below in classes(derived))]


def main() -> None:
    """Replace the reading of tokenizers, and convert."""
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    import conversion  # noqa: PLC0415 (it lies in a folder of the command line)
    from conversion.base import TextModel  # noqa: PLC0415

    find = conversion.get_model_class

    def without_tokenizer(*arguments: Any, **named: Any) -> type:
        found = find(*arguments, **named)
        for text_model in classes(TextModel):
            text_model.set_vocab = set_vocabulary
        return found

    conversion.get_model_class = without_tokenizer
    sys.argv = [str(folder / "convert_hf_to_gguf.py"), *sys.argv[2:]]
    with counted_tokens(Path(sys.argv[1])):
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
