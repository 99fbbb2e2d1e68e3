//! What the processes that change models tell each other.

use girih_serve::{ChangeProgress, ModelChange};

use crate::helper_message::{HelperReport, Order};

/// A line to the process that changes models.
pub type ChangeOrder = Order<ModelChange>;

/// A line from it.
pub type ChangeReport = HelperReport<ChangeProgress>;
