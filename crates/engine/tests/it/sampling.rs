//! The samplers together, and the draw.

use girih_engine::Sampling;
use girih_engine::sample::{
    History, SAMPLERS, argmax, argmax_allowed, draw, logprobs, pick, pick_allowed, uniform,
};
use girih_tensor::Random;

const OUT: f32 = f32::NEG_INFINITY;
const ALL: f32 = f32::INFINITY;

/// Counts how often each token is picked in 10,000 replies of one token.
fn counts(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
    let mut counts = vec![0; logits.len()];
    for seed in 0..10_000 {
        let sampling = Sampling { seed, ..sampling.clone() };
        counts[pick(logits, &sampling, History::default()).unwrap() as usize] += 1;
    }
    counts
}

/// Returns Pearson's chi-square of `counts` for the given probabilities.
fn chi_square(counts: &[u32], probabilities: &[f64]) -> f64 {
    let total = f64::from(counts.iter().sum::<u32>());
    let term = |(count, p): (&u32, &f64)| (f64::from(*count) - total * p).powi(2) / (total * p);
    counts.iter().zip(probabilities).map(term).sum()
}

/// The 99.9th percentile of chi-square with three degrees of freedom.
const CHI_SQUARE_3: f64 = 16.27;

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = [0.5_f32, 0.25, 0.125, 0.125].map(f32::ln).into();
    let counts = counts(&logits, &Sampling::default());
    assert!(chi_square(&counts, &[0.5, 0.25, 0.125, 0.125]) < CHI_SQUARE_3, "{counts:?}");
}

#[test]
fn draws_within_one_reply_follow_the_distribution() {
    let logits: Vec<f32> = [0.4_f32, 0.3, 0.2, 0.1].map(f32::ln).into();
    let mut counts = [0; 4];
    for n in 0..10_000 {
        counts[draw(&logits, uniform(42, n)).unwrap() as usize] += 1;
    }
    assert!(chi_square(&counts, &[0.4, 0.3, 0.2, 0.1]) < CHI_SQUARE_3, "{counts:?}");
}

#[test]
fn half_the_temperature_squares_the_probabilities() {
    // The squares are 16 : 9 : 4 : 1.
    let logits: Vec<f32> = [0.4_f32, 0.3, 0.2, 0.1].map(f32::ln).into();
    let counts = counts(&logits, &Sampling { temperature: 0.5, ..Sampling::default() });
    assert!(chi_square(&counts, &[16.0, 9.0, 4.0, 1.0].map(|x| x / 30.0)) < CHI_SQUARE_3, "{counts:?}");
}

#[test]
fn filters_apply_after_the_temperature() {
    // A top_p of 0.65 keeps both of 0.6 and 0.4; at half the temperature the first has
    // 0.69 and is the only one kept.
    let logits = [0.6_f32.ln(), 0.4_f32.ln()];
    let sampling = Sampling { top_p: 0.65, ..Sampling::default() };
    assert!(counts(&logits, &sampling)[1] > 0);
    assert_eq!(counts(&logits, &Sampling { temperature: 0.5, ..sampling })[1], 0);
    let order: Vec<&str> = SAMPLERS.iter().map(|(name, _)| *name).collect();
    assert_eq!(order[..2], ["bias", "repetition_penalty"]);
    assert_eq!(order[4..7], ["dry", "top_n_sigma", "temperature"]);
    assert_eq!(order[7..], ["top_k", "top_p", "min_p", "typical_p", "xtc"]);
}

#[test]
fn the_draw_chooses_the_token_at_cumulative_probability_u() {
    let logits = [0.25_f32.ln(), OUT, 0.5_f32.ln(), 0.25_f32.ln(), OUT];
    for (u, id) in [(0.0, 0), (0.24, 0), (0.26, 2), (0.74, 2), (0.76, 3), (1.0 - f64::EPSILON / 2.0, 3)] {
        assert_eq!(draw(&logits, u), Some(id), "u = {u}");
    }
    assert_eq!(draw(&[1.0, ALL, 5.0, ALL], 0.49), Some(1));
    assert_eq!(draw(&[1.0, ALL, 5.0, ALL], 0.51), Some(3));
    assert_eq!(draw(&[OUT, OUT], 0.5), None);
}

#[test]
fn random_numbers_are_a_function_of_seed_and_number() {
    assert_eq!(uniform(1, 2), uniform(1, 2));
    let mut seen: Vec<u64> = Vec::new();
    for seed in [0, 1, 2, u64::MAX, 0x9e37_79b9_7f4a_7c15] {
        seen.extend((0..1000).map(|n| uniform(seed, n).to_bits()));
    }
    assert!(seen.iter().all(|bits| (0.0..1.0).contains(&f64::from_bits(*bits))));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 5000, "no two streams share a number");
}

#[test]
fn extreme_numbers_neither_hang_nor_fail() {
    let finite = [-1.0e4, -3.5, 0.0, 1.0, 1.0, 12.0, f32::MAX, f32::MIN];
    let infinite = [OUT, 2.0, ALL, -7.0, ALL, OUT, 0.0, 1.0];
    let extremes = [f32::MIN_POSITIVE, 1e-45, 1e-30, 1e30, f32::MAX];
    let history = History { prompt: &[0, 1, 2, 3], reply: &[4, 5, 6, 7, 7] };
    for logits in [finite, infinite] {
        for x in extremes {
            for y in extremes {
                let sampling = Sampling {
                    temperature: x,
                    repetition_penalty: y,
                    presence_penalty: -y,
                    frequency_penalty: y,
                    top_p: x.min(1.0),
                    min_p: y.min(1.0),
                    bias: vec![(1, x), (2, -y), (3, ALL), (0, OUT)],
                    ..Sampling::default()
                };
                sampling.check().unwrap();
                let id = pick(&logits, &sampling, history).unwrap();
                assert_ne!(id, 0, "it is ruled out");
            }
        }
    }
    let tiny = Sampling { temperature: 1e-30, ..Sampling::default() };
    assert_eq!(counts(&[1.0, 1.1, 1.0], &tiny), [0, 10_000, 0]);
    let huge = Sampling { temperature: 1e30, ..Sampling::default() };
    assert!(chi_square(&counts(&[0.0, 50.0, -50.0, 3.0], &huge), &[0.25; 4]) < CHI_SQUARE_3);
}

#[test]
fn a_bias_bans_or_forces_a_token_with_other_samplers_set() {
    let greedy = |bias| Sampling { bias, top_k: 1, ..Sampling::greedy() };
    let pick = |sampling: &Sampling| pick(&[1.0, 5.0, 2.0], sampling, History::default());
    assert_eq!(pick(&greedy(vec![])), Ok(1));
    assert_eq!(pick(&greedy(vec![(1, OUT)])), Ok(2));
    assert_eq!(pick(&greedy(vec![(0, ALL)])), Ok(0));
    let error = pick(&greedy(vec![(0, OUT), (1, OUT), (2, OUT)])).unwrap_err().to_string();
    assert!(error.starts_with("every token is ruled out"), "{error}");
}

/// Compares the shortcut for a temperature of 0 with the samplers and the draw, with
/// ties, infinities and lengths around those of its runs.
#[test]
fn the_most_likely_token_is_the_one_that_the_samplers_leave() {
    let slow = |logits: &[f32]| {
        let mut logits = logits.to_vec();
        for (_, sampler) in SAMPLERS {
            sampler(&mut logits, &Sampling::greedy(), History::default());
        }
        draw(&logits, uniform(0, 0))
    };
    for seed in 0..300 {
        let mut random = Random(seed);
        let levels = 1 + random.below(400);
        let mut logits: Vec<f32> =
            (0..random.below(700)).map(|_| random.below(levels) as f32 - 200.0).collect();
        for infinity in [f32::INFINITY, f32::NEG_INFINITY] {
            if random.once_in(4) && !logits.is_empty() {
                let index = random.below(logits.len());
                logits[index] = infinity;
            }
        }
        if random.once_in(20) {
            logits.fill(f32::NEG_INFINITY);
        }
        assert_eq!(argmax(&logits), slow(&logits), "seed {seed}");
        let picked = pick(&logits, &Sampling::greedy(), History::default());
        assert_eq!(picked.ok(), slow(&logits), "seed {seed}");
        let share = 1 + random.below(300);
        let allowed: Vec<bool> = logits.iter().map(|_| random.once_in(share)).collect();
        let masked = logits.iter().zip(&allowed).map(|(logit, allowed)| if *allowed { *logit } else { OUT });
        let expected = slow(&masked.collect::<Vec<f32>>());
        assert_eq!(argmax_allowed(&logits, &allowed), expected, "seed {seed}");
        let picked = pick_allowed(&logits, &allowed, &Sampling::greedy(), History::default());
        assert_eq!(picked.ok(), expected, "seed {seed}");
    }
}

#[test]
fn nan_is_an_error() {
    let history = History { prompt: &[0, 1], reply: &[1] };
    let error = pick(&[1.0, f32::NAN], &Sampling::greedy(), history).unwrap_err().to_string();
    assert!(error.contains("NaN for token 1 at position 2"), "{error}");
}

#[test]
fn log_probabilities_add_up_to_one() {
    let logits = [1.0, 3.0, OUT, 3.0, -2.0];
    let all = logprobs(&logits, 0, 20);
    assert_eq!(all.top.iter().map(|entry| entry.id).collect::<Vec<_>>(), [1, 3, 0, 4]);
    assert!((all.top.iter().map(|entry| entry.value.exp()).sum::<f64>() - 1.0).abs() < 1e-12);
    assert_eq!(all.chosen, all.top[2]);
    let none = logprobs(&logits, 2, 0);
    assert_eq!((none.chosen.value, none.top.len()), (f64::NEG_INFINITY, 0));
}

#[test]
fn penalties_count_the_last_tokens_of_their_range() {
    let history = History { prompt: &[0, 1], reply: &[2, 3] };
    let chosen = |penalty_range| {
        let sampling = Sampling { repetition_penalty: 2.0, penalty_range, ..Sampling::greedy() };
        pick(&[8.0, 7.0, 6.0, 5.9, 5.0], &sampling, history).unwrap()
    };
    // Of the tokens 0 to 3 the last ones are halved; token 4 has never occurred.
    assert_eq!((0..=5).map(chosen).collect::<Vec<_>>(), [4, 0, 0, 0, 4, 4]);
    let chosen = |penalty_range| {
        let sampling = Sampling { presence_penalty: 4.0, penalty_range, ..Sampling::greedy() };
        pick(&[1.0, 3.0, 6.0, 5.9, 1.0], &sampling, history).unwrap()
    };
    // The tokens of the reply are 2 and 3: with a range of 1, only 3 is penalized; prompts never are.
    assert_eq!((0..=3).map(chosen).collect::<Vec<_>>(), [1, 2, 1, 1]);
    assert_eq!(history.last(1).reply, [3]);
    assert_eq!((history.last(3).prompt, history.last(3).reply), (&[1][..], &[2, 3][..]));
    assert_eq!((history.last(0).prompt, history.last(9).prompt), (&[0, 1][..], &[0, 1][..]));
}
