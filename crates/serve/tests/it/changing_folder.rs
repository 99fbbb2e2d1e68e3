//! Models that are added to a folder, replaced in it and removed from it while the server runs.

use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use girih_serve::{FolderEntry, ModelFolder, ServeOptions, ServedModel, Server};
use serde_json::{Value, json};

use crate::client::Exchange;
use crate::model_server::{get, options, post, refusal};

/// A folder whose models are all the built-in one.
#[derive(Debug, Default)]
struct ListedFolder {
    /// The names and versions.
    models: Mutex<Vec<(&'static str, &'static str)>>,
    opened: Mutex<Vec<String>>,
}

impl ModelFolder for ListedFolder {
    fn entries(&self) -> girih::Result<Vec<FolderEntry>> {
        let entry = |(name, version): &(&str, &str)| FolderEntry {
            name: (*name).to_owned(),
            version: (*version).to_owned(),
        };
        Ok(self.models.lock().unwrap().iter().map(entry).collect())
    }

    fn open(&self, entry: &FolderEntry) -> Option<ServedModel> {
        self.opened.lock().unwrap().push(format!("{} {}", entry.name, entry.version));
        let (name, version) = (entry.name.clone(), Some(entry.version.clone()));
        let model = options().models.remove(0);
        (name != "broken").then_some(ServedModel { name, version, is_loaded_on_request: true, ..model })
    }

    fn refusal(&self, name: &str) -> Option<String> {
        (name == "broken").then(|| "it is broken".to_owned())
    }
}

#[test]
fn a_model_is_added_replaced_and_removed_while_the_server_runs() {
    let folder = Arc::new(ListedFolder::default());
    let set = |models: &[(&'static str, &'static str)]| *folder.models.lock().unwrap() = models.to_vec();
    let opened = || std::mem::take(&mut *folder.opened.lock().unwrap());
    let changing: Arc<dyn ModelFolder> = Arc::<ListedFolder>::clone(&folder);
    let server =
        Server::start(ServeOptions { models: Vec::new(), folder: Some(changing), ..options() }).unwrap();
    let address = server.address();
    let ids = || -> Vec<String> {
        let list = get(address, "/v1/models").json();
        list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let body = |model: &str| json!({"model": model, "prompt": "Once", "max_tokens": 4});
    let status = |model: &str| post(address, "/v1/completions", &body(model)).status;
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            sleep(Duration::from_millis(20));
        }
    };
    let nothing = post(address, "/v1/completions", &json!({"prompt": "Once"}));
    assert_eq!(refusal(&nothing), (404, "model_not_found".to_owned(), "model".to_owned()));
    assert!(ids().is_empty());
    // It is found by the request that names it, and by the list.
    set(&[("lily", "1"), ("broken", "1")]);
    assert_eq!(status("lily"), 200);
    assert_eq!(ids(), ["lily"]);
    assert_eq!(opened()[..2], ["lily 1".to_owned(), "broken 1".to_owned()]);
    assert_eq!(status("broken"), 404);
    set(&[("lily", "1"), ("tom", "1")]);
    assert_eq!(get(address, "/api/tags").json()["models"][1]["name"], "tom");
    assert_eq!(status("tom"), 200);
    // One that was replaced is opened again, under the same name.
    opened();
    set(&[("lily", "2"), ("tom", "1")]);
    wait("lily is idle", &|| {
        ids();
        opened() == ["lily 2"]
    });
    assert_eq!(status("lily"), 200);
    assert_eq!(ids(), ["tom", "lily"]);
    // One that is removed ends the replies that it has begun, and leaves the memory.
    let story =
        json!({"model": "tom", "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let reply = Exchange::begin(address, "POST /v1/completions", &[], &story.to_string());
    wait("the reply begins", &|| server.state().live_generations() == 1);
    set(&[("lily", "2")]);
    assert_eq!(ids(), ["lily"]);
    assert_eq!(status("tom"), 404);
    let text = reply.finish().body;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let loaded = || server.state().models.loaded().into_iter().map(|model| model.name).collect::<Vec<_>>();
    wait("tom leaves", &|| loaded() == ["lily"]);
    // It may come back.
    set(&[("lily", "2"), ("tom", "3")]);
    assert_eq!(status("tom"), 200);
    let _: Value = get(address, "/v1/models/tom").json();
    server.stop();
}
