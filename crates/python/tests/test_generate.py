"""Replies: whole, as events, to texts, tokens and messages; what is refused."""

import json
import threading

import pytest

import girih

PROMPT = "Once upon a time"


def test_a_text_and_its_tokens_have_the_same_reply(model: girih.Model) -> None:
    text = model.generate(PROMPT, max_tokens=20)
    tokens = model.generate(model.tokenize(PROMPT), max_tokens=20)
    assert text.text == tokens.text and text.tokens == tokens.tokens
    assert text.stop == girih.Stop("length")
    assert text.prompt_tokens == 5 and len(text.tokens) == 20
    assert text.decode.tokens == 19 and text.seconds > 0
    assert str(text) == text.content == text.text


def test_messages_go_through_the_template(model: girih.Model) -> None:
    chat = model.generate([{"role": "user", "content": PROMPT}], max_tokens=20)
    assert chat.content == model.generate(PROMPT, max_tokens=20).text


def test_events_make_up_the_whole_reply(model: girih.Model) -> None:
    whole = model.generate(PROMPT, max_tokens=12, logprobs=2)
    with model.stream(PROMPT, max_tokens=12, logprobs=2) as stream:
        assert stream.prompt_tokens == 5
        events = list(stream)
    assert [event.kind for event in events] == ["prefilled", *["token"] * 12, "end"]
    assert "".join(event.text for event in events) == whole.text
    assert [event.id for event in events if event.kind == "token"] == whole.tokens
    assert [event.logprobs for event in events if event.kind == "token"] == whole.logprobs
    assert events[-1].stop == whole.stop and events[-1].fields["decode"]["tokens"] == 11


def test_seeds_repeat_a_reply_and_change_it(model: girih.Model) -> None:
    def story(seed: int) -> str:
        return model.generate(PROMPT, temperature=1.0, seed=seed, max_tokens=40).text

    assert story(1) == story(1) != story(2)


def test_logprobs_are_those_of_the_logits(model: girih.Model) -> None:
    numpy = pytest.importorskip("numpy")
    reply = model.generate(PROMPT, max_tokens=1, logprobs=3)
    logits = model.logits(PROMPT).astype("float64")
    expected = logits - numpy.log(numpy.exp(logits - logits.max()).sum()) - logits.max()
    [first] = reply.logprobs
    assert abs(first.logprob - expected[first.id]) < 1e-9
    assert [one.id for one in first.top] == list(numpy.argsort(-logits)[:3])
    prompt = model.generate(PROMPT, max_tokens=0, prompt_logprobs=0).prompt_logprobs
    assert prompt[0] is None and len(prompt) == 5


def test_a_stop_ends_the_reply(model: girih.Model) -> None:
    reply = model.generate(PROMPT, stop=".", max_tokens=200)
    assert reply.stop == girih.Stop("string", text=".") and "." not in reply.text
    assert model.generate(PROMPT, stop=["."], include_stop=True).text == reply.text + "."


def test_a_grammar_holds(model: girih.Model) -> None:
    assert model.generate(PROMPT, choice=["a cat", "a dog"]).text in ("a cat", "a dog")
    assert model.generate(PROMPT, regex="[0-9]{3}").text.isdigit()
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    closed = {**schema, "additionalProperties": False}
    assert json.loads(model.generate(PROMPT, schema=closed, max_tokens=200).text)["n"] <= 9
    with pytest.raises(girih.Refused, match="exclude each other"):
        model.generate(PROMPT, regex="a", choice=["a"])


def test_a_pydantic_model_is_a_schema(model: girih.Model) -> None:
    pydantic = pytest.importorskip("pydantic")
    literal = pydantic.create_model("Pet", __config__={"extra": "forbid"}, legs=(bool, ...))
    reply = model.generate(PROMPT, schema=literal, max_tokens=200)
    assert isinstance(reply.parsed, literal) and isinstance(reply.parsed.legs, bool)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temprature": 1.0}, "'temprature' is unknown; known are adapter"),
        ({"temperature": "warm"}, "temperature is 'warm'; it must be a number"),
        ({"temperature": -1.0}, "temperature"),
        ({"seed": -1}, "seed is '-1'; it must be an integer"),
        ({"logit_bias": {1: float("nan")}}, "cannot be written as JSON"),
        ({"adapter": "poet"}, "no adapter 'poet'"),
        ({"tools": [{}]}, "need messages"),
    ],
)
def test_wrong_settings_are_named(model: girih.Model, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(girih.GirihError) as raised:
        model.generate(PROMPT, **settings)  # type: ignore[arg-type]
    assert sentence in str(raised.value)


def test_errors_have_classes(model: girih.Model) -> None:
    with pytest.raises(girih.NotFound):
        girih.Model.open("./no-such-folder")
    with pytest.raises(LookupError):
        girih.Model.open("./no-such-folder")
    with pytest.raises(girih.TooLong) as too_long:
        model.generate(PROMPT, max_tokens=100_000)
    assert too_long.value.kind == "too_long"
    with pytest.raises(girih.Refused, match="'sequnces' is unknown"):
        girih.Model.open("stories260k", sequnces=2)  # type: ignore[call-arg]
    with pytest.raises(girih.Refused, match="the prompt has no tokens"):
        model.generate({})  # type: ignore[arg-type]
    with pytest.raises(girih.Cancelled):
        model.generate(PROMPT, max_tokens=400, timeout=0)
    with pytest.raises(girih.Refused, match="use an encoder"):
        model.embed("a cat")


def test_threads_share_a_model(model: girih.Model) -> None:
    alone = [model.generate(PROMPT, temperature=1.0, seed=seed, max_tokens=40).text for seed in range(8)]
    together = [""] * 8

    def ask(seed: int) -> None:
        together[seed] = model.generate(PROMPT, temperature=1.0, seed=seed, max_tokens=40).text

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_the_tokenizer_works_alone_and_with_the_model(model: girih.Model) -> None:
    alone = girih.Tokenizer.open("stories260k")
    for tokenizer in (alone, model.tokenizer):
        assert tokenizer.decode(tokenizer.encode("a cat")) == "a cat"
        assert len(tokenizer) == 512 and tokenizer.bos is None and tokenizer.token(1) == "<s>"
        assert tokenizer.id("<s>") == 1 and tokenizer.id("no such token") is None
        assert len(tokenizer.encode("</s>", special=True)) < len(tokenizer.encode("</s>"))
    assert not alone.has_template and model.tokenizer.has_template
    messages = [{"role": "user", "content": "</s>"}]
    assert model.tokenizer.render(messages) == "<s></s>"
    assert [span["origin"] for span in model.tokenizer.spans(messages)] == ["template", "user"]
    assert model.tokenizer.encode_chat(messages) == [1, *model.tokenizer.encode("</s>")]
    with pytest.raises(girih.GirihError, match="no chat template"):
        alone.render(messages)


def test_a_plan_loads_nothing_and_names_what_is_too_large() -> None:
    plan = girih.plan("stories260k", context=256, kv="f32", threads=1)
    assert plan.total == plan.memory["total"] > 0 and plan.facts["context"] == 256
    assert plan.facts["kv"] == "f32" and plan.facts["parameters"] == 260_032
    with pytest.raises(girih.Refused, match="context"):
        girih.plan("stories260k", context=10_000)


def test_numbers_of_the_model_are_not_copied(model: girih.Model) -> None:
    numpy = pytest.importorskip("numpy")
    logits = model.logits(PROMPT)
    assert logits.shape == (512,) and logits.dtype == numpy.float32
    assert not logits.flags.owndata and not logits.flags.writeable
    states = model.hidden_states(PROMPT)
    assert list(states) == ["embed", *(f"layers.{layer}.out" for layer in range(4)), "head.norm", "logits"]
    assert all(numbers.shape == (5, 64) for name, numbers in states.items() if name != "logits")
    assert numpy.array_equal(states["logits"][-1], logits)
