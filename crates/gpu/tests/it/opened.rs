//! The device of the tests.

use std::sync::{Arc, OnceLock};

use girih_gpu::{INFO, adapters};
use girih_graph::description::{AnyBackend, BackendChoice, NoServices, Services};

/// The name of the adapter that tests use: the first GPU, or the first software. `None` where there is none.
pub fn adapter() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        let all = adapters();
        let found = all.iter().find(|adapter| !adapter.is_software).or(all.first());
        found.map(|adapter| adapter.name.clone())
    };
    NAME.get_or_init(find).as_deref()
}

/// Opens the backend with its defaults.
pub fn open(name: &str) -> Box<dyn AnyBackend> {
    open_with(name, &[])
}

/// Opens the backend with these options.
pub fn open_with(name: &str, options: &[(&str, &str)]) -> Box<dyn AnyBackend> {
    let services: Arc<dyn Services> = Arc::new(NoServices);
    let choice = BackendChoice::parse(&[&INFO], &format!("gpu:{name}")).expect("the backend is in the list");
    let choice = options.iter().try_fold(choice, |choice, (option, value)| choice.with(option, value));
    choice.expect("the backend has these options").open(&services).expect("the adapter was found")
}
