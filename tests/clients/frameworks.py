"""Run by agents.py: asks a model through a Python framework, `frameworks.py NAME URL`, and prints its answer."""

import json
import sys

QUESTION = "Run the command and say what it prints."
PRINTED = "girih-42"


def smolagents_answer(url: str) -> str:
    """smolagents' agent that calls tools, and ends by calling final_answer."""
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def command() -> str:
        """Runs the command."""
        return PRINTED

    model = OpenAIServerModel(model_id="model", api_base=f"{url}/v1", api_key="none")
    return str(ToolCallingAgent(tools=[command], model=model, max_steps=4).run(QUESTION))


def instructor_answer(url: str) -> str:
    """instructor's object, by a forced call."""
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class Answer(BaseModel):
        printed: str

    client = instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none"))
    messages = [{"role": "user", "content": QUESTION}]
    return client.create(model="model", response_model=Answer, messages=messages, max_retries=0).printed


def litellm_answer(url: str) -> str:
    """litellm over the three APIs."""
    import litellm

    function = {"name": "command", "description": "Runs the command.", "parameters": {"type": "object", "properties": {}}}
    answers = []
    for model, base in (("openai/model", f"{url}/v1"), ("anthropic/model", url), ("ollama_chat/model", url)):
        settings = {"model": model, "api_base": base, "api_key": "none", "tools": [{"type": "function", "function": function}]}
        messages = [{"role": "user", "content": QUESTION}]
        called = litellm.completion(messages=messages, max_tokens=200, **settings).choices[0].message
        call = called.tool_calls[0]
        assert call.function.name == "command" and json.loads(call.function.arguments) == {}, called
        messages += [called.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": PRINTED}]
        pieces = litellm.completion(messages=messages, max_tokens=200, stream=True, **settings)
        answers.append("".join(piece.choices[0].delta.content or "" for piece in pieces))
    assert len(set(answers)) == 1, answers
    return answers[0]


def langchain_answer(url: str) -> str:
    """LangChain's models of the three APIs."""
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI

    @tool
    def command() -> str:
        """Runs the command."""
        return PRINTED

    models = [
        ChatOpenAI(model="model", base_url=f"{url}/v1", api_key="none"),
        ChatOpenAI(model="model", base_url=f"{url}/v1", api_key="none", use_responses_api=True),
        ChatAnthropic(model="model", base_url=url, api_key="none"),
        ChatOllama(model="model", base_url=url),
    ]
    answers = []
    for model in models:
        asked = model.bind_tools([command])
        messages = [HumanMessage(QUESTION)]
        called = asked.invoke(messages)
        assert [call["name"] for call in called.tool_calls] == ["command"], called
        messages += [called, ToolMessage(command.invoke({}), tool_call_id=called.tool_calls[0]["id"])]
        answers.append("".join(str(piece.text) for piece in asked.stream(messages)))
    assert len(set(answers)) == 1, answers
    return answers[0]


if __name__ == "__main__":
    print(globals()[f"{sys.argv[1]}_answer"](sys.argv[2]))
