"""Calls `llm` with the plugin: the reply is that of girih."""

import llm
from llm.plugins import pm

import girih
import llm_girih

pm.register(llm_girih)
prompt = "Once upon a time"
told = llm.get_model("girih/stories260k").prompt(prompt, max_tokens=20).text()
with girih.Model.open("stories260k") as model:
    assert told == model.generate(prompt, max_tokens=20).text, told
print(told)
