#!/usr/bin/env python3
"""Compare girih with other engines: same files, same number of threads, alternating rounds.

    peers.py compare MODEL.gguf... --girih PROGRAM [--rounds 5] [--threads N] [--csv FILE]
        Runs each engine in its own process, one after another, for the given
        number of rounds. Prints for each test each engine's median (minimum–
        maximum) and girih's speedup; then the time from opening the model to the
        first token after a prompt of 16 tokens, after 2 GiB of memory were
        written, and the peak of resident memory. girih's cold start packs weights
        and caches them, its warm start reads the cache; the other engines cache
        nothing, so their single time is compared with both. --csv writes all
        results as rows.

    peers.py foreign MODEL.gguf... --girih PROGRAM
        Measures short decodes alternately on an idle machine and together with one
        busy process of the same priority; prints the share of its idle speed that each
        engine keeps. Two rounds of the three engines take less than five minutes
        for a 1B model; a process that takes longer than --limit is stopped.

    peers.py logits MODEL.gguf... --girih PROGRAM [--text FILE]
        Compares logits with those of girih with f32 activations and f32 KV cache,
        over the first 64 tokens of a text: mean Kullback-Leibler divergence and
        maximum difference. The programs are girih (with any --girih-option),
        llama.cpp with defaults (f16 cache), and llama.cpp with an f32 cache,
        which is girih's default. Exits 1 if one of girih's numbers is larger than
        that of llama.cpp with defaults.

Tests are named as in llama-bench: pp512 (prefill), tg64 (decode), tg32@d4096
(decode at depth 4096).

Engines:
    girih                  its `bench`
    llama.cpp              with default options (package llama-cpp-python)
    llama.cpp fa=0, fa=1   without and with flash attention
    llama.cpp repack=0     weights in the layout of the file
    openvino               OpenVINO GenAI (package openvino-genai); prefill is
                           its time to the first token, decode its time per token
    ik_llama.cpp           if --ik-binary names its llama-bench (-rtr 1 -fa 1);
                           without prefill at depth
    llama-bench            that of llama.cpp with default options, if --llama-binary
                           names it; needs no Python package
The options of llama.cpp are tested where they matter: flash attention at depth,
repacking in prefill. The best result counts as llama.cpp's.

The tokens of the depth are run once per process; llama.cpp stores its state at
depth in a file for the later rounds. A warm-up precedes each timed run; it is
short for OpenVINO GenAI, which would run the whole depth again.

If no wheel exists, installing llama-cpp-python compiles llama.cpp. The line 'isa'
lists its instruction sets. If some of the processor's are missing:
    CMAKE_ARGS="-DGGML_NATIVE=ON" nice pip install --no-cache-dir --force-reinstall \\
        --no-binary llama-cpp-python llama-cpp-python==0.3.36

On a shared machine, run it with a higher priority than other processes, and check
the minimum and maximum. The busy process of `foreign` starts in the session of
this program, so that the scheduler gives it the share of one engine thread.
Needs numpy, and llama-cpp-python and openvino-genai if these engines are tested.
"""

import argparse
import csv
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ENGINES = ["girih", "llama.cpp", "llama.cpp fa=0", "llama.cpp fa=1", "llama.cpp repack=0", "openvino"]
SEED = 42
FIRST_PROMPT = 16
"""Length of the prompt for the time to the first token."""

FIRST_TEXT = "The engine reads the file, lays its weights out for the processor and then"
"""A text of FIRST_PROMPT tokens in Llama's vocabulary, including the BOS token."""

COLUMNS = ["model", "test", "unit", "engine", "median", "min", "max", "girih_faster", "isa"]
"""The columns of `--csv`; `girih_faster` is girih's speedup over the engine."""

TEXT = (
    "The engine reads the file, lays its weights out for the processor, and multiplies. What a user sees "
    "is a line of text that grows word by word; what a processor sees is a stream of bytes that memory "
    "cannot deliver fast enough. Between the two lies everything that this program is about, and most of "
    "it is the patient arrangement of numbers in the order in which they will be needed."
)


class Test(NamedTuple):
    """One test: prefill or decode of a number of tokens at a depth."""

    prompt: int
    reply: int
    depth: int

    @staticmethod
    def parse(text: str) -> "Test":
        match = re.fullmatch(r"(pp|tg)(\d+)(?:@d(\d+))?", text)
        if not match or int(match[2]) == 0:
            raise argparse.ArgumentTypeError(f"'{text}' is not a test; write pp512 or tg32@d4096")
        count, depth = int(match[2]), int(match[3] or 0)
        return Test(count, 0, depth) if match[1] == "pp" else Test(0, count, depth)

    def __str__(self) -> str:
        name = f"pp{self.prompt}" if self.prompt else f"tg{self.reply}"
        return f"{name}@d{self.depth}" if self.depth else name

    @property
    def start(self) -> int:
        """The position of the first timed token."""
        return max(self.depth, 1) if self.reply else self.depth

    @property
    def tokens(self) -> int:
        return self.prompt + self.reply


def resident(key: str) -> int:
    """Return an entry of this process's status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


# An engine's process runs one of these functions and prints the result as one line of JSON:
# {"rates": {test: tokens per second}, "first token, …": seconds, "peak": bytes, "isa": text}


def girih_starts(program: str, model: Path, threads: int, options: list[str]) -> dict:
    """Return the seconds to girih's first token of a first start, then of the next one, which finds what that stored."""
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        for start in ("cold", "warm"):
            command = [program, "run", str(model), FIRST_TEXT, "--raw", "-n", "1", "--json", "--quiet"]
            ended = subprocess.run([*command, "--threads", str(threads), *options], check=True, capture_output=True, text=True,
                                   env={**os.environ, "XDG_CACHE_HOME": cache})
            found[f"first token, {start}"] = json.loads(ended.stdout)["start"]["total"]
            # A process of girih's waits for the disk and then names the file.
            while list(Path(cache).rglob("*.part")):
                time.sleep(0.1)
    return found


def girih(program: str, model: Path, tests: list[Test], threads: int, options: list[str], starts: bool) -> dict:
    """Run girih's `bench`, once per depth for all tests."""
    found = {"rates": {}, "isa": "", **(girih_starts(program, model, threads, options) if starts else {})}
    for depth in sorted({test.depth for test in tests}):
        here = [test for test in tests if test.depth == depth]
        lengths = lambda field: ",".join(str(getattr(test, field)) for test in here if getattr(test, field)) or "0"
        command = [program, "bench", str(model), "-o", "json", "--quiet", "--no-limits", "-r", "1"]
        command += ["--threads", str(threads), "-d", str(depth)]
        command += ["-p", lengths("prompt"), "-n", lengths("reply"), *options]
        rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for row in rows:
            test = Test(row["n_prompt"], row["n_gen"], row["n_depth"])
            found["rates"][str(test)] = row["median_ts"]
        found["peak"] = max(found.get("peak", 0), rows[-1]["peak_resident"] or 0)
        found["isa"] = f"{rows[0]['isa']}, activations {rows[0]['activations']}, kv {rows[0]['type_k']}"
    return found


def llama_cpp(engine: str, model: Path, tests: list[Test], threads: int, kept: Path) -> dict:
    """Run llama.cpp through its C interface as llama-bench does: random tokens, no sampling. The folder `kept` has
    the states at depth."""
    import ctypes

    import llama_cpp as api
    import numpy as np

    @api.llama_log_callback
    def silent(level, text, _):
        if level == 4:  # GGML_LOG_LEVEL_ERROR
            sys.stderr.write(text.decode(errors="replace"))

    api.llama_log_set(silent, ctypes.c_void_p(0))
    api.llama_backend_init()
    options = dict(part.split("=") for part in engine.split()[1:])
    base, begun = resident("VmRSS"), time.perf_counter()
    model_options = api.llama_model_default_params()
    model_options.use_extra_bufts = options.get("repack", "1") == "1"
    loaded = api.llama_model_load_from_file(str(model).encode(), model_options)
    if not loaded:
        raise SystemExit(f"llama.cpp cannot load {model}")
    context_options = api.llama_context_default_params()
    context_options.n_ctx = max(FIRST_PROMPT, *(test.start + test.tokens for test in tests)) + 1
    context_options.n_batch, context_options.n_ubatch = 2048, 512
    context_options.n_threads = context_options.n_threads_batch = threads
    context_options.flash_attn_type = int(options.get("fa", -1))
    context = api.llama_init_from_model(loaded, context_options)
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
    random = np.random.default_rng(SEED)

    def run(count: int, step: int) -> None:
        tokens = random.integers(vocabulary, size=count, dtype=np.int32)
        for start in range(0, count, step):
            piece = np.ascontiguousarray(tokens[start : start + step])
            pointer = piece.ctypes.data_as(ctypes.POINTER(api.llama_token))
            if api.llama_decode(context, api.llama_batch_get_one(pointer, len(piece))) != 0:
                raise SystemExit(f"llama.cpp fails at a step of {len(piece)} tokens")
            api.llama_synchronize(context)

    def begin(at: int) -> None:
        """Prepare a sequence of `at` tokens; at depth, only the first call runs them."""
        api.llama_memory_clear(api.llama_get_memory(context), True)
        if at <= 1:
            return run(at, 1)
        state = kept / f"{engine}, {model.name}, {at} tokens"
        name, none, count = str(state).encode(), (api.llama_token * 1)(), ctypes.c_size_t()
        if not state.exists():
            run(at, 2048)
            if not api.llama_state_seq_save_file(context, name, 0, none, 0):
                raise SystemExit(f"llama.cpp cannot store its state at {at} tokens in {kept}")
        elif not api.llama_state_seq_load_file(context, name, 0, none, 1, ctypes.byref(count)):
            raise SystemExit(f"llama.cpp cannot load its state at {at} tokens")

    run(FIRST_PROMPT, FIRST_PROMPT)
    first, rates = time.perf_counter() - begun, {}
    for test in tests:
        for counted in (False, True):
            begin(test.start)
            start = time.perf_counter()
            run(test.tokens, 2048 if test.prompt else 1)
            if counted:
                rates[str(test)] = test.tokens / (time.perf_counter() - start)
    isa = " ".join(re.findall(r"(\w+) = 1", api.llama_print_system_info().decode()))
    starts = dict.fromkeys(("first token, cold", "first token, warm"), first)
    return {"rates": rates, **starts, "peak": resident("VmHWM") - base, "isa": isa}


def openvino(model: Path, tests: list[Test], threads: int, properties: list[str]) -> dict:
    """Run OpenVINO GenAI: the time to the first token for prefill, the time per token for decode."""
    import numpy as np
    import openvino
    import openvino_genai

    base, begun = resident("VmRSS"), time.perf_counter()
    pipeline = openvino_genai.LLMPipeline(str(model), "CPU", INFERENCE_NUM_THREADS=threads, **dict(pair.split("=", 1) for pair in properties))
    random = np.random.default_rng(SEED)

    def run(prompt: int, reply: int):
        options = openvino_genai.GenerationConfig(max_new_tokens=reply, ignore_eos=True, do_sample=False)
        # Ordinary tokens only: special tokens come last in the vocabulary.
        ids = random.integers(1000, 100_000, size=(1, prompt), dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        return pipeline.generate(inputs, options).perf_metrics

    run(FIRST_PROMPT, 1)
    first, rates = time.perf_counter() - begun, {}
    for test in tests:
        if test.prompt and test.depth:
            continue  # it cannot extend an existing sequence with a prompt
        for before in (test.prompt or 1, test.prompt or test.start):
            metrics = run(before, test.reply + 1)
        if test.prompt:
            rates[str(test)] = test.prompt / (metrics.get_ttft().mean / 1e3)
        else:
            rates[str(test)] = 1e3 / metrics.get_tpot().mean
    isa = f"OpenVINO {openvino.__version__}"
    starts = dict.fromkeys(("first token, cold", "first token, warm"), first)
    return {"rates": rates, **starts, "peak": resident("VmHWM") - base, "isa": isa}


def bench_rows(binary: str, model: Path, here: list[Test], threads: int, options: list[str]) -> tuple[list[dict], int]:
    """Run a llama-bench with the tests `here`, without their depths; return its rows and its peak of resident memory."""
    lengths = lambda field: ",".join(str(getattr(test, field)) for test in here if getattr(test, field)) or "0"
    command = [binary, "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json"]
    command += ["-p", lengths("prompt"), "-n", lengths("reply"), *options]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return rows, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def ik_llama_cpp(binary: str, model: Path, tests: list[Test], threads: int) -> dict:
    """Run ik_llama.cpp's llama-bench, which times decode at depth (-gp) but not prefill at depth."""
    deep = [["-gp", f"{test.depth},{test.reply}"] for test in tests if test.depth and test.reply]
    here = [test for test in tests if not test.depth]
    rows, peak = bench_rows(binary, model, here, threads, ["-rtr", "1", "-fa", "1", *sum(deep, [])])
    depth = lambda row: row["n_prompt"] if row["n_gen"] else 0
    rates = {str(Test(row["n_prompt"] - depth(row), row["n_gen"], depth(row))): row["avg_ts"] for row in rows}
    return {"rates": rates, "peak": peak, "isa": "ik_llama.cpp -rtr 1 -fa 1"}


def llama_bench(binary: str, model: Path, tests: list[Test], threads: int) -> dict:
    """Run llama.cpp's llama-bench, once per depth for all tests."""
    rates, peak = {}, 0
    for depth in sorted({test.depth for test in tests}):
        here = [test for test in tests if test.depth == depth]
        rows, peak = bench_rows(binary, model, here, threads, ["-d", str(depth)])
        rates |= {str(Test(row["n_prompt"], row["n_gen"], row["n_depth"])): row["avg_ts"] for row in rows}
    return {"rates": rates, "peak": peak, "isa": "llama.cpp's llama-bench"}


def touch_memory(size: int = 2 << 30) -> None:
    """Write to `size` bytes in a process that then ends. The host of a virtual machine may have reclaimed free
    memory, and returning it can take longer than a start."""
    write = f"memory = bytearray({size}); memory[::4096] = bytes({size} // 4096)"
    subprocess.run([sys.executable, "-c", write], check=True)


def measured(engine: str, model: Path, tests: list[Test], arguments: argparse.Namespace) -> dict | None:
    """Run an engine in its own process; report and return None if it fails or takes too long."""
    command = [sys.executable, __file__, "engine", engine, str(model), "--threads", str(arguments.threads)]
    command += ["--tests", ",".join(map(str, tests)), "--girih", str(arguments.girih), "--kept", arguments.kept]
    command += [f"--girih-option={option}" for option in arguments.girih_option]
    command += [f"--openvino-property={pair}" for pair in arguments.openvino_property]
    if arguments.command == "compare" and not arguments.no_starts:
        command += ["--starts"]
    for option in ("ik_binary", "llama_binary"):
        if binary := getattr(arguments, option):
            command += [f"--{option.replace('_', '-')}", str(binary)]
    touch_memory()
    # Its own process group, so that its children end with it.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    try:
        output, errors = process.communicate(timeout=arguments.limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        print(f"{engine} takes longer than {arguments.limit} s for {model.name}", file=sys.stderr)
        return None
    if process.returncode:
        reason = (errors.strip().splitlines() or ["no reason given"])[-1]
        print(f"{engine} cannot run {model.name}: {reason}", file=sys.stderr)
        return None
    return json.loads(output.splitlines()[-1])


def engine(arguments: argparse.Namespace) -> int:
    """Run one engine; the entry of its process."""
    name, model, tests, threads = arguments.engine, arguments.model, arguments.tests, arguments.threads
    if name == "girih":
        found = girih(arguments.girih, model, tests, threads, arguments.girih_option, arguments.starts)
    elif name == "openvino":
        found = openvino(model, tests, threads, arguments.openvino_property)
    elif name == "ik_llama.cpp":
        found = ik_llama_cpp(arguments.ik_binary, model, tests, threads)
    elif name == "llama-bench":
        found = llama_bench(arguments.llama_binary, model, tests, threads)
    else:
        found = llama_cpp(name, model, tests, threads, arguments.kept)
    print(json.dumps(found))
    return 0


def wanted(engine_: str, tests: list[Test]) -> list[Test]:
    """Return the tests in which an engine's options matter."""
    if " fa=" in engine_:
        return [test for test in tests if test.depth or test.prompt > 1024]
    if " repack=" in engine_:
        return [test for test in tests if not test.depth]
    return tests


def all_engines(arguments: argparse.Namespace) -> list[str]:
    """Return the engines that were asked for, by name or by their programs."""
    programs = {"ik_llama.cpp": arguments.ik_binary, "llama-bench": arguments.llama_binary}
    return arguments.engines + [name for name, binary in programs.items() if binary]


def in_turns(model: Path, arguments: argparse.Namespace) -> dict[str, list[dict]]:
    """Run all rounds of all engines; an engine that fails is skipped in later rounds."""
    names = [name for name in all_engines(arguments) if wanted(name, arguments.tests)]
    found: dict[str, list[dict]] = {name: [] for name in names}
    for index in range(arguments.rounds):
        for name in list(found):
            result = measured(name, model, wanted(name, arguments.tests), arguments)
            if result is None:
                del found[name]
                continue
            found[name].append(result)
            print(f"round {index + 1} of {arguments.rounds}: {name}: {result['rates']}", file=sys.stderr)
    return found


def spread(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def rows_of(model: Path, found: dict[str, list[dict]], tests: list[Test]) -> list[dict]:
    """Return the results, one row per test and engine."""

    def rows(test: str, unit: str, values: dict[str, list[float]]) -> list[dict]:
        spreads = {name: spread(list_) for name, list_ in values.items() if list_}
        options = [spread_ for name, spread_ in spreads.items() if name.startswith("llama")]
        if len(options) > 1 and unit == "t/s":
            spreads["llama.cpp, its best"] = max(options)
        own = spreads.get("girih", (None,))[0]
        faster = lambda median: None if own is None or unit == "MiB" else own / median if unit == "t/s" else median / own
        return [{"model": model.name, "test": test, "unit": unit, "engine": name, "median": median, "min": least,
                 "max": most, "girih_faster": faster(median), "isa": found.get(name, [{}])[0].get("isa", "")}
                for name, (median, least, most) in spreads.items()]

    def values(of) -> dict[str, list[float]]:
        every = {name: [of(result) for result in results] for name, results in found.items()}
        return {name: [value for value in list_ if value is not None] for name, list_ in every.items()}

    all_ = [row for test in map(str, tests) for row in rows(test, "t/s", values(lambda it: it["rates"].get(test)))]
    for start in ("first token, cold", "first token, warm"):
        all_ += rows(start, "s", values(lambda it: it.get(start)))
    return all_ + rows("peak resident", "MiB", values(lambda it: it["peak"] / 2**20 if "peak" in it else None))


def print_table(model: Path, rows: list[dict]) -> None:
    print(f"\n{model.name}\n")
    print("| test | engine | median (min–max) | unit | girih speedup |\n|---|---|--:|---|--:|")
    for row in rows:
        faster = row["girih_faster"] if row["engine"] != "girih" else None
        shown = f"{faster:.2f}" if faster else "–"
        spread_ = f"{row['median']:.2f} ({row['min']:.2f}–{row['max']:.2f})"
        print(f"| {row['test']} | {row['engine']} | {spread_} | {row['unit']} | {shown} |")
    for name, isa in {row["engine"]: row["isa"] for row in rows if row["isa"]}.items():
        print(f"{name}: {isa}")


def warn_of_missing_instructions(found: dict[str, list[dict]]) -> None:
    """Warn if llama.cpp was compiled without instructions that this processor has."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    for name, results in found.items():
        if not name.startswith("llama.cpp") or not results:
            continue
        for flag, sign in (("avx512_vnni", "AVX512_VNNI"), ("avx2", "AVX2")):
            if f" {flag}" in flags and sign not in results[0]["isa"].split():
                print(f"{name} was compiled without {flag}: see --help", file=sys.stderr)


def compare(arguments: argparse.Namespace) -> int:
    rows = []
    for model in arguments.models:
        found = in_turns(model, arguments)
        rows += rows_of(model, found, arguments.tests)
        print_table(model, [row for row in rows if row["model"] == model.name])
        warn_of_missing_instructions(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0


@contextmanager
def busy():
    """Run a busy process. It must be in the engines' session, because each session gets the same share of the CPUs."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


def foreign(arguments: argparse.Namespace) -> int:
    rows = []
    for model in arguments.models:
        found: dict[str, dict[str, list[float]]] = {}
        names = all_engines(arguments)
        for index in range(arguments.rounds):
            for name in list(names):
                quiet = measured(name, model, arguments.tests, arguments)
                with busy():
                    beside = quiet and measured(name, model, arguments.tests, arguments)
                if quiet is None or beside is None:
                    names = [other for other in names if other != name]
                    continue
                shown = f"{name}: quiet {quiet['rates']}, beside {beside['rates']}"
                print(f"round {index + 1} of {arguments.rounds}: {shown}", file=sys.stderr)
                for test in map(str, arguments.tests):
                    rates = found.setdefault(f"{test} {name}", {"quiet": [], "beside": []})
                    rates["quiet"].append(quiet["rates"][test])
                    rates["beside"].append(beside["rates"][test])
        print(f"\n{model.name}, beside one busy thread\n")
        print("| test, engine | idle, t/s | beside it, t/s | kept |\n|---|--:|--:|--:|")
        for name, rates in found.items():
            quiet, beside = (statistics.median(rates[key]) for key in ("quiet", "beside"))
            print(f"| {name} | {quiet:.2f} | {beside:.2f} | {100 * beside / quiet:.0f} % |")
            rows.append({"model": model.name, "test": name, "quiet": quiet, "beside": beside})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def divergence(reference, other) -> tuple[float, float]:
    """Return the mean divergence of `other` from `reference`, in nats, and the largest difference of a logit."""
    import numpy as np

    def log_softmax(rows):
        rows = rows.astype(np.float64)
        rows = rows - rows.max(axis=1, keepdims=True)
        return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))

    left, right = log_softmax(reference), log_softmax(other)
    mean = float((np.exp(left) * (left - right)).sum(axis=1).mean())
    return mean, float(np.abs(reference.astype(np.float64) - other).max())


def girih_logits(arguments: argparse.Namespace, model: Path, text: Path, options: list[str]):
    """Return girih's logits for the first tokens of a text."""
    import numpy as np

    with tempfile.NamedTemporaryFile(suffix=".f32") as file:
        command = [arguments.girih, "perplexity", str(model), str(text), "--window", str(arguments.positions)]
        command += ["--logits", file.name, "--json", "--quiet", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return np.fromfile(file.name, dtype="<f4").reshape(arguments.positions, -1)


def precision(arguments: argparse.Namespace, model: Path) -> list[str]:
    """Return the option with which `perplexity` rounds activations as `run` does, which the processor may decide."""
    if any(option.startswith("--act-precision") for option in arguments.girih_option):
        return []
    answer = subprocess.run([arguments.girih, "inspect", str(model), "--json", *arguments.girih_option],
                            check=True, capture_output=True, text=True).stdout
    return ["--act-precision", "bf16"] if json.loads(answer).get("activations") == "bf16" else []


def llama_logits(model: Path, ids: list[int], threads: int, **options):
    """Return llama.cpp's logits for some tokens, with its defaults except for `options`."""
    import llama_cpp as api
    import numpy as np

    loaded = api.Llama(str(model), n_ctx=len(ids), n_batch=len(ids), n_threads=threads,
                       n_threads_batch=threads, logits_all=True, verbose=False, **options)
    loaded.eval(ids)
    return np.array(loaded.scores[: len(ids)])


def logits(arguments: argparse.Namespace) -> int:
    help_ = subprocess.run([arguments.girih, "perplexity", "--help"], capture_output=True, text=True).stdout
    chosen = "--act-precision" in help_
    if not chosen:
        print("this girih has f32 activations only, so its divergence is 0 by definition")
    worse = False
    single = {"type_k": 0, "type_v": 0}  # GGML_TYPE_F32
    print("| model | girih: mean KL | max abs | llama.cpp: mean KL | max abs | its cache in f32: mean KL | max abs |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(arguments.text.read_text() if arguments.text else TEXT)
        file.flush()
        for model in arguments.models:
            text = Path(file.name)
            command = [arguments.girih, "tokenize", str(model), "--special", "--json"]
            with text.open() as stdin:
                answer = subprocess.run(command, check=True, stdin=stdin, capture_output=True, text=True)
            ids = json.loads(answer.stdout)["ids"][: arguments.positions]
            if len(ids) < arguments.positions:
                raise SystemExit(f"the text has {len(ids)} tokens; {arguments.positions} are needed")
            exact = girih_logits(arguments, model, text, ["--act-precision", "f32"] if chosen else [])
            options = [*precision(arguments, model), *arguments.girih_option]
            own = divergence(exact, girih_logits(arguments, model, text, options))
            if arguments.girih_only:
                print(f"| {model.name} | {own[0]:.2e} | {own[1]:.3f} | – | – | – | – |", flush=True)
                continue
            theirs = divergence(exact, llama_logits(model, ids, arguments.threads))
            finer = divergence(exact, llama_logits(model, ids, arguments.threads, **single))
            found = [f"{kl:.2e} | {most:.3f}" for kl, most in (own, theirs, finer)]
            print(f"| {model.name} | {' | '.join(found)} |", flush=True)
            worse |= own[0] > theirs[0] or own[1] > theirs[1]
    return int(worse)


def tests(text: str) -> list[Test]:
    return [Test.parse(part) for part in text.split(",")]


def program(text: str) -> Path:
    """Parse the path of an executable file."""
    path = Path(text)
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise argparse.ArgumentTypeError(f"'{text}' is not an executable file")
    return path


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    for name, run, default in (
        ("compare", compare, "pp512,pp128,tg64,tg32@d1024,tg32@d4096"),
        ("foreign", foreign, "tg8"),
        ("logits", logits, "pp1"),
        ("engine", engine, "pp512"),
    ):
        command = commands.add_parser(name)
        if name == "engine":
            command.add_argument("engine")
            command.add_argument("model", type=Path)
        else:
            command.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
            command.add_argument("--rounds", type=int, default=2 if name == "foreign" else 5)
            command.add_argument("--limit", type=float, default=60 if name == "foreign" else 900, metavar="SECONDS",
                                 help="time limit of an engine's process")
            command.add_argument("--engines", type=lambda text: text.split(","),
                                 default=ENGINES if name == "compare" else ["girih", "llama.cpp", "openvino"])
            command.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
        if name == "engine":
            command.add_argument("--starts", action="store_true", help="also time the first token")
            command.add_argument("--kept", type=Path, required=True, help="a folder for the states that later rounds load")
        if name == "compare":
            command.add_argument("--no-starts", action="store_true",
                                 help="do not time the first token, which needs a tokenizer")
            command.add_argument("--csv", type=Path, metavar="FILE", help="also write the rows here, as CSV")
        if name == "logits":
            command.add_argument("--girih-only", action="store_true", help="leave llama.cpp out")
            command.add_argument("--text", type=Path, help="a text of at least --positions tokens")
            command.add_argument("--positions", type=int, default=64)
        command.add_argument("--tests", type=tests, default=default)
        command.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
        command.add_argument("--girih", required=True, help="the girih program")
        command.add_argument("--girih-option", action="append", default=[], metavar="OPTION",
                             help="an option for girih, such as --kv=f16; may be repeated")
        command.add_argument("--openvino-property", action="append", default=[], metavar="KEY=VALUE",
                             help="a property for OpenVINO GenAI, such as INFERENCE_PRECISION_HINT=f32; may be repeated")
        command.add_argument("--ik-binary", type=program, help="llama-bench of ik_llama.cpp")
        command.add_argument("--llama-binary", type=program, help="llama-bench of llama.cpp")
        command.set_defaults(run=run)
    return top


def main() -> int:
    arguments = parser().parse_args()
    if arguments.command == "engine":
        return engine(arguments)
    with tempfile.TemporaryDirectory() as arguments.kept:
        return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
