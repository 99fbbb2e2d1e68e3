//! How many blocks sequences need in the worst case.

use girih_graph::{BLOCK_POSITIONS, Key, Span};

/// Returns the number of blocks that a group needs for `key.sequences` concurrent
/// sequences of `key.context` positions, in steps of `key.rows` rows in total.
pub fn blocks(span: Span, key: &Key) -> u32 {
    let lengths = std::iter::repeat_n(key.context, key.sequences as usize);
    u32::try_from(worst_case(span, lengths, key.rows)).unwrap_or(u32::MAX)
}

/// Returns the number of blocks that suffice in a group for concurrent sequences that grow to
/// these lengths, in steps of `rows` rows in total.
///
/// With a window of `n`, a sequence with `r` rows in a step touches `n − 1 + r`
/// consecutive positions. At any offset, these lie in at most `⌈(n + r − 2) / 64⌉ + 1`
/// blocks, which is at most `⌈(n − 1) / 64⌉ + 1 + (r + 62) / 64`, and all sequences
/// together have at most `rows` rows. A span of positions that attend to each other
/// (an image) changes nothing, because it lies within the rows of its step.
///
/// Sequences that share blocks need fewer.
pub fn worst_case(span: Span, lengths: impl Iterator<Item = u32>, rows: u32) -> u64 {
    let window = match span {
        Span::Full | Span::All => u64::MAX,
        Span::Window(length) => u64::from((length - 1).div_ceil(BLOCK_POSITIONS as u32)) + 1,
    };
    let (mut whole, mut windows, mut sequences) = (0, 0, 0);
    for length in lengths {
        let blocks = u64::from(length.div_ceil(BLOCK_POSITIONS as u32));
        whole += blocks;
        windows += blocks.min(window);
        sequences += 1;
    }
    // What the rows of one step need beyond the windows.
    let edge = BLOCK_POSITIONS as u64 - 2;
    whole.min(windows + (u64::from(rows) + sequences * edge) / BLOCK_POSITIONS as u64)
}
