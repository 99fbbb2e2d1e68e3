//! The layout of keys and values in DRAM, and the blocks of them that a step attends to.

use girih_graph::{BLOCK_POSITIONS, Key};

/// Bytes of a row of a tensor of `TensorKind::Start`: two positions, and 7 mutual spans.
pub const START_BYTES: u32 = 64;

/// The first block of positions in the chunks of a step whose first row is at
/// `position`: blocks before it are outside the window of every row. A window of 0
/// is none.
pub fn first_block(position: u32, window: u32) -> u32 {
    if window == 0 {
        0
    } else {
        (u64::from(position) + 1).saturating_sub(window.into()) as u32 / BLOCK_POSITIONS as u32
    }
}

/// The largest position of a step's first row, counted from the first key of its
/// [first block](first_block). The rows of a step of one sequence and its padding end within the context; of several
/// sequences, each has other rows behind its own.
pub fn latest_start(key: Key, window: u32) -> u32 {
    let last = key.context.saturating_sub(if key.sequences == 1 { key.rows } else { 1 });
    if window == 0 { last } else { last.min(window.saturating_add(BLOCK_POSITIONS as u32 - 2)) }
}

/// The number of blocks of positions that a step of `rows` rows of a sequence of at
/// most `context` positions may attend to. A window of 0 is none.
pub fn attended_blocks(rows: u32, context: u32, window: u32) -> u32 {
    let all = context.div_ceil(BLOCK_POSITIONS as u32);
    // The first key may be the last of its block.
    let near =
        (u64::from(window) + u64::from(rows) + BLOCK_POSITIONS as u64 - 2).div_ceil(BLOCK_POSITIONS as u64);
    if window == 0 { all } else { all.min(u32::try_from(near).unwrap_or(u32::MAX)) }
}

/// Bytes of the keys and values of one head over a block of positions, which is
/// one row of a tensor of `TensorKind::Chunks`. The blocks lie in order, all
/// heads of a block together, so a shorter context is a prefix of a longer one.
///
/// ```text
/// row = keys [64, size] | values [64, size]
/// ```
pub fn chunk_bytes(size: u32) -> u32 {
    2 * BLOCK_POSITIONS as u32 * size * 2
}

/// Bytes from the first word of a position's keys to the end of its values, over all heads of a
/// block: what a tensor of `TensorKind::Appended` covers.
pub fn appended_bytes(heads: u32, size: u32) -> u64 {
    let between = u64::from(heads.saturating_sub(1)) * u64::from(chunk_bytes(size));
    between + values_offset(size) + u64::from(size) * 2
}

/// Bytes from the keys of a position to its values.
pub fn values_offset(size: u32) -> u64 {
    u64::from(chunk_bytes(size) / 2)
}

/// The byte offset of a position's keys in chunks of `heads` heads. The position is counted from the
/// first key of the first block.
pub fn appended_offset(heads: u32, size: u32, position: u32) -> u64 {
    let (block, row) = (position / BLOCK_POSITIONS as u32, position % BLOCK_POSITIONS as u32);
    let blocks = u64::from(block) * u64::from(heads) * u64::from(chunk_bytes(size));
    blocks + u64::from(row) * u64::from(size) * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_lies_in_the_rows_of_its_block() {
        let (heads, size) = (3, 16);
        let chunk = u64::from(chunk_bytes(size));
        assert_eq!(appended_offset(heads, size, 0), 0);
        assert_eq!(appended_offset(heads, size, 63), 63 * 32);
        assert_eq!(appended_offset(heads, size, 64), 3 * chunk);
        assert_eq!(appended_offset(heads, size, 130), 6 * chunk + 2 * 32);
        let last = appended_offset(heads, size, 63) + appended_bytes(heads, size);
        assert_eq!(last, 3 * chunk, "the values of the last position end with the block");
    }
}
