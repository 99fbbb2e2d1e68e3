//! What the library reads of the environment: the model of the seed's calls, which name none, and the folders of caches
//! where the caller asks for them.

use std::env;

use girih::OpenOptions;

use crate::status::{Fault, Result, Status};

/// The variable that names the model of `ie_engine_create`.
const MODEL: &str = "GIRIH_MODEL";

/// The model of `ie_engine_create`.
///
/// # Errors
/// When the variable is not set.
pub fn model() -> Result<String> {
    let name = env::var(MODEL).ok().filter(|name| !name.is_empty());
    let sentence = format!("{MODEL} is not set: set it to the model that ie_engine_create opens");
    name.ok_or_else(|| Fault::new(Status::NotFound, sentence))
}

/// A variable, such as one that names the folder of caches.
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// The folders of caches, as the program `girih` finds them.
pub fn open_options() -> OpenOptions {
    OpenOptions::from_vars(variable)
}
