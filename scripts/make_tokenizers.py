#!/usr/bin/env python3
"""Trains small tokenizers with the library `tokenizers`, and records its ids of many texts.

    scripts/make_tokenizers.py OUT TEXTS [--seeds FROM TO] [--charsmap FILE.gguf]

For each tokenizer, OUT gets `NAME.json` (a `tokenizer.json`) and `NAME.ids` (a line of JSON per text:
the ids without those around a text, where they are among those with, and the decoded text if it differs;
U+FFFD where it is not compared); `texts.json` has
the texts. TEXTS is a folder with texts to train on. Without --seeds it makes the named tokenizers of
`tests/tokenizers`; with it, one per seed, with stages drawn at random. --charsmap takes the character
map of a GGUF vocabulary.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
PATTERNS = [
    GPT2,
    LLAMA3,
    BAILING,
    GPT4O,
    DEEPSEEK3,
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"\d{1,3}(?=(?:\d{3})*(?!\d))",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    r"(?:\r?\n)+(?!\r?\n)",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"\s+$",
    r"\s?\p{P}+",
    r"[0-9][0-9][0-9]",
    r"[^\n]+|[\n]+",
]

TEXTS = [
    "", " ", "  ", "\n", "a", "Hello world", " Hello  world ", "\tHello\n\nworld\r\n", "I've we'll IT'S 'S don't",
    "1234567 12345 1,234.5 12345a ½ ٣٤٥ 四五", "naïve café ÀÉÎ ﬁ ﬀ ① Ⅷ ㌀ ﷺ", "e\u0301 a\u0301\u0323 \u1100\u1161\u11a8",
    "日本語のテキスト、です。 叫ぶ", "한국어 텍스트 ㄱㄴ", "🙂👩‍👩‍👧‍👦 🇩🇪 ✌🏽", "<unk> <s>a</s> [MASK] <extra>x<EXTRA>",
    "word<extra>word <extra> <extra>", "▁a ▁▁b ▁", "a_b-c.d!?…(x)[y]{z}", "\u00a0\u3000\u2003x\u200b\u200dy\ufeffz",
    "x\u0000y\u0007z\u009f", "ſſ K Å ß ẞ İ ı ǅ", "foo.bar(baz) == {'a': [1, 2]}", "====----++++____    ====",
    "مرحبا بالعالم שלום", "नमस्ते दुनिया", "ไทยภาษา", "A" * 40, "a b " * 12, "\u2028\u2029\u0085 \x0b\x0c",
]


def corpus(folder):
    """Lines of text in several scripts."""
    lines = []
    for path in sorted(Path(folder).glob("*.txt")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        lines += [line for line in text[:30_000].splitlines() if line.strip()]
    return lines + TEXTS


def charsmap_of(path):
    """The character map of a GGUF vocabulary."""
    data = Path(path).read_bytes()
    key = b"tokenizer.ggml.precompiled_charsmap"
    at = data.index(key) + len(key)
    kind = int.from_bytes(data[at : at + 4], "little")
    assert kind == 9, "an array"
    count = int.from_bytes(data[at + 8 : at + 16], "little")
    return data[at + 16 : at + 16 + count]


def train(model, tokenizer, lines, size):
    special = ["<unk>", "<s>", "</s>"]
    if model == "bpe":
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, limit_alphabet=200, show_progress=False)
    elif model == "wordpiece":
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=special, limit_alphabet=200, show_progress=False
        )
    else:
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator(lines, trainer)


def model_of(kind, rng):
    flip = lambda: rng.random() < 0.5
    if kind == "bpe":
        return models.BPE(unk_token="<unk>", fuse_unk=flip())
    if kind == "wordpiece":
        return models.WordPiece(unk_token="<unk>", max_input_chars_per_word=rng.choice([5, 100]))
    return models.Unigram()


def drawn_normalizer(rng, charsmap):
    flip = lambda: rng.random() < 0.5
    steps = [
        lambda: normalizers.NFC(),
        lambda: normalizers.NFD(),
        lambda: normalizers.NFKC(),
        lambda: normalizers.NFKD(),
        lambda: normalizers.Lowercase(),
        lambda: normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        lambda: normalizers.StripAccents(),
        lambda: normalizers.Strip(flip(), flip()),
        lambda: normalizers.Nmt(),
        lambda: normalizers.Prepend("▁"),
        lambda: normalizers.Replace(" ", "▁"),
        lambda: normalizers.Replace("a", "bc"),
        lambda: normalizers.Replace(Regex(" {2,}"), " "),
        lambda: normalizers.Replace(Regex(r"\p{N}"), "0"),
        lambda: normalizers.BertNormalizer(flip(), flip(), rng.choice([None, True, False]), flip()),
    ]
    if charsmap:
        steps += [lambda: normalizers.Precompiled(charsmap)] * 6
    count = rng.choice([0, 0, 1, 1, 2, 3])
    if count == 0:
        return None
    return normalizers.Sequence([rng.choice(steps)() for _ in range(count)])


def drawn_pre_tokenizer(rng, is_byte_level):
    flip = lambda: rng.random() < 0.5
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    split = lambda: pre_tokenizers.Split(
        rng.choice([Regex(rng.choice(PATTERNS)), rng.choice([" ", "▁", "-", "ab"])]), rng.choice(behaviors), flip()
    )
    steps = [
        lambda: pre_tokenizers.Whitespace(),
        lambda: pre_tokenizers.WhitespaceSplit(),
        lambda: pre_tokenizers.Punctuation(rng.choice(behaviors)),
        lambda: pre_tokenizers.Digits(flip()),
        lambda: pre_tokenizers.CharDelimiterSplit(rng.choice([" ", "-", "▁"])),
        lambda: pre_tokenizers.BertPreTokenizer(),
        lambda: pre_tokenizers.Metaspace(rng.choice(["▁", "_"]), rng.choice(["always", "first", "never"]), flip()),
        lambda: pre_tokenizers.Metaspace("▁", rng.choice(["always", "first", "never"]), flip()),
        split,
        split,
        split,
    ]
    list_of = [rng.choice(steps)() for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    if is_byte_level:
        list_of.append(pre_tokenizers.ByteLevel(add_prefix_space=flip(), use_regex=flip()))
    return pre_tokenizers.Sequence(list_of) if list_of else None


def with_added(tokenizer, rng):
    flip = lambda: rng.random() < 0.3
    for text in rng.sample(["<extra>", "[MASK]", "ab", "don", "\n\n", " x", "日本"], rng.choice([0, 1, 3])):
        # Where a normalizer prepends a text, the library of 0.22 finds no normalized token later in a text;
        # that of 0.23 does.
        normalized = flip() and "Prepend" not in tokenizer.to_str()[:20_000]
        token = AddedToken(text, single_word=flip(), lstrip=flip(), rstrip=flip(), normalized=normalized)
        tokenizer.add_special_tokens([token]) if flip() else tokenizer.add_tokens([token])


def byte_fallback(tokenizer, rng):
    """The same tokenizer with tokens for all bytes, and the other switches drawn."""
    file = json.loads(tokenizer.to_str())
    model = file["model"]
    if model["type"] == "BPE":
        model["ignore_merges"] = rng.random() < 0.5
        if rng.random() < 0.5:
            model["byte_fallback"] = True
            for byte in range(256):
                model["vocab"].setdefault(f"<0x{byte:02X}>", len(model["vocab"]))
    elif model["type"] == "Unigram" and rng.random() < 0.5:
        model["byte_fallback"] = True
        model["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    added = {token["content"] for token in file["added_tokens"]}
    return Tokenizer.from_str(json.dumps(file)) if len(added) == 3 else tokenizer


def drawn(seed, lines, charsmap):
    rng = random.Random(seed)
    kind = rng.choice(["bpe", "bpe", "unigram", "unigram", "wordpiece"])
    is_byte_level = kind == "bpe" and rng.random() < 0.6
    tokenizer = Tokenizer(model_of(kind, rng))
    normalizer = drawn_normalizer(rng, charsmap)
    pre_tokenizer = drawn_pre_tokenizer(rng, is_byte_level)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    train(kind, tokenizer, rng.sample(lines, min(len(lines), 150)) + TEXTS, rng.choice([1600, 2400] if kind == "unigram" else [300, 600]))
    tokenizer = byte_fallback(tokenizer, rng)
    with_added(tokenizer, rng)
    ends = [("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))]
    tokenizer.post_processor = rng.choice(
        [
            processors.BertProcessing(ends[1], ends[0]),
            processors.RobertaProcessing(ends[1], ends[0]),
            processors.TemplateProcessing("<s> $A </s> </s>", "<s> $A </s> $B </s>", ends),
        ]
    )
    if is_byte_level:
        tokenizer.decoder = decoders.ByteLevel()
    elif kind == "wordpiece":
        tokenizer.decoder = decoders.WordPiece("##", rng.random() < 0.5)
    elif rng.random() < 0.5:
        tokenizer.decoder = decoders.Metaspace("▁", rng.choice(["always", "first", "never"]))
    else:
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    return tokenizer


def named(lines):
    """The tokenizers of `tests/tokenizers`: one per shape that published families have."""
    ends = lambda tokenizer: [(text, tokenizer.token_to_id(text)) for text in ("<s>", "</s>")]
    metaspace = lambda scheme, split: pre_tokenizers.Metaspace("▁", scheme, split)
    shapes = {
        "unigram-t5": ("unigram", normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " ")]),
            pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace("always", True)]),
            decoders.Metaspace("▁", "always")),
        "unigram-metaspace-first": ("unigram", normalizers.Strip(True, True), metaspace("first", False),
            decoders.Metaspace("▁", "first")),
        "bpe-deepseek": ("bpe", None, pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated")
            for p in (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3)]
            + [pre_tokenizers.ByteLevel(False, use_regex=False)]), decoders.ByteLevel()),
        "bpe-falcon": ("bpe", None, pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(False), pre_tokenizers.Digits(False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]), decoders.ByteLevel()),
        "bpe-cohere2moe": ("bpe", normalizers.NFC(), pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(r"\d{1,3}(?=(?:\d{3})*\b)"), "isolated"),
            pre_tokenizers.Split(Regex(GPT4O), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]),
            decoders.ByteLevel()),
        "bpe-bailing": ("bpe", None, pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(BAILING), "isolated"),
            pre_tokenizers.ByteLevel(False, use_regex=False)]), decoders.ByteLevel()),
        "bpe-metaspace-never": ("bpe", None, metaspace("never", True), decoders.Metaspace("▁", "never")),
        "wordpiece-lower": ("wordpiece", normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(),
            normalizers.StripAccents()]), pre_tokenizers.Whitespace(), decoders.WordPiece()),
    }
    for name, (kind, normalizer, pre_tokenizer, decoder) in shapes.items():
        tokenizer = Tokenizer(model_of(kind, random.Random(1)))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoder
        train(kind, tokenizer, lines[::40] + TEXTS, 420)
        tokenizer.add_tokens([AddedToken("<extra>", lstrip=True), AddedToken("don", single_word=True)])
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", ends(tokenizer))
        yield name, tokenizer


def write(folder, name, tokenizer, texts):
    Path(folder, f"{name}.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )
    rows = []
    normalized = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.normalized}
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        around = tokenizer.encode(text).ids
        if normalized & set(ids):
            # The library of 0.23 decodes these to their normalized text, that of 0.22 to their text.
            decoded = "\ufffd"
        row = [ids, [around.index(ids[0]) if ids else 1, len(around)], None if decoded == text else decoded]
        rows.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    Path(folder, f"{name}.ids").write_text("\n".join(rows) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--seeds", nargs=2, type=int)
    parser.add_argument("--charsmap", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    lines = corpus(args.texts)
    texts = list(TEXTS)
    if args.seeds:
        rng = random.Random(args.seeds[0])
        pieces = [piece for text in TEXTS + rng.sample(lines, 40) for piece in text.split(" ")] + [" ", "  ", "\n", "\t"]
        texts += rng.sample(lines, 40)
        texts += ["".join(rng.choice(pieces) + rng.choice([" ", "", "\n"]) for _ in range(rng.randrange(12)))
                  for _ in range(130)]
    (args.out / "texts.json").write_text(json.dumps(texts, ensure_ascii=False, indent=0), encoding="utf-8")
    if not args.seeds:
        for name, tokenizer in named(lines):
            write(args.out, name, tokenizer, texts)
        return
    charsmap = charsmap_of(args.charsmap) if args.charsmap else None
    for seed in range(*args.seeds):
        try:
            tokenizer = drawn(seed, lines, charsmap)
        except BaseException as error:  # the library panics where training leaves no pieces
            print(f"seed {seed}: {error}")
            continue
        write(args.out, f"seed{seed}", tokenizer, texts)


if __name__ == "__main__":
    main()
