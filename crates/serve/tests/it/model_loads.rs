//! Models that are loaded for a request: those that wait for one keep nothing from the others.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use girih::{Model, OpenOptions, RunOptions};
use girih_serve::{ServeOptions, ServedModel, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::model_server::{get, options, post};

/// A Llama model whose weights are zeros that take no space on the disk, large enough for a load that can be
/// observed; removed with this value.
struct LargeModel(TempDir);

impl LargeModel {
    fn new() -> LargeModel {
        let temporary = tempfile::tempdir().expect("a folder");
        let folder = temporary.path();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama32_tied");
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            let bytes = fs::read(fixture.join(name)).expect("a file");
            fs::write(folder.join(name), bytes).expect("a file");
        }
        let config = fs::read(fixture.join("config.json")).expect("a file");
        let mut config: Value = serde_json::from_slice(&config).expect("JSON");
        let (width, inner, layers) = (1024, 4096, 6);
        let vocabulary = config["vocab_size"].as_u64().expect("a number");
        for (key, value) in [
            ("hidden_size", width),
            ("intermediate_size", inner),
            ("num_hidden_layers", layers),
            ("num_attention_heads", 16),
            ("num_key_value_heads", 16),
            ("head_dim", 64),
        ] {
            config[key] = json!(value);
        }
        config["torch_dtype"] = json!("bfloat16");
        fs::write(folder.join("config.json"), config.to_string()).expect("a file");
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), vec![vocabulary, width]),
            ("model.norm.weight".to_owned(), vec![width]),
        ];
        for layer in 0..layers {
            let matrices = [
                ("self_attn.q_proj", vec![width, width]),
                ("self_attn.k_proj", vec![width, width]),
                ("self_attn.v_proj", vec![width, width]),
                ("self_attn.o_proj", vec![width, width]),
                ("mlp.gate_proj", vec![inner, width]),
                ("mlp.up_proj", vec![inner, width]),
                ("mlp.down_proj", vec![width, inner]),
                ("input_layernorm", vec![width]),
                ("post_attention_layernorm", vec![width]),
            ];
            let named = matrices.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape));
            tensors.extend(named);
        }
        let (mut header, mut end) = (serde_json::Map::new(), 0);
        for (name, shape) in tensors {
            let begin = end;
            end += 2 * shape.iter().product::<u64>();
            header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}));
        }
        let header = Value::Object(header).to_string();
        let mut file = File::create(folder.join("model.safetensors")).expect("a file");
        file.write_all(&(header.len() as u64).to_le_bytes()).expect("a file");
        file.write_all(header.as_bytes()).expect("a file");
        file.set_len(8 + header.len() as u64 + end).expect("a file");
        LargeModel(temporary)
    }

    /// As it is served, after the built-in model.
    fn served(&self) -> ServedModel {
        let source = self.0.path().to_str().expect("a path in UTF-8").to_owned();
        let run_options =
            RunOptions { context: Some(64), sequences: 4, output_rows: 16, ..RunOptions::default() };
        ServedModel {
            name: "large".to_owned(),
            source,
            open_options: OpenOptions::default(),
            run_options,
            is_loaded_on_request: false,
            unload_idle: None,
            version: None,
        }
    }
}

/// The status of a request for one token, and its time.
fn ask(address: SocketAddr, model: &str) -> (u16, Duration) {
    let begun = Instant::now();
    let body = json!({"model": model, "prompt": "Once", "max_tokens": 1});
    (post(address, "/v1/completions", &body).status, begun.elapsed())
}

#[test]
fn requests_that_wait_for_a_model_hold_up_no_other() {
    let large = LargeModel::new();
    let mut options = options();
    options.models.push(large.served());
    // It is loaded at the start and unloaded at once.
    let options = ServeOptions { unload_idle: Some(Duration::from_millis(400)), ..options };
    let server = Server::start(options).expect("a server");
    let address = server.address();
    let is_loaded = || server.state().models.loaded().iter().any(|model| model.name == "large");
    while is_loaded() {
        ask(address, "stories260k");
        thread::sleep(Duration::from_millis(20));
    }
    let is_answered = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..66)
            .map(|_| {
                scope.spawn(|| {
                    let (status, time) = ask(address, "large");
                    is_answered.store(true, Ordering::Relaxed);
                    (status, time)
                })
            })
            .collect();
        while server.state().live_generations() < 66 && !is_answered.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        let mut times = Vec::new();
        while !is_answered.load(Ordering::Relaxed) {
            let (status, time) = ask(address, "stories260k");
            assert_eq!(status, 200);
            times.push(time);
        }
        times.pop(); // the replies of the large model may have begun
        let loads = clients.into_iter().map(|client| client.join().expect("a client"));
        let load = loads.map(|(status, time)| (status == 200).then_some(time).expect("a reply")).min();
        let load = load.expect("replies");
        // A request that waits for a thread is answered when the load has ended: one at most.
        assert!(times.len() >= 3, "{times:?} while it was loaded in {load:?}");
    });
    server.stop();
}

#[test]
fn a_busy_model_makes_room_for_another_one() {
    let mut options = options();
    options.models[0].run_options.max_wait = Some(Duration::from_secs(60));
    let other = ServedModel { name: "other".to_owned(), ..options.models[0].clone() };
    options.models.push(other);
    let plan = Model::open("stories260k").and_then(|model| model.plan(options.models[0].run_options.clone()));
    let memory = plan.expect("a plan").memory().total();
    let server = Server::start(ServeOptions { memory, ..options }).expect("a server");
    let address = server.address();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut count = 0;
                    let ban = json!({"1": -100, "2": -100});
                    let body = json!({"prompt": "Once", "max_tokens": 60, "logit_bias": ban});
                    while !is_over.load(Ordering::Relaxed) {
                        assert_eq!(post(address, "/v1/completions", &body).status, 200);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(300));
        let (status, time) = ask(address, "other");
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(status, 200);
        // At most five seconds, the replies that run, and a load.
        assert!(time.as_secs() < 15, "it took {time:?}");
        let counts: Vec<u32> = busy.into_iter().map(|client| client.join().expect("a client")).collect();
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    });
    assert!(get(address, "/ready").status == 200);
    server.stop();
}
