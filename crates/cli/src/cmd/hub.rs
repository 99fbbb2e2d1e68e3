//! Models in the Hugging Face cache: `girih pull`, `list`, `rm` and `repair`.

mod list;
mod pull;
mod repair;
mod rm;

pub use list::{ListArgs, list};
pub use pull::{PullArgs, pull};
pub use repair::{RepairArgs, repair};
pub use rm::{RmArgs, rm};
