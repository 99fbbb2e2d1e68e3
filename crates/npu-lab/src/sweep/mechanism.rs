//! The reasons why a launch is faster with one tiling than with another, and the published rows that
//! confirm that the simulator models them.

use girih_npu::form::groups::{AttendSizes, Kernel};
use girih_npu::form::tiling::{AttendTiling, GemmTiling, GemvTiling, TileSpread, Tiling};
use serde::Serialize;

/// A reason why a launch is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// Operands are read from DRAM less often.
    FewerBytes,
    /// Longer contiguous runs.
    LongerRuns,
    /// More cores share the work.
    MoreCores,
    /// Fewer cores take less time to configure.
    SmallerDesign,
    /// Calls have longer inner loops.
    DeeperCalls,
    /// Transfers overlap with calls.
    Overlap,
    /// A memory tile keeps rows of a matmul while all columns of the result are computed.
    KeptRows,
    /// A core computes several tiles of a matmul together, which share transfers of one operand.
    SpreadTiles,
    /// Cores of several rows read weights of a matrix-vector product, through both channels of a shim.
    BothChannels,
    /// A core buffers the weights of several calls of a matrix-vector product.
    BufferedWeights,
    /// A core buffers several chunks of keys and values.
    BufferedKeys,
    /// Attention leaves out chunks of keys that no row sees.
    SkippedKeys,
    /// The array computes attention of a single row.
    SingleRowAttention,
}

impl Mechanism {
    /// All mechanisms, in the order of their letters.
    pub(super) const ALL: [Mechanism; 13] = [
        Mechanism::FewerBytes,
        Mechanism::LongerRuns,
        Mechanism::MoreCores,
        Mechanism::SmallerDesign,
        Mechanism::DeeperCalls,
        Mechanism::Overlap,
        Mechanism::KeptRows,
        Mechanism::SpreadTiles,
        Mechanism::BothChannels,
        Mechanism::BufferedWeights,
        Mechanism::BufferedKeys,
        Mechanism::SkippedKeys,
        Mechanism::SingleRowAttention,
    ];

    /// The letter of its footnote.
    pub(super) fn letter(self) -> char {
        let at = Mechanism::ALL.iter().position(|known| *known == self).unwrap_or(0);
        char::from(b'a' + at as u8)
    }

    /// The mechanism in words.
    pub fn words(self) -> &'static str {
        match self {
            Mechanism::FewerBytes => "fewer bytes from DRAM",
            Mechanism::LongerRuns => "longer runs in DRAM",
            Mechanism::MoreCores => "more cores",
            Mechanism::SmallerDesign => "less to configure",
            Mechanism::DeeperCalls => "longer inner loops",
            Mechanism::Overlap => "transfers overlap with calls",
            Mechanism::KeptRows => "memory tiles keep rows of a GEMM for all columns of the result",
            Mechanism::SpreadTiles => "cores compute several tiles of a GEMM with one read of an operand",
            Mechanism::BothChannels => "GEMV on several rows of cores, through both channels of a shim",
            Mechanism::BufferedWeights => "cores buffer the weights of several GEMV calls",
            Mechanism::BufferedKeys => "cores buffer several chunks of keys and values",
            Mechanism::SkippedKeys => "attention leaves out keys that no row sees",
            Mechanism::SingleRowAttention => "attention of a single row on the array",
        }
    }

    /// The published rows that exercise it; none if no validated row does.
    pub fn published_rows(self) -> Option<&'static str> {
        Some(match self {
            Mechanism::FewerBytes => {
                "GEMM rows of the same shape with 64 and 128 columns in a tile, GEMV rows"
            }
            Mechanism::LongerRuns => "drained GEMM rows, and the rows k_mt = k_ct of arXiv 2512.13282",
            Mechanism::MoreCores => {
                "add on 1, 2, 4 and 8 columns, RMSNorm, RoPE and GELU on several herds; all of a column receive the \
                 same words, as in every GEMM and FlashAttention row"
            }
            Mechanism::SmallerDesign => {
                "FlashAttention and fused-cast GEMM against small designs, decode's programs"
            }
            Mechanism::DeeperCalls => {
                "tiles of tables 1 and 3 of arXiv 2512.13282, GEMV with 2 and 8 rows per call"
            }
            Mechanism::Overlap => "add, SiLU and RMSNorm rows with double buffers against GEMV rows without",
            _ => return None,
        })
    }

    /// The mechanisms without a published row that a tiling of a kernel uses.
    pub fn unpublished(kernel: &Kernel, tiling: Option<&Tiling>) -> Vec<Mechanism> {
        let single_row = matches!(kernel, Kernel::Attend(AttendSizes { rows: 1, .. }));
        let uses = match tiling {
            Some(Tiling::Gemm(GemmTiling { keep, spread, .. })) => {
                [*keep, *spread != TileSpread::One, false, false, false, false]
            }
            Some(Tiling::Gemv(GemvTiling { herd, depth, .. })) => {
                [false, false, herd.rows > 1, *depth > 1, false, false]
            }
            Some(Tiling::Attend(AttendTiling { depth, skip, .. })) => {
                [false, false, false, false, *depth > 1, *skip]
            }
            _ => [false; 6],
        };
        let unpublished = [
            Mechanism::KeptRows,
            Mechanism::SpreadTiles,
            Mechanism::BothChannels,
            Mechanism::BufferedWeights,
            Mechanism::BufferedKeys,
            Mechanism::SkippedKeys,
        ];
        let used = unpublished.into_iter().zip(uses).filter(|(_, used)| *used).map(|(one, _)| one);
        used.chain(single_row.then_some(Mechanism::SingleRowAttention)).collect()
    }
}

#[cfg(test)]
mod tests {
    use girih_npu::form::tiled::Herd;

    use super::*;

    #[test]
    fn tilings_beyond_the_published_ones_are_named() {
        let kernel = Kernel::RmsNorm { rows: 1, n: 64, width: 64, epsilon: 1e-6 };
        let gemv = |columns, rows, depth| {
            let herd = Herd { columns, rows };
            Tiling::Gemv(GemvTiling { herd, rows: 8, step: 4, depth, staged: false, parts: 1 })
        };
        assert!(Mechanism::unpublished(&kernel, Some(&gemv(8, 1, 1))).is_empty());
        let both = [Mechanism::BothChannels, Mechanism::BufferedWeights];
        assert_eq!(Mechanism::unpublished(&kernel, Some(&gemv(6, 2, 2))), both);
        let gemm = |keep, spread| Tiling::Gemm(GemmTiling { m: 64, n: 64, k: 64, slices: 8, keep, spread });
        assert!(Mechanism::unpublished(&kernel, Some(&gemm(false, TileSpread::One))).is_empty());
        assert_eq!(
            Mechanism::unpublished(&kernel, Some(&gemm(true, TileSpread::One))),
            [Mechanism::KeptRows]
        );
        let spread = gemm(false, TileSpread::Columns(2));
        assert_eq!(Mechanism::unpublished(&kernel, Some(&spread)), [Mechanism::SpreadTiles]);
        for mechanism in Mechanism::ALL {
            let listed = mechanism.published_rows().is_some();
            assert_eq!(listed, mechanism.letter() <= 'f', "{}", mechanism.words());
        }
    }
}
