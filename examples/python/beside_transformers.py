"""girih beside transformers: `python beside_transformers.py FOLDER` compares the greedy replies and the logits of a model that
is in a folder of transformers. Needs `transformers` and `torch`.
"""

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import girih

folder, prompt = sys.argv[1], "Once upon a time"

# transformers
tokenizer = AutoTokenizer.from_pretrained(folder)
theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
ids = tokenizer(prompt, return_tensors="pt").input_ids
with torch.no_grad():
    logits = theirs(ids).logits[0, -1].numpy()
    story = theirs.generate(ids, max_new_tokens=40, do_sample=False)[0, ids.shape[1] :].tolist()

# girih
with girih.Model.open(folder, kv="f32") as ours:
    assert ours.tokenize(prompt) == ids[0].tolist()
    reply = ours.generate(prompt, max_tokens=40, temperature=0.0)
    difference = float(np.abs(ours.logits(prompt) - logits).max())

print(reply.text)
print(f"greedy tokens equal: {reply.tokens == story[: len(reply.tokens)]}; logits differ by at most {difference:.1e}")
