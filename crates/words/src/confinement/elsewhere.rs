//! Systems other than Linux, which have neither layer.

use super::allowed::Confinement;
use crate::template::layers::without;
use crate::template::{SandboxLayer, SandboxStates};

/// Confines nothing, and says so of each layer.
pub fn confine(_allowed: &Confinement) -> SandboxStates {
    SandboxLayer::ALL.map(|layer| (layer, without().err())).into()
}

/// Returns `false`: this system has no layer that limits connections.
pub fn can_limit_connections() -> bool {
    false
}
