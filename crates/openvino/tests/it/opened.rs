//! The library of the tests.

use std::sync::{Arc, OnceLock};

use girih_graph::description::{AnyBackend, BackendChoice, NoServices, Services};
use girih_openvino::INFO;

/// The processor, with the library of the variable `GIRIH_OPENVINO_LIB` or of this machine. `None`, after a word, where there
/// is none.
pub fn processor() -> Option<BackendChoice> {
    static CHOICE: OnceLock<Option<BackendChoice>> = OnceLock::new();
    let find = || {
        let choice = BackendChoice::parse(&[&INFO], "openvino:CPU").expect("the backend is in the list");
        let choice = match std::env::var("GIRIH_OPENVINO_LIB") {
            Ok(path) => choice.with("openvino-lib", &path).expect("it is a path"),
            Err(_) => choice,
        };
        match choice.device() {
            Ok(_) => Some(choice),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    };
    CHOICE.get_or_init(find).clone()
}

/// Opens the backend.
pub fn open(choice: &BackendChoice) -> Box<dyn AnyBackend> {
    let services: Arc<dyn Services> = Arc::new(NoServices);
    choice.open(&services).expect("the device was found")
}
