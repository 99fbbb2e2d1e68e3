//! Activations and gates as the words that kernels read.

use girih_graph::{Act, GateLimit, GateRule};

/// The number of an activation in `math.wgsl`.
pub(crate) fn act_number(act: Act) -> u32 {
    match act {
        Act::Silu => 0,
        Act::GeluTanh => 1,
        Act::Gelu => 2,
        Act::QuickGelu => 3,
        Act::Sigmoid => 4,
        Act::Softplus => 5,
        Act::Relu => 6,
        Act::Relu2 => 7,
        Act::Identity => 8,
    }
}

/// The activation and the limits of a gate, then its bound and its offset.
pub(crate) fn gate_words(rule: GateRule) -> ([u32; 2], [u32; 2]) {
    let limits = match rule.limit {
        None => 0,
        Some(GateLimit::Gate(_)) => 1,
        Some(GateLimit::Activated(_)) => 2,
    };
    let has_offset = u32::from(rule.offset.is_some()) << 2;
    let bound = rule.limit.map_or(0.0, GateLimit::bound);
    ([act_number(rule.act), limits | has_offset], [bound, rule.offset.unwrap_or(0.0)].map(f32::to_bits))
}
