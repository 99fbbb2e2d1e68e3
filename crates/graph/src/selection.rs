//! Selections of positions: numbers of a row whose bits are positions.

/// The positions of one number of a selection: each has a bit, so the number is below 2¹⁶ and exact in `f32`.
pub const SELECTION_POSITIONS: usize = 16;

/// Whether a selection, the numbers of one row, has a position.
pub fn is_selected(selection: &[f32], position: usize) -> bool {
    let number = selection.get(position / SELECTION_POSITIONS).copied().unwrap_or(0.0);
    (number as u32 >> (position % SELECTION_POSITIONS)) & 1 == 1
}

/// Adds a position to a selection.
pub fn select(selection: &mut [f32], position: usize) {
    selection[position / SELECTION_POSITIONS] += (1u32 << (position % SELECTION_POSITIONS)) as f32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_has_a_bit_for_each_position() {
        let mut selection = [0.0; 2];
        [0, 15, 16, 31].into_iter().for_each(|position| select(&mut selection, position));
        assert_eq!(selection, [32769.0, 32769.0]);
        let has: Vec<usize> = (0..40).filter(|position| is_selected(&selection, *position)).collect();
        assert_eq!(has, [0, 15, 16, 31]);
    }
}
