#!/usr/bin/env python3
"""Serves completions by OpenVINO GenAI's continuous batching, with the options of llama-server that `serve_load.py` uses.

    serve_load.py compare MODEL.gguf --girih GIRIH --peer scripts/genai_server.py --peer-option=--property=INFERENCE_PRECISION_HINT=f32

Takes prompts of token ids (POST /v1/completions) and streams greedy replies of a fixed length. Needs openvino-genai 2026.4 and numpy.
"""

import argparse
import itertools
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import openvino
import openvino_genai

BLOCK = 32
"""Positions of a block of keys and values on the CPU device (`BLOCK_SIZE` of GenAI's scheduler)."""


class Batch:
    """The pipeline, on a thread of its own: all requests that wait join it before its next step."""

    def __init__(self, arguments: argparse.Namespace):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = arguments.places
        # One more block a sequence, as each is filled up to whole blocks.
        scheduler.num_kv_blocks = arguments.context // BLOCK + arguments.places
        properties = dict(pair.split("=", 1) for pair in arguments.property)
        properties["INFERENCE_NUM_THREADS"] = arguments.threads
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(arguments.model, scheduler, "CPU", properties)
        self.waiting: queue.SimpleQueue = queue.SimpleQueue()
        self.numbers = itertools.count()
        threading.Thread(target=self.run, daemon=True).start()

    def join(self, prompt: list[int], length: int) -> queue.SimpleQueue:
        """Return a queue with the tokens of a reply, then None."""
        reply: queue.SimpleQueue = queue.SimpleQueue()
        self.waiting.put((prompt, length, reply))
        return reply

    def run(self) -> None:
        running = []
        while True:
            while not running or not self.waiting.empty():
                running.append(self.begin(*self.waiting.get()))
            self.pipeline.step()
            running = [request for request in running if self.goes_on(*request)]

    def begin(self, prompt: list[int], length: int, reply: queue.SimpleQueue):
        options = openvino_genai.GenerationConfig(max_new_tokens=length, ignore_eos=True, do_sample=False)
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        return self.pipeline.add_request(next(self.numbers), ids, options), reply

    @staticmethod
    def goes_on(handle, reply: queue.SimpleQueue) -> bool:
        """Hand on what a request has made; return whether it makes more."""
        is_running = handle.get_status().name == "RUNNING"
        while handle.can_read():
            for output in handle.read().values():
                for token in output.generated_ids:
                    reply.put(token)
        if not is_running:
            reply.put(None)
        return is_running


class Completions(BaseHTTPRequestHandler):
    """Streams a reply as events, which the end of the connection ends."""

    batch: Batch

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.batch.join(body["prompt"], body["max_tokens"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        count = 0
        while (token := reply.get()) is not None:
            count += 1
            self.event({"choices": [{"index": 0, "text": str(token)}]})
        self.event({"choices": [], "usage": {"completion_tokens": count}})

    def event(self, fields: dict) -> None:
        self.wfile.write(b"data: " + json.dumps(fields).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", dest="model", required=True, help="a GGUF file, or a folder with a model of OpenVINO")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-np", dest="places", type=int, default=8, help="sequences that run at once (default 8)")
    parser.add_argument("-c", dest="context", type=int, default=4096, help="positions of all sequences together (default 4096)")
    parser.add_argument("-t", dest="threads", type=int, default=2, help="threads (default 2)")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE",
                        help="a property of OpenVINO, such as INFERENCE_PRECISION_HINT=f32; may be repeated")
    arguments = parser.parse_args()
    Completions.batch = Batch(arguments)
    ThreadingHTTPServer(("127.0.0.1", arguments.port), Completions).serve_forever()


if __name__ == "__main__":
    main()
