//! An engine that ends by a fault: clients, `/ready` and the metrics are told, and it is started again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use girih::{Constraint, Model, Prompt, Request, Result};
use girih_serve::{RequestHook, ServeOptions, Server};
use serde_json::json;

use crate::model_server::{get, options, post, refusal, story};

/// Ends a reply after its first token; its own end is a fault of the engine's thread if it is armed.
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

#[test]
fn an_engine_that_ends_is_started_again_and_the_server_says_so() {
    let is_armed = Arc::new(AtomicBool::new(true));
    let armed = Arc::clone(&is_armed);
    let deadly = move |_: &Model, _: &Prompt, request: Request| match armed.swap(false, Ordering::Relaxed) {
        true => request.constraint(Box::new(Deadly(true))),
        false => request,
    };
    let options = ServeOptions { request_hook: Some(RequestHook::new(deadly)), ..options() };
    let server = Server::start(options).expect("a server");
    let address = server.address();
    let ask = || post(address, "/v1/chat/completions", &story(json!({})));
    let metrics = || get(address, "/metrics").body;
    let failed = ask();
    assert_eq!(refusal(&failed), (503, "engine_failed".to_owned(), String::new()));
    assert_eq!(failed.header("retry-after"), Some("1"));
    let unready = get(address, "/ready");
    assert_eq!(refusal(&unready), (503, "engine_failed".to_owned(), String::new()));
    assert_eq!(refusal(&ask()).1, "engine_failed", "the pause lasts a second");
    let text = metrics();
    assert!(text.contains("girih_models_down 1\n") && text.contains("girih_models_loaded 0\n"), "{text}");
    assert!(text.contains("girih_engine_faults_total{model_name=\"stories260k\"} 1\n"), "{text}");
    // No request comes, as the server is not ready.
    let begun = Instant::now();
    while get(address, "/ready").status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the engine is not started again");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ask().status, 200);
    let text = metrics();
    assert!(text.contains("girih_models_down 0\n") && text.contains("girih_models_loaded 1\n"), "{text}");
    assert!(text.contains("girih_engine_faults_total{model_name=\"stories260k\"} 1\n"), "{text}");
    server.stop();
}
