//! What the server and the process that fetches tell each other.

use serde::{Deserialize, Serialize};

use crate::helper_message::{HelperReport, Order};

/// What is to be fetched.
#[derive(Debug, Serialize, Deserialize)]
pub struct FetchTask {
    /// Where it is.
    pub url: String,
    /// The maximum number of its bytes.
    pub max_bytes: u64,
    /// The time that it may take.
    pub milliseconds: u64,
}

/// A line to the process.
pub type FetchOrder = Order<FetchTask>;

/// A line from it: the progress is the next piece of the file, in base64.
pub type FetchReport = HelperReport<String>;
