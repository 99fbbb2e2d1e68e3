//! Adapters beside a model: a reply has the bytes that it has alone, and files that are wrong are refused by a sentence.

use std::path::{Path, PathBuf};

use girih::engine::{EventKind, Hooks, TokenRequest};
use girih::{AdapterSource, Engine, ErrorKind, Model, OpenOptions, RunOptions, Sampling, backend};
use girih_tensor::Random;
use serde_json::{Value, json};
use tempfile::TempDir;

const RANK: usize = 6;

/// The modules of a layer of the built-in model, with their outputs and inputs.
const MODULES: [(&str, usize, usize); 4] = [
    ("self_attn.q_proj", 64, 64),
    ("self_attn.v_proj", 32, 64),
    ("mlp.gate_proj", 172, 64),
    ("mlp.down_proj", 64, 172),
];

/// The settings of PEFT with further ones.
fn settings(further: Value) -> Value {
    let mut settings = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 12, "bias": "none"});
    settings.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    settings
}

/// The bytes of a safetensors file in f32.
fn safetensors(tensors: &[(String, [usize; 2], Vec<f32>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// Both matrices of each module of three layers.
fn matrices(seed: u64) -> Vec<(String, [usize; 2], Vec<f32>)> {
    let mut random = Random(seed);
    let mut draw =
        |count: usize| -> Vec<f32> { random.bells(count).iter().map(|value| 0.2 * value).collect() };
    let mut tensors = Vec::new();
    for layer in 0..3 {
        for (module, outputs, inputs) in MODULES {
            let name = format!("base_model.model.model.layers.{layer}.{module}");
            tensors.push((format!("{name}.lora_A.weight"), [RANK, inputs], draw(RANK * inputs)));
            tensors.push((format!("{name}.lora_B.weight"), [outputs, RANK], draw(outputs * RANK)));
        }
    }
    tensors
}

fn write(folder: &Path, settings: &Value, tensors: &[u8]) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("adapter_config.json"), settings.to_string()).unwrap();
    std::fs::write(folder.join("adapter_model.safetensors"), tensors).unwrap();
}

fn open(paths: impl IntoIterator<Item = PathBuf>) -> girih::Result<Model> {
    let source = |(index, path): (usize, PathBuf)| AdapterSource { name: format!("a{index}"), path };
    let adapters = paths.into_iter().enumerate().map(source).collect();
    Model::open_with("stories260k", &OpenOptions { adapters, ..OpenOptions::default() })
}

/// The built-in model with `count` adapters.
fn adapted(folder: &TempDir, count: u64) -> Model {
    let paths = (0..count).map(|index| {
        let path = folder.path().join(index.to_string());
        write(&path, &settings(json!({})), &safetensors(&matrices(index)));
        path
    });
    open(paths.collect::<Vec<_>>()).unwrap()
}

fn engine(model: &Model, threads: usize, sequences: u32, chunk: u32) -> Engine {
    let backend = backend("cpu").unwrap().with_threads(Some(threads));
    let options = RunOptions { backend, sequences, chunk, context: Some(256), ..RunOptions::default() };
    model.plan(options).unwrap().load(|_| {}).unwrap()
}

/// The tokens of greedy replies to requests that run at once, with the bits of their log-probabilities.
fn replies(engine: &mut Engine, requests: &[(Vec<u32>, Option<u32>)]) -> Vec<Vec<(u32, u64)>> {
    let mut ids = Vec::new();
    for (tokens, adapter) in requests {
        let (tokens, adapter, sampling) = (tokens.clone(), *adapter, Sampling::greedy());
        let request = TokenRequest {
            tokens,
            adapter,
            sampling,
            max_new: Some(12),
            logprobs: Some(0),
            ..TokenRequest::default()
        };
        ids.push(engine.submit(request, Hooks::default()).unwrap());
    }
    let mut replies = vec![Vec::new(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step() {
            let index = ids.iter().position(|id| *id == event.request).unwrap();
            match &event.kind {
                EventKind::Token { id, logprobs, .. } => {
                    let value = logprobs.as_ref().unwrap().chosen.value;
                    replies[index].push((*id, value.to_bits()));
                }
                EventKind::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    }
    replies
}

/// Nine requests with the same prompt and one with another: eight adapters, and the model alone.
fn requests() -> Vec<(Vec<u32>, Option<u32>)> {
    let prompt: Vec<u32> = (0..70).map(|i| 3 + i * 37 % 500).collect();
    let each = (0..8).map(|adapter| (prompt.clone(), Some(adapter)));
    each.chain([(prompt.clone(), None), (prompt[..40].to_vec(), Some(3))]).collect()
}

#[test]
fn a_reply_has_the_bytes_that_it_has_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (model, requests) = (adapted(&folder, 8), requests());
    let alone: Vec<_> = requests
        .iter()
        .map(|request| replies(&mut engine(&model, 1, 1, 256), std::slice::from_ref(request)).remove(0))
        .collect();
    for (index, reply) in alone.iter().enumerate() {
        assert!(!alone[..index].contains(reply), "replies {index} and an earlier one are equal");
    }
    for (threads, sequences, chunk) in [(1, 10, 256), (2, 10, 64), (3, 4, 7)] {
        let mut engine = engine(&model, threads, sequences, chunk);
        for cache in ["empty", "full"] {
            assert_eq!(
                replies(&mut engine, &requests),
                alone,
                "{threads} threads, {sequences} sequences, chunks of {chunk}, cache {cache}"
            );
        }
    }
}

/// A model without adapters has these bytes, too.
#[test]
fn a_request_without_an_adapter_runs_the_model_alone() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = requests()[8].clone();
    let model = adapted(&folder, 2);
    let beside = replies(&mut engine(&model, 2, 2, 64), std::slice::from_ref(&prompt));
    let plain = Model::open("stories260k").unwrap();
    assert_eq!(beside, replies(&mut engine(&plain, 2, 2, 64), &[prompt]));
}

#[test]
fn adapters_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = adapted(&folder, 2);
    assert_eq!(model.adapters().collect::<Vec<_>>(), ["a0", "a1"]);
    let session = model.start().unwrap();
    let reply = |name: Option<&str>| {
        let request = girih::Request::new("Once upon a time").max_tokens(12);
        let request = match name {
            Some(name) => request.adapter(name),
            None => request,
        };
        session.generate(request).and_then(girih::Reply::text)
    };
    assert_ne!(reply(Some("a0")).unwrap(), reply(Some("a1")).unwrap());
    assert!(reply(None).unwrap().contains("Lily"));
    let unknown = reply(Some("a2")).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert_eq!(unknown.to_string(), "there is no adapter 'a2'; the model has a0, a1");
    let none = girih::Request::new("Once").adapter("a0");
    let error = Model::open("stories260k").unwrap().start().unwrap().generate(none).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "there is no adapter 'a0'; the model was opened with none");
}

#[test]
fn an_adapter_of_zeros_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeros");
    let mut tensors = matrices(1);
    tensors.iter_mut().filter(|(name, _, _)| name.contains("lora_B")).for_each(|(_, _, b)| b.fill(0.0));
    write(&path, &settings(json!({})), &safetensors(&tensors));
    let model = open([path]).unwrap();
    let (prompt, _) = requests().remove(8);
    let both = [(prompt.clone(), None), (prompt, Some(0))];
    let replies = replies(&mut engine(&model, 2, 2, 64), &both);
    assert_eq!(replies[0], replies[1]);
}

#[test]
fn settings_that_girih_does_not_have_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = safetensors(&matrices(0));
    let cases = [
        (json!({"peft_type": "IA3"}), "'peft_type' is 'IA3'"),
        (json!({"use_dora": true}), "girih has no DoRA"),
        (json!({"modules_to_save": ["lm_head"]}), "'modules_to_save'"),
        (json!({"bias": "all"}), "'bias'"),
        (json!({"init_lora_weights": "pissa"}), "convert it to a plain one"),
        (json!({"fan_in_fan_out": true}), "'fan_in_fan_out'"),
        (json!({"some_new_setting": 3}), "'some_new_setting' to 3"),
        (json!({"alpha_pattern": {"^model.*q_proj": 3}}), "no regular expressions"),
        (json!({"lora_alpha": "much"}), "a finite number is needed"),
    ];
    for (index, (further, part)) in cases.into_iter().enumerate() {
        let path = folder.path().join(index.to_string());
        write(&path, &settings(further), &tensors);
        let error = open([path]).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// Whole weights (`modules_to_save`) are for `merge`: all requests would get them.
#[test]
fn whole_weights_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = matrices(0);
    tensors.push(("base_model.model.model.norm.weight".to_owned(), [1, 64], vec![1.0; 64]));
    let settings = |names: &[&str]| settings(json!({"modules_to_save": names}));
    for (index, (names, part)) in [
        (&["norm"][..], "replaces 'model.norm.weight' ('modules_to_save'), which requests cannot choose"),
        (&["norm", "lm_head"][..], "has no tensor of 'lm_head', which 'modules_to_save' names"),
        (&["orm"][..], "is no matrix of a low-rank adapter"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.path().join(index.to_string());
        write(&path, &settings(names), &safetensors(&tensors));
        let error = open([path]).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn matrices_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    type Change = fn(&mut Vec<(String, [usize; 2], Vec<f32>)>);
    let cases: [(Change, &str); 6] = [
        (|all| drop(all.remove(1)), "by one matrix; two are needed"),
        (|all| drop(all.remove(0)), "by one matrix; two are needed"),
        (|all| all[0].1 = [RANK * 2, 32], "of the ranks 12 and 6"),
        (
            |all| {
                all[0].1 = [RANK, 32];
                all[0].2.truncate(RANK * 32);
            },
            "the model needs 64 rows and 64 columns",
        ),
        (|all| all[0].0 = all[0].0.replace("layers.0", "layers.77"), "does not describe these tensors"),
        (
            |all| all[0].0 = all[0].0.replace("lora_A", "lora_magnitude_vector"),
            "no matrix of a low-rank adapter",
        ),
    ];
    for (index, (change, part)) in cases.into_iter().enumerate() {
        let mut tensors = matrices(0);
        change(&mut tensors);
        if index == 4 {
            tensors[1].0 = tensors[1].0.replace("layers.0", "layers.77");
        }
        let path = folder.path().join(index.to_string());
        write(&path, &settings(json!({})), &safetensors(&tensors));
        let error = open([path]).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
    let twice = open([folder.path().join("0"), folder.path().join("0")]).unwrap_err().to_string();
    assert!(twice.contains("by one matrix"), "{twice}");
    let missing = open([folder.path().join("none")]).unwrap_err().to_string();
    assert!(missing.contains("none"), "{missing}");
}

/// Files with bytes that were changed, cut and repeated at random: each opens or is refused, and runs or fails.
#[test]
fn damaged_files_are_refused_or_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(7);
    let (whole, config) = (safetensors(&matrices(0)), settings(json!({})).to_string().into_bytes());
    let mut refused = 0;
    for index in 0..50 {
        let (mut tensors, mut text) = (whole.clone(), config.clone());
        let damaged = if index % 3 == 0 { &mut text } else { &mut tensors };
        // Most of it is numbers, so the header is damaged on purpose.
        let end = damaged.len().min(4000);
        for _ in 0..1 + index % 4 {
            let at = random.below(end);
            damaged[at] = random.bits() as u8;
        }
        if index % 7 == 0 {
            damaged.truncate(random.below(end));
        }
        let path = folder.path().join(index.to_string());
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("adapter_config.json"), &text).unwrap();
        std::fs::write(path.join("adapter_model.safetensors"), &tensors).unwrap();
        let loaded = open([path]).and_then(|model| {
            model.plan(RunOptions { context: Some(64), ..RunOptions::default() })?.load(|_| {}).map(|_| ())
        });
        match loaded {
            Ok(()) => {}
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(refused > 25, "{refused} of 50 were refused");
}
