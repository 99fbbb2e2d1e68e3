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

/// The processor, or a device that is there in its place, with further options.
pub fn with(device: &str, options: &[(&str, &str)]) -> Option<BackendChoice> {
    let choice =
        BackendChoice::parse(&[&INFO], &format!("openvino:{device}")).expect("the backend is in the list");
    let library = processor()?.settings().get("openvino-lib").map(str::to_owned);
    let library = library.iter().map(|path| ("openvino-lib", path.as_str()));
    let with = |choice: BackendChoice, (name, value)| choice.with(name, value).expect("it is an option");
    Some(library.chain(options.iter().copied()).fold(choice, with))
}

/// Models of fixed extents on the processor.
pub fn fixed() -> Option<BackendChoice> {
    with("CPU", &[("openvino-shapes", "fixed"), ("openvino-lengths", "4"), ("openvino-contexts", "64")])
}

/// Models of fixed extents through NPUW, OpenVINO's wrapper of NPUs, on the processor.
pub fn wrapped() -> Option<BackendChoice> {
    with("NPU", &[("openvino-npuw", "CPU"), ("openvino-contexts", "64")])
}

/// Opens the backend.
pub fn open(choice: &BackendChoice) -> Box<dyn AnyBackend> {
    let services: Arc<dyn Services> = Arc::new(NoServices);
    choice.open(&services).expect("the device was found")
}
