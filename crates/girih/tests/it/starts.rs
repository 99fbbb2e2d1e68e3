//! Starts: what is planned, what is refused, and what a program is told meanwhile.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use girih::{DType, ErrorKind, Model, OpenOptions, Progress, Request, Result, RunOptions};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

#[test]
fn progress_counts_the_bytes_of_all_weights() -> Result<()> {
    let plan = Model::open("stories260k")?.plan(RunOptions::default())?;
    let last = Arc::new(Mutex::new((0, 0)));
    let seen = Arc::clone(&last);
    let session = plan.start(move |progress| {
        if let Progress::Weights { done, total } = progress {
            let mut seen = seen.lock().unwrap();
            *seen = (seen.0.max(done), total);
        }
    })?;
    let (done, total) = *last.lock().unwrap();
    assert!(done >= total && total > 500_000, "{done} of {total}");
    assert!(session.wait_until_ready()?.whole > Duration::ZERO);
    Ok(())
}

#[test]
fn a_model_that_is_overwritten_while_it_loads_is_refused() -> Result<()> {
    let scratch = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("llama32_tied").join(file), scratch.path().join(file)).unwrap();
    }
    let path = scratch.path().join("model.safetensors");
    let plan = Model::open(scratch.path().to_str().unwrap())?.plan(RunOptions::default())?;
    // Each report of progress writes to the end of the file.
    let loaded = plan.load_runner(move |_| {
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[1], file.metadata().unwrap().len() - 1).unwrap();
    });
    let error = loaded.map(|_| ()).unwrap_err().to_string();
    assert!(error.ends_with("model.safetensors: was changed while it was read; load it again"), "{error}");
    Ok(())
}

#[test]
fn a_model_that_cannot_be_loaded_answers_every_request_with_the_reason() -> Result<()> {
    let scratch = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("llama32_tied").join(file), scratch.path().join(file)).unwrap();
    }
    let model = Model::open(scratch.path().to_str().unwrap())?;
    let plan = model.plan(RunOptions::default())?;
    // The file shrinks after its header was read.
    let file = fs::File::options().write(true).open(scratch.path().join("model.safetensors")).unwrap();
    file.set_len(4096).unwrap();
    let session = plan.start_in_background(|_| {})?;
    let reply = session.generate(Request::new(vec![1, 2, 3]).without_text())?;
    let error = session.wait_until_ready().unwrap_err();
    assert_eq!(reply.tokens().unwrap_err(), error);
    let late = session.generate(Request::new(vec![1, 2, 3]).without_text())?;
    assert_eq!(late.tokens().unwrap_err(), error);
    Ok(())
}

#[test]
fn dropping_a_session_that_loads_stops_loading() -> Result<()> {
    for _ in 0..5 {
        drop(Model::open("stories260k")?.plan(RunOptions::default())?.start_in_background(|_| {})?);
    }
    Ok(())
}

#[test]
fn a_callback_may_drop_the_session_that_calls_it() -> Result<()> {
    for _ in 0..5 {
        let slot: Arc<Mutex<Option<girih::Session>>> = Arc::default();
        let (dropped, done) = mpsc::channel();
        let in_callback = Arc::clone(&slot);
        let plan = Model::open("stories260k")?.plan(RunOptions::default())?;
        let mut held = slot.lock().unwrap();
        *held = Some(plan.start_in_background(move |_| {
            // The session is taken once it lies in the slot.
            if in_callback.lock().unwrap().take().is_some() {
                dropped.send(()).unwrap();
            }
        })?);
        drop(held);
        done.recv_timeout(Duration::from_secs(60)).expect("the callback does not wait for itself");
    }
    Ok(())
}

#[test]
fn options_that_a_model_does_not_support_are_refused() -> Result<()> {
    let model = Model::open("stories260k")?;
    let kind = |options| model.plan(options).map(drop).unwrap_err().kind();
    assert_eq!(kind(RunOptions { context: Some(513), ..RunOptions::default() }), ErrorKind::Refused);
    assert_eq!(kind(RunOptions { context: Some(0), ..RunOptions::default() }), ErrorKind::Refused);
    assert_eq!(kind(RunOptions { chunk: 0, ..RunOptions::default() }), ErrorKind::Refused);
    assert_eq!(kind(RunOptions { sequences: 0, ..RunOptions::default() }), ErrorKind::Refused);
    assert_eq!(kind(RunOptions { unread_events: 0, ..RunOptions::default() }), ErrorKind::Refused);
    Ok(())
}

#[test]
fn every_backend_of_this_program_tells_the_same_story() -> Result<()> {
    let model = Model::open("stories260k")?;
    let tokens = model.tokenize("Once upon a time")?;
    for info in girih::backends().iter().filter(|info| !info.is_simulated) {
        if let Err(error) = girih::backend(info.name)?.device() {
            eprintln!("skipped: {}: {error}", info.name);
            continue;
        }
        for kv in [DType::F32, DType::F16] {
            let backend = girih::backend(info.name)?;
            let session = model
                .plan(RunOptions { backend, kv: Some(kv), context: Some(64), ..RunOptions::default() })?
                .start(|_| {})?;
            let text = session.generate(Request::new(tokens.clone()).max_tokens(10))?.text()?;
            assert_eq!(text, ", there was a little girl named Lily", "{} {kv}", info.name);
        }
    }
    Ok(())
}

#[test]
fn packed_weights_are_kept_in_the_cache_folder_if_one_is_given() -> Result<()> {
    let scratch = tempfile::tempdir().unwrap();
    let options = OpenOptions { cache: Some(scratch.path().to_owned()), ..OpenOptions::default() };
    let folder = fixture("llama32_tied");
    let model = Model::open_with(folder.to_str().unwrap(), &options)?;
    drop(model.start()?);
    // The model is small, so nothing is kept, and planning and loading create nothing else.
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    Ok(())
}

#[test]
fn templates_are_rendered_in_this_process() -> Result<()> {
    use girih::{Conversation, TextOrigin};

    let scratch = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/stories260k");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(model.join(file), scratch.path().join(file)).unwrap();
    }
    let template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
    let config = serde_json::json!({"chat_template": template}).to_string();
    fs::write(scratch.path().join("tokenizer_config.json"), config).unwrap();
    let model = Model::open(scratch.path().to_str().unwrap())?;
    let chat = Conversation::new().system("Be brief.").user("Who is </s> Lily?");
    let spans = model.render(&chat)?;
    let text: String = spans.iter().map(|span| span.text.as_str()).collect();
    assert_eq!(text, "<s>system: Be brief.\n<s>user: Who is </s> Lily?\nassistant:");
    assert!(spans.iter().any(|span| span.origin == TextOrigin::User && span.text == "</s>"), "{spans:?}");
    let reply = model.start()?.generate(Request::new(&chat).max_tokens(5))?;
    assert_eq!(reply.tokens()?.len(), 5);
    Ok(())
}
