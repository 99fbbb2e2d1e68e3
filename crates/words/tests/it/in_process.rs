//! Chat templates rendered on a thread of this process: none overflows the stack or
//! runs on after its time.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use girih_words::template::{Conversation, RenderLimits, RenderRequest, Renderer, SpecialTokens};
use serde_json::{Map, json};

/// The maximum bytes of source in process.
const SOURCE_BYTES: usize = 64 << 10;

fn render(renderer: &mut Renderer, template: &str) -> Result<String, String> {
    let conversation =
        Conversation { messages: vec![json!({"role": "user", "content": "hi"})], ..Conversation::default() };
    let request = RenderRequest {
        template,
        variables: &Map::new(),
        special_tokens: &SpecialTokens::new(&[]),
        conversation: &conversation,
        has_typed_texts: false,
        unix_seconds: 0,
    };
    let spans = renderer.render(&request).map_err(|error| error.to_string())?;
    Ok(spans.into_iter().map(|span| span.text).collect())
}

fn in_process(time: Duration) -> Renderer {
    Renderer::in_process(RenderLimits { time, ..RenderLimits::default() })
}

fn patient() -> Renderer {
    in_process(Duration::from_secs(60))
}

#[test]
fn a_renderer_may_move_to_another_thread() {
    let mut renderer = patient();
    let moved = std::thread::spawn(move || render(&mut renderer, "{{ messages[0].content }}"));
    assert_eq!(moved.join().expect("no panic"), Ok("hi".to_owned()));
}

#[test]
fn namespaces_hold_data_but_no_namespaces() {
    let mut renderer = patient();
    for (template, want) in [
        (
            "{% set n = namespace(a=1) %}{% for i in range(3) %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}",
            "4",
        ),
        (
            "{% set n = namespace({'b': [1], 'a': 'x'}) %}{{ n }} {{ n.items() | list }} {{ n is mapping }}",
            "{\"a\": \"x\", \"b\": [1]} [[\"a\", \"x\"], [\"b\", [1]]] True",
        ),
        ("{% set o = namespace(n=namespace(a=1)) %}{% set o.n.a = 1, 2 %}{{ o.n.a[1] }}", "2"),
    ] {
        let got = render(&mut renderer, template)
            .map(|text| text.replace('\'', "\"").replace('(', "[").replace(')', "]"));
        assert_eq!(got.as_deref(), Ok(want), "{template}");
    }
    for (template, want) in [
        ("{% set n = namespace() %}{% set n.x = n %}", "may contain only data"),
        ("{% set n = namespace() %}{% set n.x = [{'a': n}][::-1] %}", "may contain only data"),
        (
            "{% set n = namespace() %}{% for a in [1] %}{% set n.x = loop %}{% endfor %}",
            "may contain only data",
        ),
        (
            "{% set n = namespace(x=1) %}{% for i in range(200) %}{% set n.x = [n.x] %}{% endfor %}",
            "nests too deeply",
        ),
        ("{% set n = namespace() %}{% set n.x, y = 1, 2 %}", "can only assign to namespaces"),
        ("{%set(n.x)=1%}", "can only assign to namespaces"),
        ("{% set n = {} %}{% set n.x = 1 %}", "__set__"),
    ] {
        let sentence = render(&mut renderer, template).expect_err(template);
        assert!(sentence.contains(want), "{template}: {sentence}");
    }
}

/// Sources of the maximum length that nest as deeply as their form allows, in the
/// syntax or in values.
fn deep_sources() -> Vec<String> {
    let fill = |start: &str, repeated: &str, end: &str| {
        let times = (SOURCE_BYTES - start.len() - end.len()) / repeated.len();
        start.to_owned() + &repeated.repeat(times) + end
    };
    let mut sources: Vec<String> = [
        ("{{ 1", "+1", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ a", ".a", " }}"),
        ("{{ a", "[0]", " }}"),
        ("{{ 'a'", "|e", " }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ 1", " if 1", " }}"),
        ("{{ 1", " if 1 else 1", " }}"),
        ("{{ 1", " is odd", " }}"),
        ("{{ 1", " and 1", " }}"),
        ("{{ 1", "<1", " }}"),
        ("{{ 1", "**1", " }}"),
        ("{{ a", "()", " }}"),
        ("{% if 1 %}", "{%elif 1%}", "{% endif %}"),
    ]
    .map(|(start, repeated, end)| fill(start, repeated, end))
    .to_vec();
    for nest in ["[x]", "{1:x}", "(x,)", "[x]|batch(1)", "[x]|list", "[x][::-1]", "[x]+[1]", "[x]*1"] {
        let step = format!("{{%set x={nest}%}}");
        for last in ["{{ x }}", "{{ x == y }}", "{{ (x ~ '') | length }}", "{{ [x, y] | sort | length }}", ""]
        {
            let end = format!("{{% set y = x %}}{step}{last}");
            // As many as the guard accepts.
            let room = SOURCE_BYTES - end.len() - 20;
            let signs = nest.bytes().filter(|byte| b"[{(|+*,".contains(byte)).count() + 1;
            let times = (room / step.len()).min(48 * 1024 / 3 / signs - 100);
            sources.push("{%set x=1%}".to_owned() + &step.repeat(times) + &end);
        }
    }
    sources
}

/// An overflow ends the test's process.
#[test]
fn no_source_overflows_the_stack() {
    let mut renderer = in_process(Duration::from_secs(5));
    for source in deep_sources() {
        let name: String = source.chars().take(60).collect();
        let started = Instant::now();
        let got = render(&mut renderer, &source).map(|text| text.len());
        eprintln!("{name}\t{:.1?}\t{got:?}", started.elapsed());
    }
}

#[test]
fn recursion_with_deep_values_is_refused_before_the_stack_ends() {
    let mut renderer = patient();
    for nest in [1, 5, 20, 50] {
        let value = format!("{}x{}", "[".repeat(nest), "]".repeat(nest));
        for last in ["", "{{ x }}", "{{ x == [x] }}"] {
            let macros =
                format!("{{% macro m(x) %}}{last}{{{{ m({value}) }}}}{{% endmacro %}}{{{{ m(1) }}}}");
            let loops =
                format!("{{% for x in [1] recursive %}}{last}{{{{ loop([{value}]) }}}}{{% endfor %}}");
            for source in [macros, loops] {
                let sentence = render(&mut renderer, &source).expect_err("recurses without end");
                assert!(
                    sentence.contains("recursion limit exceeded") || sentence.contains("bytes"),
                    "{source}: {sentence}"
                );
            }
        }
    }
}

#[test]
fn endless_templates_are_stopped_and_their_threads_end() {
    let endless = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{%for a in range(100000)-%}{%-for b in range(100000)+%}{%endfor%}{%endfor%}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(80) }}",
        "{% for x in [1] recursive %}{% if loop.depth < 80 %}{{ loop([1, 1]) }}{% endif %}{% endfor %}",
        "{{ {'a': {}} ~ '{% raw %}' }}{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    ];
    let mut renderer = in_process(Duration::from_millis(300));
    for template in endless.iter().cycle().take(10) {
        let sentence = render(&mut renderer, template).expect_err("endless");
        assert_eq!(sentence, "the chat template ran longer than 0.3 s and was stopped", "{template}");
        // A thread that were still running would be counted as late.
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(render(&mut renderer, "a").as_deref(), Ok("a"));
}

/// Templates that only a worker can render: a thread has no limit of memory, and
/// refuses values in namespaces that nest over 128 levels.
fn needs_worker(name: &str, expected: &str) -> bool {
    let nests = ["nested_list_dropped_50000.jinja", "nested_list_printed_10000.jinja"];
    expected.contains("MiB of memory") || nests.contains(&name)
}

#[test]
fn bad_templates_harm_nothing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bad/templates");
    let table = fs::read_to_string(folder.join("expected.tsv")).expect("the table");
    let mut renderers = [Duration::from_secs(60), Duration::from_millis(500)].map(in_process);
    let mut count = 0;
    for line in table.lines() {
        let (name, want) = line.split_once('\t').expect("a name, a tab, a sentence");
        if needs_worker(name, want) {
            continue;
        }
        let template = fs::read_to_string(folder.join(name)).expect("a template");
        // The worker's time in the table is half a second.
        let renderer = &mut renderers[usize::from(want.contains("ran longer than 0.5 s"))];
        let started = Instant::now();
        let got = render(renderer, &template);
        eprintln!("{name}\t{:.1?}\t{:?}", started.elapsed(), got.as_ref().map(String::len));
        assert_eq!(got.is_ok(), want.starts_with("renders "), "{name}: {got:?}, want {want}");
        count += 1;
        let mut next = patient();
        assert_eq!(render(&mut next, "{{ messages[0].content }}").as_deref(), Ok("hi"), "after {name}");
    }
    assert!(count >= 40, "{count} templates");
}
