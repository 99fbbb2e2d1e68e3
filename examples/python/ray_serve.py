"""girih in Ray Serve: `python ray_serve.py [MODEL]` starts two replicas, asks them, and stops.

`serve run ray_serve:application` serves the built-in model instead. POST / takes `{"prompt": TEXT}` and other settings of
girih.RequestSettings, and streams text. The APIs of OpenAI, Anthropic and Ollama are in `girih serve`.
"""

import json
import sys
import urllib.request
from collections.abc import AsyncIterator

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

import girih


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1}, max_ongoing_requests=16)
class Stories:
    def __init__(self, model: str) -> None:
        self.model = girih.Model.open(model, threads=1, sequences=8, waiting=16)

    async def __call__(self, request: Request) -> Response:
        settings = await request.json()
        try:
            events = await self.model.astream(settings.pop("prompt"), **settings)
        except (KeyError, TypeError, girih.GirihError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)

        async def texts() -> AsyncIterator[str]:
            # A client that leaves ends the request.
            async with events:
                async for event in events:
                    yield event.text

        return StreamingResponse(texts(), media_type="text/plain")


application = Stories.bind("stories260k")


def ask(**settings: object) -> str:
    body = json.dumps(settings).encode()
    request = urllib.request.Request("http://127.0.0.1:18123/", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return reply.read().decode()


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": 18123})
    serve.run(Stories.bind(sys.argv[1] if len(sys.argv) > 1 else "stories260k"))
    warm = [ask(prompt="Once upon a time", max_tokens=20, temperature=0.8, seed=seed) for seed in (0, 0, 1)]
    print("\n".join(warm))
    assert warm[0] == warm[1] != warm[2], "a seed has one reply, whichever replica gives it"
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
