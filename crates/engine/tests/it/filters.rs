//! Each sampler alone, compared with numbers computed by hand.

use girih_engine::sample::{History, bias, frequency, greedy, min_p, presence, repetition};
use girih_engine::sample::{temperature, top_k, top_p};
use girih_tensor::Random;

const OUT: f32 = f32::NEG_INFINITY;
const ALL: f32 = f32::INFINITY;

/// Returns the logits after a sampler.
fn after(logits: &[f32], sampler: impl Fn(&mut [f32])) -> Vec<f32> {
    let mut logits = logits.to_vec();
    sampler(&mut logits);
    logits
}

/// Returns the ids that a sampler does not rule out.
fn left(logits: &[f32], sampler: impl Fn(&mut [f32])) -> Vec<usize> {
    let logits = after(logits, sampler);
    (0..logits.len()).filter(|id| logits[*id] > OUT).collect()
}

/// Returns logits with these probabilities.
fn of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[test]
fn top_k_keeps_k_of_the_lowest_ids() {
    let logits = [1.0, 3.0, 2.0, 3.0, 2.0, 2.0, OUT];
    for (k, want) in [
        (1, vec![1]),
        (2, vec![1, 3]),
        (3, vec![1, 2, 3]),
        (4, vec![1, 2, 3, 4]),
        (6, vec![0, 1, 2, 3, 4, 5]),
        (7, vec![0, 1, 2, 3, 4, 5]),
        (0, vec![0, 1, 2, 3, 4, 5]),
        (u32::MAX, vec![0, 1, 2, 3, 4, 5]),
    ] {
        assert_eq!(left(&logits, |l| top_k(l, k)), want, "k = {k}");
    }
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_p() {
    let logits = of(&[0.1, 0.4, 0.05, 0.25, 0.2]);
    for (p, want) in [
        (1e-9, vec![1]),
        (0.39, vec![1]),
        (0.41, vec![1, 3]),
        (0.64, vec![1, 3]),
        (0.66, vec![1, 3, 4]),
        (0.86, vec![0, 1, 3, 4]),
        (0.96, vec![0, 1, 2, 3, 4]),
        (1.0, vec![0, 1, 2, 3, 4]),
    ] {
        assert_eq!(left(&logits, |l| top_p(l, p)), want, "p = {p}");
    }
    assert_eq!(left(&[0.0; 4], |l| top_p(l, 0.5)), [0, 1], "equals rank by id");
}

#[test]
fn top_p_of_many_logits_agrees_with_its_definition() {
    let logits: Vec<f32> = Random(1).numbers(3000).iter().map(|x| 4.0 * x).collect();
    let exp = |id: usize| f64::from(logits[id]).exp();
    let total: f64 = (0..logits.len()).map(exp).sum();
    let mut ranked: Vec<usize> = (0..logits.len()).collect();
    ranked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    for p in [0.1_f32, 0.5, 0.9, 0.99, 0.9999] {
        let mut sum = 0.0;
        let reaches = |id: &usize| {
            sum += exp(*id) / total;
            sum >= f64::from(p)
        };
        let count = ranked.iter().position(reaches).unwrap() + 1;
        let mut want = ranked[..count].to_vec();
        want.sort_unstable();
        assert_eq!(left(&logits, |l| top_p(l, p)), want, "p = {p}");
    }
}

#[test]
fn min_p_is_relative_to_the_likeliest() {
    let logits = of(&[0.5, 0.24, 0.16, 0.1]);
    for (p, want) in [(0.0, vec![0, 1, 2, 3]), (0.25, vec![0, 1, 2]), (0.4, vec![0, 1]), (1.0, vec![0])] {
        assert_eq!(left(&logits, |l| min_p(l, p)), want, "p = {p}");
    }
}

#[test]
fn repetition_divides_or_multiplies_once_per_token() {
    let history = History { prompt: &[0, 1, 1], reply: &[1, 3] };
    let logits = [3.0, -2.0, 5.0, OUT, 1.0];
    assert_eq!(after(&logits, |l| repetition(l, history, 2.0)), [1.5, -4.0, 5.0, OUT, 1.0]);
    assert_eq!(after(&logits, |l| repetition(l, history, 0.5)), [6.0, -1.0, 5.0, OUT, 1.0]);
    assert_eq!(after(&logits, |l| repetition(l, history, 1.0)), logits);
}

#[test]
fn frequency_counts_and_presence_does_not() {
    let (logits, reply) = ([1.0, 2.0, 3.0, ALL], [2, 1, 2, 2, 3]);
    assert_eq!(after(&logits, |l| frequency(l, &reply, 0.5)), [1.0, 1.5, 1.5, ALL]);
    assert_eq!(after(&logits, |l| presence(l, &reply, 0.5)), [1.0, 1.5, 2.5, ALL]);
    assert_eq!(after(&logits, |l| presence(l, &reply, -0.5)), [1.0, 2.5, 3.5, ALL]);
    assert_eq!(after(&logits, |l| frequency(l, &reply, f32::MAX))[3], ALL, "no overflow makes NaN");
}

#[test]
fn bias_adds_bans_and_forces() {
    let logits = [1.0, 2.0, 3.0, OUT, ALL];
    let biases = [(0, 0.5), (0, 0.25), (1, OUT), (2, ALL), (3, ALL), (4, OUT)];
    assert_eq!(after(&logits, |l| bias(l, &biases)), [1.75, OUT, ALL, ALL, OUT]);
}

#[test]
fn temperature_scales_the_distances_from_the_highest() {
    assert_eq!(after(&[1.0, 3.0, OUT], |l| temperature(l, 2.0)), [-1.0, 0.0, OUT]);
    assert_eq!(after(&[1.0, 3.0, 3.0, OUT], |l| temperature(l, 1e-30)), [-2e30, 0.0, 0.0, OUT]);
    assert_eq!(after(&[1.0, ALL, ALL, OUT], |l| temperature(l, 1e30)), [OUT, 0.0, 0.0, OUT]);
    assert_eq!(after(&[f32::MIN, f32::MAX], |l| temperature(l, f32::MIN_POSITIVE)), [OUT, 0.0]);
    assert_eq!(after(&[OUT, OUT], |l| temperature(l, 0.5)), [OUT, OUT]);
}

#[test]
fn greedy_takes_the_first_of_equals() {
    assert_eq!(left(&[1.0, 3.0, 2.0, 3.0], greedy), [1]);
    assert_eq!(left(&[ALL, ALL], greedy), [0]);
    assert_eq!(left(&[-0.0, 0.0], greedy), [0]);
    assert_eq!(left(&[OUT, OUT], greedy), Vec::<usize>::new());
}
