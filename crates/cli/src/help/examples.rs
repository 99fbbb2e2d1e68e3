//! Examples of each command, for its help.

/// The examples of a command that a path such as `["npu", "sim"]` names.
pub fn of(path: &[String]) -> Option<&'static [&'static str]> {
    let name = path.join(" ");
    EXAMPLES.iter().find(|(command, _)| *command == name).map(|(_, lines)| *lines)
}

const EXAMPLES: &[(&str, &[&str])] = &[
    ("", &["girih run stories260k", "girih pull Qwen/Qwen3-0.6B", "girih chat Qwen/Qwen3-0.6B"]),
    (
        "run",
        &[
            "girih run stories260k \"Once upon a time\"",
            "girih run -m model.gguf -p \"Name three birds.\" -n 64",
        ],
    ),
    ("chat", &["girih chat Qwen/Qwen3-0.6B", "girih chat model.gguf --system \"Answer in one sentence.\""]),
    (
        "serve",
        &[
            "girih serve Qwen/Qwen3-0.6B",
            "girih serve model.gguf --port 8000 --sequences 8",
            "girih serve --models folder",
        ],
    ),
    ("launch", &["girih launch claude", "girih launch codex --run"]),
    ("health", &["girih health", "girih health --url http://127.0.0.1:8000 --ready"]),
    ("embed", &["girih embed sentence-transformers/all-MiniLM-L6-v2 \"a cat\" \"a dog\""]),
    ("tokenize", &["girih tokenize stories260k \"a small cat\" --explain"]),
    ("render", &["girih render Qwen/Qwen3-0.6B \"Hello\" --system \"Be brief.\""]),
    ("inspect", &["girih inspect stories260k", "girih inspect model.gguf --tensors"]),
    ("verify", &["girih verify model --golden golden.safetensors"]),
    (
        "diagnose",
        &[
            "girih diagnose model --golden golden.safetensors",
            "girih diagnose stories260k --reference interpreter",
        ],
    ),
    ("perplexity", &["girih perplexity model.gguf text.txt --window 512"]),
    ("bench", &["girih bench model.gguf -p 512 -n 128 -r 5", "girih bench a.gguf b.gguf -o csv"]),
    ("profile", &["girih profile model.gguf -p 512 -n 32"]),
    ("pull", &["girih pull Qwen/Qwen3-0.6B", "girih pull Qwen/Qwen3-0.6B-GGUF:Q8_0"]),
    ("list", &["girih list"]),
    ("rm", &["girih rm Qwen/Qwen3-0.6B", "girih rm --packed"]),
    ("repair", &["girih repair"]),
    ("merge", &["girih merge models/Llama-3.2-1B adapters/poet models/poet"]),
    ("quantize", &["girih quantize Qwen/Qwen3-0.6B qwen3.gguf --type q4_k_m"]),
    ("alias", &["girih alias qwen Qwen/Qwen3-0.6B", "girih alias --remove qwen"]),
    ("npu", &["girih npu sim stories260k --target toy", "girih npu report stories260k --html report.html"]),
    ("npu compile", &["girih npu compile stories260k --target toy --blobs blobs"]),
    ("npu inspect", &["girih npu inspect stories260k --target toy --split"]),
    ("npu sim", &["girih npu sim stories260k --target toy --context 128"]),
    ("npu runtime", &["girih npu runtime stories260k --target toy --context 128"]),
    ("npu compare", &["girih npu compare tests/shapes/*.json --target xdna2-kraken"]),
    ("npu sweep", &["girih npu sweep stories260k --target toy --output fast.mapping"]),
    (
        "npu report",
        &["girih npu report stories260k --target toy --html report.html", "girih npu report --figures toy"],
    ),
    ("npu bench", &["girih npu bench stories260k --target toy -r 3"]),
    ("doctor", &["girih doctor"]),
    ("completions", &["girih completions bash > ~/.local/share/bash-completion/completions/girih"]),
    ("man", &["girih man run | man -l -", "girih man --output-folder man1"]),
];
