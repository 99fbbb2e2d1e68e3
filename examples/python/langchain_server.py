"""LangChain through `girih serve`: `python langchain_server.py URL MODEL`. Needs `langchain-openai`."""

import sys

from langchain_openai import ChatOpenAI

url, model = sys.argv[1:3]
chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, temperature=0.0, max_tokens=20)
print(chat.invoke("Once upon a time").content)
for piece in chat.stream("Once upon a time"):
    print(piece.content, end="", flush=True)
print()
