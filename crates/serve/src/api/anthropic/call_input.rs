//! The arguments of a call, as the description of the routes has them.

use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The arguments of a call of a tool.
// A schema of its own has a name of its own in clients that are generated.
#[derive(ToSchema)]
#[allow(dead_code)] // describes a `Map`
pub struct CallInput(Map<String, Value>);
