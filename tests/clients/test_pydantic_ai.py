"""Agents of pydantic-ai, with loops of tools, on a model that says what a script says."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from conftest import SCRIPTED, TEMPLATE, Server, serve, stories_with_template
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = "scripted-stories"


def calling(name: str, **arguments: object) -> str:
    """The text with which the model calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SCRIPT = [
    {"when": "the weather in Paris", "then": "I will look.\n" + calling("weather", city="Paris", day=1)},
    {"when": "Paris: rain", "then": calling("weather", city="Paris", day=2)},
    {"when": "Paris: sun", "then": "It rains today, and tomorrow the sun shines in Paris — bring an umbrella 🌂."},
    {"when": "two cities", "then": calling("weather", city="Rome", day=1) + calling("weather", city="Oslo", day=1)},
    {"when": "Oslo: snow", "then": "Rome is warm, Oslo has snow."},
    {"when": "a city of no country", "then": calling("weather", city="Atlantis", day=1)},
    {"when": "no such city", "then": calling("weather", city="Paris", day=2)},
    {"when": "Describe Paris", "then": calling("final_result", city="Paris", degrees=21)},
    {"when": "Describe badly", "then": calling("final_result", city="Paris", degrees="hot")},
    {"when": "degrees", "then": calling("final_result", city="Paris", degrees=20)},
]
"""Each entry answers a last message that contains `when`."""


@pytest.fixture(scope="session")
def scripted() -> Iterator[Server]:
    """A server whose model follows the script."""
    folder = stories_with_template(MODEL, TEMPLATE)
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    with script.open() as file:
        yield from serve([SCRIPTED, str(folder)], "scripted", stdin=file)


@pytest.fixture
def model(scripted: Server) -> OpenAIChatModel:
    """The model as pydantic-ai knows it."""
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=scripted.url + "/v1", api_key="none"))


WEATHER = {("Paris", 1): "rain", ("Paris", 2): "sun", ("Rome", 1): "warm", ("Oslo", 1): "snow"}


def agent(model: OpenAIChatModel, **settings) -> Agent:
    """An agent that knows the weather."""
    made = Agent(model, **settings)

    @made.tool_plain
    def weather(city: str, day: int) -> str:
        """The weather of a city on a day; 1 is today."""
        if (city, day) not in WEATHER:
            raise ModelRetry("there is no such city")
        return f"{city}: {WEATHER[city, day]}"

    return made


def calls(result) -> list[tuple]:
    """The tools that were called, with their arguments."""
    parts = [part for message in result.all_messages() for part in message.parts]
    return [(part.tool_name, part.args_as_dict()) for part in parts if isinstance(part, ToolCallPart)]


def test_an_agent_calls_tools_until_it_knows(model: OpenAIChatModel):
    result = agent(model).run_sync("How is the weather in Paris?")
    assert result.output == SCRIPT[2]["then"]
    assert calls(result) == [("weather", {"city": "Paris", "day": 1}), ("weather", {"city": "Paris", "day": 2})]
    assert result.usage.requests == 3 and result.usage.output_tokens > 0


def test_a_streamed_agent_does_the_same(model: OpenAIChatModel):
    async def run() -> tuple[str, list]:
        async with agent(model).run_stream("How is the weather in Rome? I mean two cities.") as result:
            texts = [text async for text in result.stream_text(delta=True, debounce_by=None)]
            return "".join(texts), calls(result)

    text, made = asyncio.run(run())
    assert text == "Rome is warm, Oslo has snow."
    assert made == [("weather", {"city": "Rome", "day": 1}), ("weather", {"city": "Oslo", "day": 1})]


def test_an_error_of_a_tool_reaches_the_model(model: OpenAIChatModel):
    result = agent(model, retries=2).run_sync("What of a city of no country?")
    assert [arguments["city"] for _, arguments in calls(result)] == ["Atlantis", "Paris"]
    assert result.output == SCRIPT[2]["then"]


class City(BaseModel):
    """What an agent returns."""

    city: str
    degrees: int


def test_an_output_has_its_type(model: OpenAIChatModel):
    result = Agent(model, output_type=City).run_sync("Describe Paris.")
    assert result.output == City(city="Paris", degrees=21)


def test_an_output_of_the_wrong_type_is_asked_for_again(model: OpenAIChatModel):
    result = Agent(model, output_type=City, retries=2).run_sync("Describe badly.")
    assert result.output == City(city="Paris", degrees=20)
    with pytest.raises(UnexpectedModelBehavior):
        Agent(model, output_type=City, retries=0).run_sync("Describe badly.")


def test_an_output_is_forced_on_the_models_own_weights(model: OpenAIChatModel):
    # No entry of the script: the server forces the call, and the weights choose the arguments.
    result = Agent(model, output_type=ToolOutput(City, strict=False)).run_sync(
        "Once upon a time", model_settings={"max_tokens": 300, "temperature": 0}
    )
    assert isinstance(result.output, City)
