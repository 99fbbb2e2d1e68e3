//! Several models under one memory budget, with the built-in model under several names.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use girih::{Constraint, ErrorKind, Model, ModelPool, OpenOptions, Request, Result, RunOptions, Session};
use tempfile::TempDir;

/// A pool with models of these names and room for `room` of them.
fn pool(names: &[&str], room: u64) -> ModelPool {
    let plan = Model::open("stories260k").unwrap().plan(RunOptions::default()).unwrap();
    let pool = ModelPool::new(plan.memory().total() * room);
    for name in names {
        pool.add(*name, "stories260k", OpenOptions::default(), RunOptions::default()).unwrap();
    }
    pool
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn loaded(pool: &ModelPool) -> Vec<String> {
    pool.loaded().into_iter().map(|model| model.name).collect()
}

#[test]
fn the_least_recently_used_model_makes_room() -> Result<()> {
    let pool = pool(&["a", "b", "c"], 2);
    assert!(pool.loaded().is_empty(), "models are loaded on demand");
    pool.session("a", at(1))?;
    pool.session("b", at(2))?;
    pool.session("a", at(3))?;
    pool.session("c", at(4))?;
    assert_eq!(loaded(&pool), ["a", "c"]);
    let used: u64 = pool.loaded().iter().map(|model| model.bytes).sum();
    assert_eq!(used, pool.budget());
    Ok(())
}

#[test]
fn a_model_in_use_is_never_unloaded() -> Result<()> {
    let pool = pool(&["a", "b"], 1);
    let session = pool.session("a", at(1))?;
    let error = pool.session("b", at(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    let sentence = error.to_string();
    assert!(
        sentence.starts_with("b: the model needs ") && sentence.contains("in use are a: try again later"),
        "{sentence}"
    );
    assert!(pool.unload_idle(at(100), at(0)).is_empty());
    // A reply keeps its model, too.
    let reply = session.generate(Request::new("Once").max_tokens(4))?;
    drop(session);
    assert!(pool.loaded()[0].is_in_use && pool.session("b", at(101)).is_err());
    reply.text()?;
    // The model was in use at 100, so it has been idle since then.
    assert!(pool.unload_idle(at(104), at(5)).is_empty());
    assert_eq!(pool.unload_idle(at(105), at(5)), ["a"]);
    pool.session("b", at(106))?;
    assert_eq!(loaded(&pool), ["b"]);
    Ok(())
}

#[test]
fn requests_for_one_model_share_its_load() -> Result<()> {
    let pool = pool(&["a", "b"], 2);
    let ask = |name: &'static str| {
        let pool = &pool;
        move || pool.session(name, at(1))?.generate(Request::new("Once").max_tokens(8))?.text()
    };
    let texts: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> =
            ["a", "b", "a", "a", "b", "a"].map(|name| scope.spawn(ask(name))).into_iter().collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<_>>()
    })?;
    assert!(texts.iter().all(|text| *text == texts[0]));
    // Two loads of one model would not have fit.
    assert_eq!(loaded(&pool), ["a", "b"]);
    Ok(())
}

#[test]
fn what_cannot_be_loaded_is_refused_by_name() -> Result<()> {
    let pool = pool(&["a"], 1);
    let error = pool.session("x", at(1)).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::NotFound, "the pool has no model \"x\"; it has a")
    );
    let again = pool.add("a", "stories260k", OpenOptions::default(), RunOptions::default()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Refused);
    pool.add("nowhere", "./no-such-folder", OpenOptions::default(), RunOptions::default())?;
    let error = pool.session("nowhere", at(1)).unwrap_err();
    assert!(error.to_string().starts_with("nowhere: "), "{error}");
    let options = RunOptions { sequences: 8, ..RunOptions::default() };
    pool.add("large", "stories260k", OpenOptions::default(), options)?;
    let error = pool.session("large", at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("but the budget of all models is"), "{error}");
    // None of these unloaded anything, or took any memory.
    pool.session("a", at(2))?;
    assert!(pool.session("large", at(3)).is_err());
    assert_eq!(loaded(&pool), ["a"]);
    Ok(())
}

/// Allows every token; its end is a fault of the engine's thread, once.
struct Deadly(bool);

impl Constraint for Deadly {
    fn mask(&mut self, _: &mut [bool]) -> Result<()> {
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn is_complete(&self) -> bool {
        true
    }
}

impl Drop for Deadly {
    fn drop(&mut self) {
        assert!(!std::mem::take(&mut self.0) || thread::panicking(), "on purpose");
    }
}

/// Ends the engine of a session by a panic.
fn end_engine(session: &Session) {
    let reply = session.generate(Request::new("Once").constraint(Box::new(Deadly(true)))).unwrap();
    assert_eq!(reply.text().unwrap_err().kind(), ErrorKind::DeviceFailed);
    assert!(session.has_ended(), "the engine has ended before a reader is told");
}

fn faults(pool: &ModelPool) -> (u64, bool) {
    let faults = &pool.engine_faults()[0];
    (faults.count, faults.is_down)
}

#[test]
fn a_model_whose_engine_ended_is_loaded_again_after_a_pause() -> Result<()> {
    let pool = pool(&["a"], 1);
    let session = pool.session("a", at(1))?;
    assert_eq!(faults(&pool), (0, false));
    end_engine(&session);
    assert_eq!((faults(&pool), pool.loaded().len()), ((1, true), 0));
    let error = pool.session("a", at(10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceFailed);
    assert!(error.to_string().contains("is started again in 1.0 s"), "{error}");
    let again = pool.session("a", at(11))?;
    assert!(!again.generate(Request::new("Once").max_tokens(8))?.text()?.is_empty());
    assert_eq!(faults(&pool), (1, false));
    // The next fault has a longer pause, after which the pool starts the engine without a request.
    end_engine(&again);
    for (now, is_down) in [(20, true), (21, true), (22, false)] {
        pool.restart_engines(at(now));
        while !pool.loaded().is_empty() && faults(&pool).1 {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(faults(&pool), (2, is_down), "at {now} s");
    }
    Ok(())
}

#[test]
fn a_model_in_use_makes_room_after_a_while() -> Result<()> {
    let pool = pool(&["a", "b"], 1);
    let reply = pool.session("a", at(1))?.generate(Request::new("Once").max_tokens(4))?;
    for second in 10..15 {
        assert_eq!(pool.session("b", at(second)).unwrap_err().kind(), ErrorKind::QueueFull);
        pool.session("a", at(second))?;
    }
    assert!(pool.session("b", at(15)).is_err(), "a reply still runs");
    let error = pool.session("a", at(15)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    assert!(error.to_string().contains("makes room for b, which has waited for 5 s"), "{error}");
    reply.text()?;
    let _kept = pool.session("b", at(16))?;
    // It has five seconds itself.
    for second in 16..21 {
        assert!(pool.session("a", at(second)).is_err());
        pool.session("b", at(second))?;
    }
    assert!(pool.session("b", at(22)).is_err());
    // Whom nobody asks for any more keeps no other one out.
    pool.session("b", at(30))?;
    Ok(())
}

/// A folder with the built-in model.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/stories260k");
    for file in fs::read_dir(assets).unwrap() {
        let file = file.unwrap().path();
        fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    folder
}

#[test]
fn a_model_is_loaded_again_from_the_same_files_only_if_none_has_changed() {
    let temporary = folder();
    let folder = temporary.path();
    let source = folder.to_str().unwrap();
    let options = OpenOptions::default();
    let model = Model::open(source).unwrap();
    assert!(model.is_current());
    let pool = ModelPool::new(1 << 30);
    pool.add("lily", source, options.clone(), RunOptions { context: Some(64), ..RunOptions::default() })
        .unwrap();
    let vocabulary = |now: u64| {
        let session = pool.session("lily", Duration::from_secs(now)).unwrap();
        session.model().text_processor().unwrap().tokenizer.token(300).unwrap().to_owned()
    };
    let before = vocabulary(1);
    assert_eq!(pool.unload_idle(Duration::from_secs(2), Duration::ZERO), ["lily"]);
    assert_eq!(vocabulary(3), before);
    assert_eq!(pool.unload_idle(Duration::from_secs(4), Duration::ZERO), ["lily"]);
    // Another file of the same name and size.
    let path = folder.join("tokenizer.json");
    let text = fs::read_to_string(&path).unwrap();
    let changed = text.replace(&format!("\"{before}\""), &format!("\"{}\"", "q".repeat(before.len())));
    fs::write(folder.join("new"), changed).unwrap();
    fs::rename(folder.join("new"), &path).unwrap();
    assert!(!model.is_current());
    let fault = pool.session("lily", Duration::from_secs(5)).map(|session| {
        session.model().text_processor().map(|text| text.tokenizer.token(300).unwrap_or_default().to_owned())
    });
    assert_ne!(fault.ok().and_then(std::result::Result::ok), Some(before), "the new tokenizer counts");
    // Its weights are other ones, or gone.
    let model = Model::open(source).unwrap();
    let weights = folder.join("model.safetensors");
    fs::copy(&weights, folder.join("copy")).unwrap();
    fs::rename(folder.join("copy"), &weights).unwrap();
    assert!(!model.is_current());
    assert!(!model.is_current());
}
