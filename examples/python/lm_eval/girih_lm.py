"""girih as a model of lm-evaluation-harness: `python girih_lm.py MODEL TASK` evaluates a local task.

The harness asks for log-likelihoods of continuations and for generated texts; girih answers both with its own numbers, so the
figures are those of the model as it runs here, quantized or not.
"""

import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

import girih


class GirihLM(LM):
    """A girih model for the harness."""

    def __init__(self, name: str, **options) -> None:
        super().__init__()
        # Rows of logits: a prompt whose log-probabilities are asked for advances by as many tokens in a step.
        self.model = girih.Model.open(name, output_rows=64, **options)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return [self.continuation(*request.args) for request in requests]

    def continuation(self, context: str, continuation: str) -> tuple[float, bool]:
        """The log-probability of a continuation, and whether it is the greedy one. As the harness does for transformers, the
        tokens of the continuation are those that the whole text has beyond its context's.
        """
        whole = self.model.tokenize(context + continuation)
        return self.likelihood(whole, len(self.model.tokenize(context)) if context else 1)

    def likelihood(self, tokens: list[int], start: int) -> tuple[float, bool]:
        reply = self.model.generate(tokens, prompt_logprobs=1, max_tokens=0)
        scored = [entry for entry in reply.prompt_logprobs[start:] if entry is not None]
        return sum(entry.logprob for entry in scored), all(entry.top[0].id == entry.id for entry in scored)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        return [self.likelihood(self.model.tokenize(request.args[0]), 1)[0] for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        return [self.generated(*request.args) for request in requests]

    def generated(self, context: str, settings: dict) -> str:
        reply = self.model.generate(
            context,
            stop=settings.get("until", []),
            max_tokens=settings.get("max_gen_toks", 256),
            temperature=settings.get("temperature", 0.0) if settings.get("do_sample") else 0.0,
        )
        return reply.text


def main() -> None:
    name, task = sys.argv[1:3]
    folder = Path(__file__).parent
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    results = lm_eval.simple_evaluate(
        model=GirihLM(name, kv="f32"), tasks=[task], task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    samples = [[list(answer[0]) for answer in sample["resps"]] for sample in results["samples"][task]]
    print(json.dumps({"results": results["results"][task], "likelihoods": samples}))


if __name__ == "__main__":
    main()
