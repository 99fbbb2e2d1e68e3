"""The same figures by transformers: `python transformers_figures.py FOLDER` prints what `girih_lm.py` prints."""

import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager


def main() -> None:
    manager = TaskManager(include_path=str(Path(__file__).parent), include_defaults=False)
    model = HFLM(pretrained=sys.argv[1], dtype="float32", device="cpu", add_bos_token=True)
    results = lm_eval.simple_evaluate(
        model=model, tasks=["stories"], task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    samples = [[list(answer[0]) for answer in sample["resps"]] for sample in results["samples"]["stories"]]
    print(json.dumps({"results": results["results"]["stories"], "likelihoods": samples}))


if __name__ == "__main__":
    main()
