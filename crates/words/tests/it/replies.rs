//! Transcripts of replies in each style: the parts are the same for any split of the text.

use std::path::Path;
use std::sync::Arc;

use girih_tensor::Random;
use girih_words::reply::{ReplyMessage, ReplyParser, ReplyPart, ReplyStyle, ReplySyntax};
use girih_words::template::{Conversation, RenderLimits, Renderer};
use girih_words::{BosEos, TextLimits, TextOrigin, TextProcessor, Tokenizer};
use serde_json::{Value, json};

use crate::data;

/// One reply: its style, the end of its prompt, its text, and its parts as [`shown`] writes them.
struct Transcript {
    style: &'static str,
    prompt: &'static str,
    text: &'static str,
    want: &'static str,
}

const fn of(style: &'static str, text: &'static str, want: &'static str) -> Transcript {
    Transcript { style, prompt: "", text, want }
}

/// As Qwen3's template writes them, and what models make of it.
const HERMES: &[Transcript] = &[
    of(
        "hermes",
        "<think>\nThe user wants\nthe weather.\n</think>\n\nI look it up.\n<tool_call>\n{\"name\": \"get_weather\", \
         \"arguments\": {\"city\": \"Orléans\", \"days\": [1, 2]}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \
         \"arguments\": {}}\n</tool_call>",
        "think(The user wants\nthe weather.) text(I look it up.) \
         call(call00000 get_weather {\"city\": \"Orléans\", \"days\": [1, 2]}) call(call00001 now {})",
    ),
    of("hermes", "<think>\n\n</think>\n\nYes.\n", "text(Yes.\n)"),
    of("hermes", " \n<think>a</think>b <think>c</think> ", "think(a) text(b <think>c</think> )"),
    of("hermes", "<think>never closed <", "think(never closed <)"),
    of("hermes", "a < b, <thin, </think> <tool_cal", "text(a < b, <thin, </think> <tool_cal)"),
    of("hermes", "  two  spaces  ", "text(  two  spaces  )"),
    Transcript {
        style: "hermes",
        prompt: "<|im_start|>assistant\n<think>\n",
        text: "Hm.\n</think>\n\nYes.",
        want: "think(Hm.) text(Yes.)",
    },
    Transcript { style: "hermes", prompt: "<think>\n\n</think>\n\n", text: "Yes.", want: "text(Yes.)" },
    // The arguments may come first, and may contain markers.
    of(
        "hermes",
        "<tool_call>{\"arguments\":{\"s\":\"</tool_call>\\n\"},\"type\":\"function\",\"id\":\"x1\",\"name\":\"f\"}</tool_call>",
        "call(x1 f {\"s\":\"</tool_call>\\n\"})",
    ),
    // The end of the reply may stand for the closing marker.
    of("hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "call(call00000 f {})"),
    of(
        "hermes",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}} x</tool_call>",
        "call(call00000 f {}) text(x</tool_call>)",
    ),
    // What is no call is content.
    of("hermes", "A <tool_call> tag.", "text(A <tool_call> tag.)"),
    of(
        "hermes",
        "A <tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "text(A <tool_call>) call(call00000 f {})",
    ),
    of(
        "hermes",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": 1}",
        "text(<tool_call>\n{\"name\": \"f\", \"arguments\": 1})",
    ),
    of(
        "hermes",
        "<tool_call>{\"name\": \"a b\", \"arguments\": {}}",
        "text(<tool_call>{\"name\": \"a b\", \"arguments\": {}})",
    ),
    of(
        "hermes",
        "<tool_call>{\"name\": \"f\"}</tool_call>",
        "text(<tool_call>{\"name\": \"f\"}</tool_call>)",
    ),
    of("hermes", "<tool_call>{\"name\": \"f\", \"argum", "text(<tool_call>{\"name\": \"f\", \"argum)"),
    // A fault in the arguments ends the call by name.
    of(
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tru}} </tool_call> b",
        "call(call00000 f {\"a\": }} : a value is neither a string, a finite number, a list, an object nor a constant) text(b)",
    ),
    of(
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
        "call(call00000 f {\"a\": \"b: the reply ended within the arguments)",
    ),
];

/// As the templates of Llama 3.1 and 3.2 write them.
const LLAMA3: &[Transcript] = &[
    of(
        "llama3",
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
        "call(call00000 get_weather {\"city\": \"Paris\"})",
    ),
    of(
        "llama3",
        "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": {\"b\": null}}}; {\"name\": \"g\", \"parameters\": {}}",
        "call(call00000 f {\"a\": {\"b\": null}}) call(call00001 g {})",
    ),
    of(
        "llama3",
        "<|python_tag|>brave_search.call(query=\"a \\\"b\\\"\")",
        "call(call00000 brave_search {\"query\":\"a \\\"b\\\"\"})",
    ),
    of("llama3", "<|python_tag|>print(1 + 1)", "text(<|python_tag|>print(1 + 1))"),
    of("llama3", "{\"name\": \"Bob\", \"age\": 3}", "text({\"name\": \"Bob\", \"age\": 3})"),
    of("llama3", " {\"answer\": 1}\n", "text( {\"answer\": 1}\n)"),
    of(
        "llama3",
        "Here: {\"name\": \"f\", \"parameters\": {}}",
        "text(Here: {\"name\": \"f\", \"parameters\": {}})",
    ),
    of("llama3", "{\"name\": \"f\", \"parameters\": {}}; done", "call(call00000 f {}) text(; done)"),
    of("llama3", "Plain text.", "text(Plain text.)"),
];

/// As Meta's prompt format for Llama 3.2 and 4 asks for them.
const PYTHONIC: &[Transcript] = &[
    of(
        "pythonic",
        "[get_weather(city='San Francisco', metric=\"celsius\"), f(a = [1, 'x'], b={'k': None, 'l': True}), now()]",
        "call(call00000 get_weather {\"city\":\"San Francisco\",\"metric\":\"celsius\"}) \
         call(call00001 f {\"a\":[1,\"x\"],\"b\":{\"k\":null,\"l\":true}}) call(call00002 now {})",
    ),
    of("pythonic", "<|python_start|>[f(x=-1.5)]<|python_end|>", "call(call00000 f {\"x\":-1.5})"),
    of("pythonic", "[1, 2]", "text([1, 2])"),
    of("pythonic", "[see](https://example.org)", "text([see](https://example.org))"),
    of("pythonic", "[f('x')]", "text([f('x')])"),
    of("pythonic", "[f(a=1), g(", "call(call00000 f {\"a\":1}) text(, g()"),
    of(
        "pythonic",
        "[f(a=b)] c",
        "call(call00000 f {\"a\":)] c: a value is neither a string, a finite number, a list, an object nor a constant)",
    ),
    of("pythonic", "[f(a b=1)]", "text([f(a b=1)])"),
];

/// As Google's guide to function calling asks for them.
const GEMMA: &[Transcript] = &[
    of(
        "gemma",
        "```tool_code\nprint(get_weather(city=\"Paris\"))\n```\nDone.",
        "call(call00000 get_weather {\"city\":\"Paris\"}) text(Done.)",
    ),
    of(
        "gemma",
        "I look.\n```tool_code\nf(a=1)\ng()\n```",
        "text(I look.) call(call00000 f {\"a\":1}) call(call00001 g {})",
    ),
    of("gemma", "[f(a=1)]", "call(call00000 f {\"a\":1})"),
    of("gemma", "{\"name\": \"f\", \"parameters\": {}}", "call(call00000 f {})"),
    of(
        "gemma",
        "```json\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}\n```",
        "call(call00000 f {\"a\": 1})",
    ),
    of("gemma", "```json\n{\"a\": 1}\n```", "text(```json\n{\"a\": 1}\n```)"),
    of("gemma", "```tool_code\n1 + 1\n```", "text(```tool_code\n1 + 1\n```)"),
    of("gemma", "```\nprint(1)\n```", "text(```\nprint(1)\n```)"),
];

/// As the templates of Mistral Small 3.1 and 3.2 write them.
const MISTRAL: &[Transcript] = &[
    of(
        "mistral",
        "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": \"abcdefghi\"}, {\"name\": \"f\", \"arguments\": {}}]",
        "call(call00000 get_weather {\"city\": \"Paris\"}) call(call00001 f {})",
    ),
    of(
        "mistral",
        "[TOOL_CALLS][{\"id\": \"abcdefghi\", \"name\": \"f\", \"arguments\": {}}]",
        "call(abcdefghi f {})",
    ),
    of(
        "mistral",
        "[THINK]Hm.[/THINK]\nI look.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}",
        "think(Hm.) text(I look.) call(call00000 get_weather {\"city\": \"Paris\"}) call(abcdefghi f {})",
    ),
    of("mistral", "[TOOL_CALLS]f{\"a\": 1}", "call(call00000 f {\"a\": 1})"),
    of("mistral", "[TOOL_CALLS][1]", "text([TOOL_CALLS][1])"),
    of("mistral", "[TOOL_CALLS]a b[ARGS]{}", "text([TOOL_CALLS]a b[ARGS]{})"),
    of(
        "mistral",
        "[TOOL_CALLS]f[ARGS]{\"a\" 1}[TOOL_CALLS]g[ARGS]{}",
        "call(call00000 f {\"a\" 1}: a colon is missing after a key) call(call00001 g {})",
    ),
];

/// As OpenAI's description of the harmony format writes them.
const GPT_OSS: &[Transcript] = &[
    of(
        "gpt-oss",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary<|message|>I look \
         it up.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \
         \"Paris\"}<|call|>",
        "think(Need the weather.) text(I look it up.) call(call00000 get_weather {\"city\": \"Paris\"})",
    ),
    of(
        "gpt-oss",
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|><|start|>assistant\
         <|channel|>final<|message|>Three.\n",
        "think(One.\n\nTwo.) text(Three.\n)",
    ),
    of("gpt-oss", " to=functions.f<|channel|>commentary json<|message|>{}", "call(call00000 f {})"),
    Transcript {
        style: "gpt-oss",
        prompt: "<|end|><|start|>assistant<|channel|>final<|message|>",
        text: "Yes.<|return|>",
        want: "text(Yes.)",
    },
    Transcript {
        style: "gpt-oss",
        prompt: "<|start|>assistant",
        text: "<|channel|>final<|message|>Yes.",
        want: "text(Yes.)",
    },
    of("gpt-oss", "No header.", "text(No header.)"),
    of("gpt-oss", "<|channel|>fin", "text(<|channel|>fin)"),
    of(
        "gpt-oss",
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>",
        "text(<|channel|>analysis to=python code<|message|>1 + 1)",
    ),
    of(
        "gpt-oss",
        "<|channel|>commentary to=functions.f json<|message|>{\"a\": \"b<|call|><|start|>assistant<|channel|>final<|message|>c",
        "call(call00000 f {\"a\": \"b: the message ended within the arguments) text(c)",
    ),
    of(
        "gpt-oss",
        "<|channel|>commentary to=functions.f json<|message|>not <json>{}<|call|>",
        "call(call00000 f not <json>{}: the arguments are not an object)",
    ),
];

/// As the templates of GLM 4.5, Qwen3-Coder, Seed-OSS, MiniMax-M2 and Muse Glimmer write them.
const TAGGED: &[Transcript] = &[
    of(
        "glm",
        "\n<think>Weather.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Orléans\
         </arg_value>\n<arg_key>days</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        "think(Weather.) text(I look.) call(call00000 get_weather {\"city\":\"Orléans\",\"days\":[1, 2]}) \
         call(call00001 now {})",
    ),
    of("glm", "<tool_call>now</tool_call>", "call(call00000 now {})"),
    of("glm", "a <tool_call> b <c>", "text(a <tool_call> b <c>)"),
    of(
        "glm",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1",
        "call(call00000 f {: the reply ended within the arguments)",
    ),
    of(
        "qwen3-coder",
        "<think>\nHm.\n</think>\n\n<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n<parameter=text>\n\
         two\nlines <b>\n</parameter>\n<parameter=count>\n3\n</parameter>\n</function>\n</tool_call>",
        "think(Hm.) call(call00000 write {\"path\":\"a.txt\",\"text\":\"two\\nlines <b>\",\"count\":3})",
    ),
    of(
        "qwen3-coder",
        "<tool_call>\n<function=now>\n</function>\n</tool_call> Done.",
        "call(call00000 now {}) text(Done.)",
    ),
    of("qwen3-coder", "<tool_call>{\"name\": \"f\"}", "text(<tool_call>{\"name\": \"f\"})"),
    of(
        "seed-oss",
        "<seed:think>Hm.</seed:think>Yes.<seed:tool_call>\n<function=f>\n<parameter=a> x </parameter>\n</function>\n\
         </seed:tool_call>",
        "think(Hm.) text(Yes.) call(call00000 f {\"a\":\" x \"})",
    ),
    of(
        "minimax",
        "<think>\nHm.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">true</parameter>\n</invoke>\n\
         <invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
        "think(Hm.) call(call00000 f {\"a\":true}) call(call00001 g {})",
    ),
    Transcript {
        style: "muse-glimmer",
        prompt: "<|start|>user<|message|>Rain?<|eot|><|start|>assistant",
        text: " to=self<|message|>Hm.<|eom|><|start|>assistant to=weather.get<|message|><atem:function_calls>\n\
               <atem:invoke name=\"weather.get\">\n<atem:parameter name=\"city\">Paris\n</atem:parameter>\n\
               <atem:parameter name=\"days\">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>",
        want: "think(Hm.) call(call00000 weather.get {\"city\":\"Paris\\n\",\"days\":2})",
    },
    Transcript {
        style: "muse-glimmer",
        prompt: "<|start|>assistant",
        text: " to=user<|message|>It rains.<|eot|>",
        want: "text(It rains.)",
    },
];

/// As the templates of Granite, Phi-4-mini, Nemotron, Hunyuan, LFM2 and ERNIE write them.
const BETWEEN_TAGS: &[Transcript] = &[
    of(
        "granite",
        "<think>Hm.</think><response>I look.</response><|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]",
        "think(Hm.) text(I look.) call(call00000 f {\"a\": 1})",
    ),
    of("granite", "The tag <response> is text.</response>", "text(The tag <response> is text.</response>)"),
    of("phi4", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]<|/tool_call|>", "call(call00000 f {})"),
    of(
        "nemotron",
        "<think>\nHm.\n</think>\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>",
        "think(Hm.) call(call00000 f {}) call(call00001 g {})",
    ),
    of(
        "hunyuan",
        "<think>\nHm.\n</think>\n<answer>\nYes.\n<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>\n</answer>",
        "think(Hm.) text(Yes.) call(call00000 f {})",
    ),
    of(
        "lfm2",
        "<|tool_call_start|>[f(a=\"b\")]<|tool_call_end|>Soon.",
        "call(call00000 f {\"a\":\"b\"}) text(Soon.)",
    ),
    of("hermes", "<think>\nHm.\n</think>\n\n<response>\nYes.\n</response>\n", "think(Hm.) text(Yes.)"),
];

const PLAIN: &[Transcript] = &[
    of("plain", "<think>Hm.</think> <tool_call>{}</tool_call>", "think(Hm.) text(<tool_call>{}</tool_call>)"),
    of("plain", "{\"name\": \"f\", \"parameters\": {}}", "text({\"name\": \"f\", \"parameters\": {}})"),
];

/// All transcripts.
fn transcripts() -> impl Iterator<Item = &'static Transcript> {
    [HERMES, LLAMA3, PYTHONIC, GEMMA, MISTRAL, GPT_OSS, TAGGED, BETWEEN_TAGS, PLAIN].into_iter().flatten()
}

/// The parts, with neighbours of one kind joined.
fn shown(parts: &[ReplyPart]) -> String {
    let mut out = String::new();
    let mut is_open = "";
    for part in parts {
        let (kind, text) = match part {
            ReplyPart::Content(text) => ("text", text.clone()),
            ReplyPart::Thinking(text) => ("think", text.clone()),
            ReplyPart::CallBegin { id, name } => ("call", format!("{id} {name} ")),
            ReplyPart::Arguments(text) => ("call", text.clone()),
            ReplyPart::CallEnd { fault: Some(fault) } => ("call", format!(": {fault}")),
            ReplyPart::CallEnd { fault: None } => ("call", String::new()),
            _ => unreachable!("all parts are listed"),
        };
        let is_begin = matches!(part, ReplyPart::CallBegin { .. });
        if is_open != kind || is_begin {
            out += if is_open.is_empty() { "" } else { ") " };
            out += &format!("{kind}(");
            is_open = kind;
        }
        out += &text;
    }
    out + if is_open.is_empty() { "" } else { ")" }
}

fn parts_of<'a>(mut parser: ReplyParser, pieces: impl IntoIterator<Item = &'a str>) -> Vec<ReplyPart> {
    let mut parts: Vec<ReplyPart> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    parts
}

/// Pieces of `text` of random lengths.
fn random_pieces(text: &str, random: &mut Random) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for c in text.chars() {
        if random.below(4) == 0 {
            pieces.push(String::new());
        }
        pieces.last_mut().expect("there is one").push(c);
    }
    pieces
}

#[test]
fn each_style_is_parsed_the_same_for_any_split() {
    for &Transcript { style, prompt, text, want } in transcripts() {
        let syntax = ReplySyntax::spelled(ReplyStyle::named(style).expect("a known style"));
        let parser = || syntax.parser(true).after_prompt(prompt);
        assert_eq!(shown(&parts_of(parser(), [text])), want, "{style}: {text}");
        for (at, _) in text.char_indices() {
            let (first, second) = text.split_at(at);
            assert_eq!(shown(&parts_of(parser(), [first, second])), want, "{style}: {first} / {second}");
        }
        let letters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(shown(&parts_of(parser(), letters.iter().map(String::as_str))), want, "{style}: {text}");
        for seed in 0..50 {
            let pieces = random_pieces(text, &mut Random(seed));
            let parts = parts_of(parser(), pieces.iter().map(String::as_str));
            assert_eq!(shown(&parts), want, "{style}: seed {seed}: {text}");
        }
    }
}

#[test]
fn arguments_without_fault_are_json_objects() {
    for &Transcript { style, prompt, text, .. } in transcripts() {
        let syntax = ReplySyntax::spelled(ReplyStyle::named(style).expect("a known style"));
        let parts = parts_of(syntax.parser(true).after_prompt(prompt), [text]);
        for call in parts.iter().collect::<ReplyMessage>().calls {
            let arguments = serde_json::from_str::<serde_json::Map<_, _>>(&call.arguments);
            assert_eq!(arguments.is_ok(), call.fault.is_none(), "{style}: {call:?}");
        }
    }
}

#[test]
fn without_tools_calls_are_content() {
    for (style, text) in [
        ("hermes", "a\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"),
        ("llama3", "{\"name\": \"f\", \"parameters\": {}}"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}"),
        ("gemma", "```tool_code\nf()\n```"),
        ("gpt-oss", "<|channel|>commentary to=functions.f json<|message|>{}"),
    ] {
        let syntax = ReplySyntax::spelled(ReplyStyle::named(style).expect("a known style"));
        assert_eq!(shown(&parts_of(syntax.parser(false), [text])), format!("text({text})"));
    }
}

#[test]
fn ids_go_on_where_the_conversation_stands() {
    let syntax = ReplySyntax::spelled(ReplyStyle::named("pythonic").expect("a known style"));
    let parts = parts_of(syntax.parser(true).after_calls(7), ["[f(), g()]"]);
    assert_eq!(shown(&parts), "call(call00007 f {}) call(call00008 g {})");
}

/// A reply that could be kept without bound is passed on in parts.
#[test]
fn memory_is_bounded() {
    for (style, begin, repeated) in [
        ("hermes", "", " "),
        ("hermes", "<tool_call>", " "),
        ("hermes", "<tool_call>{\"arguments\":{\"a\":\"", "x"),
        ("hermes", "<tool_call>{\"name\":\"", "x"),
        ("mistral", "[TOOL_CALLS]", "a"),
        ("pythonic", "[", "f"),
        ("llama3", "{", "\n"),
        ("gpt-oss", "", "a"),
        ("gpt-oss", "<|channel|>", "a"),
    ] {
        let syntax = ReplySyntax::spelled(ReplyStyle::named(style).expect("a known style"));
        let mut parser = syntax.parser(true);
        let text = repeated.repeat(200_000);
        let given: usize = [begin, &text]
            .iter()
            .flat_map(|piece| parser.push(piece))
            .map(|part| match part {
                ReplyPart::Content(text) | ReplyPart::Thinking(text) => text.len(),
                _ => 0,
            })
            .sum();
        assert!(
            given > text.len() - 70_000 || repeated == "\n" && style == "hermes",
            "{style} {begin}: {given}"
        );
    }
}

/// The parts of a reply that is given as tokens.
fn parts_of_tokens(
    syntax: &ReplySyntax,
    tokenizer: &Arc<Tokenizer>,
    ids: &[u32],
    prompt: &str,
) -> Vec<ReplyPart> {
    let mut detokenizer = syntax.detokenizer(tokenizer);
    let mut pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
    pieces.push(detokenizer.finish());
    parts_of(syntax.parser(true).after_prompt(prompt), pieces.iter().map(String::as_str))
}

fn open(folder: &Path) -> TextProcessor {
    TextProcessor::open(folder, &TextLimits::DEFAULT).expect("a tokenizer")
}

/// The parts of `message` as the template of a model writes it, and the model's tokenizer reads it.
fn parts_as_rendered(folder: &Path, message: Value, end: &str) -> String {
    let processor = open(folder);
    let tool =
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}});
    let asked = Conversation { tools: Some(vec![tool]), ..Conversation::new().user("Weather?") };
    let mut answered = Conversation { add_generation_prompt: false, ..asked.clone() };
    answered.messages.push(message);
    let mut renderer = Renderer::in_process(RenderLimits::default());
    let mut render = |conversation| {
        let spans = processor.render(&mut renderer, conversation).expect("it renders");
        spans.iter().map(|span| span.text.as_str()).collect::<String>()
    };
    let (prompt, whole) = (render(&asked), render(&answered));
    let reply =
        whole.strip_prefix(&prompt).and_then(|reply| reply.strip_suffix(end)).expect("prompt, reply, end");
    let source = processor.template.as_ref().expect("a template").source(None).expect("one template");
    let syntax = ReplySyntax::new(ReplyStyle::of_template(source), &processor.tokenizer);
    let ids = processor.tokenizer.encode(reply, TextOrigin::Template, BosEos::Omit).expect("it encodes");
    shown(&parts_of_tokens(&syntax, &processor.tokenizer, &ids, &prompt))
}

#[test]
fn what_a_template_writes_is_read_back() {
    let Some(data) = data::folder() else { return };
    let call = |arguments: Value| json!({"function": {"name": "get_weather", "arguments": arguments}});
    let calls =
        [call(json!({"city": "Orl\u{e9}ans"})), call(json!({"city": "</tool_call>", "days": [1, null]}))];
    let message = json!({
        "role": "assistant", "content": "I look.", "reasoning_content": "Hm.\nLet me see.", "tool_calls": calls,
    });
    assert_eq!(
        parts_as_rendered(&data.join("tokenizers/qwen3"), message, "<|im_end|>\n"),
        "think(Hm.\nLet me see.) text(I look.) call(call00000 get_weather {\"city\": \"Orl\u{e9}ans\"}) \
         call(call00001 get_weather {\"city\": \"</tool_call>\", \"days\": [1, null]})"
    );
    let message =
        json!({"role": "assistant", "tool_calls": [call(json!({"city": "Paris", "deep": {"a": []}}))]});
    assert_eq!(
        parts_as_rendered(&data.join("tokenizers/llama3_2"), message, "<|eot_id|>"),
        "call(call00000 get_weather {\"city\": \"Paris\", \"deep\": {\"a\": []}})"
    );
}

#[test]
fn special_tokens_are_markers_and_their_spellings_are_text() {
    let Some(data) = data::folder() else { return };
    let tokenizer = open(&data.join("tokenizers/gptoss")).tokenizer;
    let syntax = ReplySyntax::new(ReplyStyle::named("gpt-oss").expect("a known style"), &tokenizer);
    for &Transcript { prompt, text, want, .. } in GPT_OSS {
        let ids = tokenizer.encode(text, TextOrigin::Template, BosEos::Omit).expect("it encodes");
        assert_eq!(shown(&parts_of_tokens(&syntax, &tokenizer, &ids, prompt)), want);
    }
    let spelled = "The token <|end|> ends \u{fdd0} a message.";
    let mut ids =
        tokenizer.encode("<|channel|>final<|message|>", TextOrigin::Template, BosEos::Omit).expect("ids");
    ids.extend(tokenizer.encode(spelled, TextOrigin::User, BosEos::Omit).expect("ids"));
    // An incomplete character before a special token stays one character.
    ids.extend(
        tokenizer
            .encode("\u{1f999}", TextOrigin::User, BosEos::Omit)
            .expect("ids")
            .split_last()
            .map(|(_, rest)| rest)
            .expect("several tokens"),
    );
    ids.extend(
        tokenizer
            .encode(
                "<|end|><|start|>assistant<|channel|>analysis<|message|>x",
                TextOrigin::Template,
                BosEos::Omit,
            )
            .expect("ids"),
    );
    let want = format!("text({}\u{fffd}) think(x)", spelled.replace('\u{fdd0}', "\u{fffd}"));
    assert_eq!(shown(&parts_of_tokens(&syntax, &tokenizer, &ids, "<|start|>assistant")), want);
}

#[test]
fn the_schema_of_a_tool_says_which_values_are_strings() {
    let schema =
        json!({"type": "object", "properties": {"zip": {"type": "string"}, "days": {"type": "integer"}}});
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": schema}})];
    let syntax = ReplySyntax::spelled(ReplyStyle::named("minimax").expect("a style"));
    let mut parser = syntax.parser(true).with_tools(&tools);
    let mut message = ReplyMessage::default();
    let text = "<minimax:tool_call><invoke name=\"f\"><parameter name=\"zip\">01234</parameter>\
                <parameter name=\"days\">2</parameter><parameter name=\"other\">\"x\"</parameter></invoke>\
                </minimax:tool_call>";
    parser.push(text).iter().for_each(|part| message.push(part));
    assert_eq!(message.calls[0].arguments, "{\"zip\":\"01234\",\"days\":2,\"other\":\"\\\"x\\\"\"}");
}

#[test]
fn the_end_of_thinking_begins_the_answer() {
    let spelled = |style: &str| ReplySyntax::spelled(ReplyStyle::named(style).unwrap());
    let message = |mut parser: ReplyParser, text: &str| -> ReplyMessage {
        let mut parts = parser.push(text);
        parts.extend(parser.finish());
        parts.iter().collect()
    };
    for (style, prompt, begun) in [
        ("hermes", "<think>\n", "hm"),
        ("gpt-oss", "<|start|>assistant", "<|channel|>analysis<|message|>hm"),
        ("muse-glimmer", "<|start|>assistant", " to=self<|message|>hm"),
    ] {
        let mut parser = spelled(style).parser(true).after_prompt(prompt);
        parser.push(begun);
        let end = parser.thinking_end().unwrap_or_else(|| panic!("{style} thinks"));
        let whole = message(spelled(style).parser(true).after_prompt(prompt), &format!("{begun}{end}Day."));
        assert_eq!((whole.thinking.as_str(), whole.content.as_str()), ("hm", "Day."), "{style}");
        parser.push(end);
        assert_eq!(parser.thinking_end(), None, "{style}");
    }
}

#[test]
fn the_rest_of_a_begun_reply_is_content_or_its_open_thinking() {
    let syntax = ReplySyntax::spelled(ReplyStyle::named("llama3").unwrap());
    let rest = |begun: &str, text: &str| -> ReplyMessage {
        let mut parser = syntax.parser(true).within(begun);
        let mut parts = parser.push(text);
        parts.extend(parser.finish());
        parts.iter().collect()
    };
    let content = rest("The object is", " {\"name\": 1}");
    assert_eq!((content.content.as_str(), content.calls.len()), (" {\"name\": 1}", 0));
    let thought = rest("<think>It", " is.</think>Day.");
    assert_eq!((thought.thinking.as_str(), thought.content.as_str()), (" is.", "Day."));
    assert_eq!(rest("<think>It</think>Day", ".").content, ".");
}
