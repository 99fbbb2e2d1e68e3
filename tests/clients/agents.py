"""Run by agents.sh: starts each agent or framework against a server whose model follows a script, and says what came of it.

An agent passes if it ends with 0, tells what its tool printed, no request of it was refused, and its second request found at
least 95 % of the tokens that it shares with the first one in the prefix cache.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AGENTS = ROOT / "target" / "agents"
GIRIH = ROOT / "target" / "release" / "girih"
SCRIPTED = ROOT / "target" / "release" / "examples" / "scripted"

QUESTION = "Run the command and say what it prints."
PRINTED = "girih-42"
COMMAND = "echo girih-$((6*7))"
ANSWER = f"The command prints {PRINTED}."

TEMPLATE = (
    "<s>{# <tool_call> #}{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}{% endif %}"
    "{% endfor %}{{ tools | tojson }}{% for message in messages %}{% if message.role != 'system' %}<{{ message.role }}>"
    "{{ message.content }}{% for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}{% endif %}{% endfor %}"
)
"""Writes all of a conversation; its comment names the style of calls."""


@dataclass
class Agent:
    """How an agent is asked, and how its tool is called."""

    arguments: list[str]
    tool: str
    call: dict
    variables: dict[str, str] = field(default_factory=dict)
    kind: str = "launched"
    """`launched` by girih, `configured` by its own file, or a Python `framework`."""
    more: list[dict] = field(default_factory=list)
    """Entries of the script before the usual ones."""



def entry(when: str, then: str) -> dict:
    """What the model says when the last message has this text."""
    return {"when": when, "then": then}


def called(tool: str, arguments: dict) -> str:
    """A call in the words of the model."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def framework(*more: dict) -> Agent:
    """A Python framework of frameworks.py."""
    return Agent([], "command", {}, kind="framework", more=list(more))


SHELL = {"command": COMMAND, "description": "Print a number"}

ALL = {
    "claude": Agent(
        ["-p", QUESTION, "--tools", "Bash", "--allowedTools", "Bash"],
        "Bash",
        SHELL,
        {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    "codex": Agent(
        ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", QUESTION], "exec_command", {"cmd": COMMAND}
    ),
    "opencode": Agent(["run", QUESTION], "bash", SHELL),
    "qwen": Agent(["-p", QUESTION, "--approval-mode", "yolo"], "run_shell_command", {**SHELL, "is_background": False}),
    "aider": Agent(["--message", QUESTION, "--yes-always", "--no-git", "--no-check-update", "--no-pretty"], "", {}),
    "continue": Agent(["-p", QUESTION, "--auto"], "Bash", {"command": COMMAND}, kind="configured"),
    "smolagents": framework(entry(PRINTED, called("final_answer", {"answer": ANSWER}))),
    "instructor": framework(entry(QUESTION, called("Answer", {"printed": PRINTED}))),
    "litellm": framework(),
    "langchain": framework(),
}


def model() -> Path:
    """A folder of the built-in model with a long context and a template with tools."""
    folder = AGENTS / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "crates/girih/assets/stories260k", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 131072}))
    return folder


def script(agent: Agent) -> list[dict]:
    """What the model says: a call, then what the call printed."""
    then = called(agent.tool, agent.call) if agent.tool else ANSWER
    return [*agent.more, entry(PRINTED, ANSWER), entry(QUESTION, then)]


def environment(agent: Agent, home: Path) -> dict[str, str]:
    """The variables of an agent, in an empty home."""
    path = f"{AGENTS / 'node_modules/.bin'}:{AGENTS / 'venv/bin'}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "TERM": "dumb", "CI": "1", "LANG": "C.UTF-8", **agent.variables}


def command(name: str, agent: Agent, address: str, home: Path) -> list[str]:
    """The call that starts an agent."""
    if agent.kind == "framework":
        return [str(AGENTS / "frameworks/bin/python"), str(ROOT / "tests/clients/frameworks.py"), name, address]
    if agent.kind == "launched":
        return [str(GIRIH), "launch", name, "--url", address, "--run", "--", *agent.arguments]
    # `girih launch` does not know it: its own configuration file names the server.
    config = home / "config.yaml"
    models = [{"name": "girih", "provider": "openai", "model": "model", "apiBase": f"{address}/v1", "apiKey": "none"}]
    models[0]["capabilities"] = ["tool_use"]
    config.write_text(json.dumps({"name": "girih", "version": "1.0.0", "schema": "v1", "models": models}))
    return [str(AGENTS / "node_modules/.bin/cn"), "--config", str(config), *agent.arguments]


def faults(name: str, agent: Agent, log: Path) -> list[str]:
    """What is wrong when an agent is run."""
    with tempfile.TemporaryDirectory() as home, log.open("w") as file, tempfile.TemporaryFile("w+") as lines:
        lines.write(json.dumps(script(agent)))
        lines.seek(0)
        server = subprocess.Popen([SCRIPTED, AGENTS / "model", "131072"], stdin=lines, stdout=file, stderr=file)
        try:
            while not (found := re.search(r"http://\S+", log.read_text())):
                if server.poll() is not None:
                    return [f"the server did not start: {log.read_text()}"]
                time.sleep(0.05)
            call = command(name, agent, found.group(), Path(home))
            work = Path(home) / "work"
            work.mkdir()
            options = {"cwd": work, "env": environment(agent, Path(home)), "stdin": subprocess.DEVNULL}
            done = subprocess.run(call, capture_output=True, text=True, timeout=600, **options)
        except subprocess.TimeoutExpired as late:
            return [f"it did not end: {str(late.stdout)[-500:]} {str(late.stderr)[-500:]}"]
        finally:
            server.terminate()
            server.wait()
    log.with_suffix(".out").write_text(done.stdout + done.stderr)
    wrong = [] if done.returncode == 0 else [f"exit code {done.returncode}: {(done.stderr or done.stdout)[-500:]}"]
    if PRINTED not in done.stdout:
        wrong.append(f"it does not tell what the tool printed: {done.stdout[-300:]!r}")
    return wrong + refusals(log) + (cached(log) if agent.tool and agent.kind != "framework" else [])


def requests(log: Path) -> list[dict]:
    """The lines of the log."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def refusals(log: Path) -> list[str]:
    """The requests that were refused, except the questions for routes that only OpenAI's own server has."""
    lines = [line for line in requests(log) if line["status"] >= 400 and line.get("code") != "not_found"]
    return [f"{line['method']} {line['route']}: {line['status']} {line.get('code')}" for line in lines]


def cached(log: Path) -> list[str]:
    """Whether the request with the tool's result found what it shares with the one before."""
    found = [dict(re.findall(r"(\w+)=(\w+)", line["cache"])) for line in requests(log) if line.get("cache")]
    if not found:
        return ["no request had a prompt"]
    last = found[-1]
    shared = int(last.get("position", int(last["prompt"]) - 1))
    share = int(last["cached"]) / max(shared, 1)
    print(f"    {len(found)} prompts; the last one: {last['prompt']} tokens, {shared} shared, {share:.1%} of them cached")
    return [] if share >= 0.95 else [f"{share:.1%} of the shared tokens were cached: {last}"]


def main() -> int:
    """Run the agents of the command line, or all."""
    model()
    failed = 0
    for name in sys.argv[1:] or ALL:
        print(f"{name}:")
        begun = time.monotonic()
        wrong = faults(name, ALL[name], AGENTS / f"{name}.log")
        failed += bool(wrong)
        for fault in wrong:
            print(f"    FAILED {fault}")
        print(f"    {'failed' if wrong else 'passed'} in {time.monotonic() - begun:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
