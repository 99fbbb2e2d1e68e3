//! The largest values of a row: their order, and what is said of NaN.

use girih_graph::Picks;
use girih_tensor::Random;

#[test]
fn picks_are_in_descending_order_and_equal_values_by_ascending_id() {
    let row = [1.0, 3.0, -2.0, 3.0, f32::NEG_INFINITY, 3.0, f32::INFINITY];
    let picks = Picks::of(&row, 4, &[4, 0, 4]);
    assert_eq!(picks.top, [(6, f32::INFINITY), (1, 3.0), (3, 3.0), (5, 3.0)]);
    assert_eq!(picks.asked, [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY]);
    assert!(!picks.has_nan);
    // The last of the picks ties with a value that is not picked.
    assert_eq!(Picks::of(&row, 3, &[]).top, [(6, f32::INFINITY), (1, 3.0), (3, 3.0)]);
}

#[test]
fn zeros_of_both_signs_are_equal_and_keep_their_signs() {
    let picks = Picks::of(&[-1.0, -0.0, 0.0, -0.0], 3, &[1, 2]);
    assert_eq!(picks.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3]);
    let signs = |values: &[f32]| values.iter().map(|value| value.is_sign_negative()).collect::<Vec<_>>();
    assert_eq!(signs(&picks.top.iter().map(|(_, value)| *value).collect::<Vec<_>>()), [true, false, true]);
    assert_eq!(signs(&picks.asked), [true, false]);
}

#[test]
fn a_row_with_nan_is_flagged_even_if_nothing_is_picked() {
    for nan in [f32::NAN, -f32::NAN] {
        let row = [1.0, 2.0, nan];
        assert_eq!(Picks::of(&row, 0, &[1]), Picks { top: vec![], asked: vec![2.0], has_nan: true });
        let picks = Picks::of(&row, 2, &[2]);
        assert!(picks.has_nan && picks.asked[0].is_nan());
        assert_eq!(picks.top.len(), 2);
    }
}

#[test]
fn more_picks_than_values_are_all_values() {
    assert_eq!(Picks::of(&[1.0, 2.0], 9, &[]).top, [(1, 2.0), (0, 1.0)]);
    assert_eq!(Picks::of(&[], 9, &[]), Picks::default());
}

#[test]
fn picks_equal_the_head_of_the_sorted_row() {
    let mut random = Random(0x91c5);
    for round in 0..300 {
        // Few distinct values, so that many are equal.
        let row: Vec<f32> = (0..=random.below(60)).map(|_| random.below(9) as f32 - 4.0).collect();
        let mut sorted: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        // The sort is stable: ids of equal values stay in order.
        sorted.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let top = random.below(row.len() + 3);
        sorted.truncate(top);
        assert_eq!(Picks::of(&row, top, &[]).top, sorted, "round {round}: the {top} largest of {row:?}");
    }
}
