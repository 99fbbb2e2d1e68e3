//! The choices of pass 1: which operations share a program, and where attention
//! runs.

use serde::Serialize;

/// How a graph is partitioned: which operations share a program, and where
/// attention runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Which operations share a program.
    pub grouping: Grouping,
    /// Where attention runs.
    pub attention: AttentionPlacement,
}

/// Which operations share a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// None: one program for each operation.
    Unstitched,
    /// Those from the norm before attention up to attention, those from there to
    /// the end of the layer, and those of the head: the six programs of the
    /// Llama mapping by AMD's mlir-air.
    Stitched,
    /// As stitched, but the end of a layer shares a program with the operations up
    /// to the next attention.
    Joined,
    /// As joined. Programs of a single row configure the array once: each kind of kernel
    /// keeps its cores.
    Resident,
    /// As resident where a token takes [less time](crate::driver::Compiler::policy_for) so, otherwise as
    /// joined.
    ByCost,
}

impl Grouping {
    /// Every grouping, by name.
    pub const ALL: &'static [(&'static str, Grouping)] = &[
        ("unstitched", Grouping::Unstitched),
        ("stitched", Grouping::Stitched),
        ("joined", Grouping::Joined),
        ("resident", Grouping::Resident),
        ("by-cost", Grouping::ByCost),
    ];

    /// The name in mappings.
    pub fn name(self) -> &'static str {
        Grouping::ALL.iter().find(|(_, grouping)| *grouping == self).map_or("unnamed", |(name, _)| name)
    }
}

/// Where attention runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionPlacement {
    /// On the host.
    Host,
    /// On the array in steps of several rows, on the host for single rows, as
    /// in the Llama mapping by AMD's mlir-air.
    Prefill,
    /// On the array.
    Array,
    /// Where it [costs less](crate::driver::AttentionCost), for steps of several rows and
    /// for single rows.
    ByCost,
    /// On the host, because it costs less there: what `ByCost` becomes for a graph.
    HostCheaper,
    /// On the host, because no program of it fits the array: what `ByCost` becomes for a graph.
    HostOnly,
}

impl AttentionPlacement {
    /// Every placement that a mapping can have, by name.
    pub const ALL: &'static [(&'static str, AttentionPlacement)] = &[
        ("host", AttentionPlacement::Host),
        ("prefill", AttentionPlacement::Prefill),
        ("array", AttentionPlacement::Array),
        ("by-cost", AttentionPlacement::ByCost),
    ];

    /// The name in mappings.
    pub fn name(self) -> &'static str {
        AttentionPlacement::ALL
            .iter()
            .find(|(_, attention)| *attention == self)
            .map_or("unnamed", |(name, _)| name)
    }
}

impl Policy {
    /// The mapping of Llama-3.2-1B by AMD's mlir-air.
    pub const MLIR_AIR: Policy =
        Policy { grouping: Grouping::Stitched, attention: AttentionPlacement::Prefill };

    /// Joined or resident programs, and attention on the array or on the host, whichever costs less: the
    /// default.
    pub const BY_COST: Policy = Policy { grouping: Grouping::ByCost, attention: AttentionPlacement::ByCost };

    /// Every policy, by name.
    pub const ALL: &'static [(&'static str, Policy)] = &[
        ("mlir-air", Policy::MLIR_AIR),
        ("by-cost", Policy::BY_COST),
        ("host-attention", Policy { attention: AttentionPlacement::Host, ..Policy::BY_COST }),
        ("array-attention", Policy { attention: AttentionPlacement::Array, ..Policy::BY_COST }),
        ("unstitched-by-cost", Policy { grouping: Grouping::Unstitched, ..Policy::BY_COST }),
        ("mlir-air-host-attention", Policy { attention: AttentionPlacement::Host, ..Policy::MLIR_AIR }),
        ("mlir-air-array-attention", Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR }),
        ("resident", Policy { grouping: Grouping::Resident, ..Policy::BY_COST }),
        ("unstitched", Policy { grouping: Grouping::Unstitched, ..Policy::MLIR_AIR }),
        (
            "unstitched-host-attention",
            Policy { grouping: Grouping::Unstitched, attention: AttentionPlacement::Host },
        ),
    ];

    /// The name in flags and printed groups.
    pub fn name(self) -> &'static str {
        Policy::ALL.iter().find(|(_, policy)| *policy == self).map_or("unnamed", |(name, _)| name)
    }
}
