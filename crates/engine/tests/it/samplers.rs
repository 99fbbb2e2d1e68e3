//! The samplers that shape a distribution, against plain definitions and by chi-square on draws.

use girih_engine::sample::{History, SamplerState, pick, pick_next};
use girih_engine::{DraftQuery, Drafter, Dry, Hooks, Sampling, TokenRequest};

use crate::oracle::{self, batched, finish, prompt, request};

/// The number of draws of each test.
const DRAWS: u32 = 5000;

const LOGITS: [f32; 8] = [2.0, 1.5, 1.25, 0.0, -0.5, -1.0, -3.0, -6.0];

fn softmax(logits: &[f64]) -> Vec<f64> {
    let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / total).collect()
}

fn plain() -> Vec<f64> {
    LOGITS.map(f64::from).into()
}

/// The distribution of the tokens that are kept.
fn kept(logits: &[f64], keep: impl Fn(usize) -> bool) -> Vec<f64> {
    let left: Vec<f64> = logits
        .iter()
        .enumerate()
        .map(|(at, logit)| if keep(at) { *logit } else { f64::NEG_INFINITY })
        .collect();
    softmax(&left)
}

fn entropy(probabilities: &[f64]) -> f64 {
    probabilities.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum()
}

/// Checks that draws follow a distribution: Pearson's chi-square is below its 99.9th percentile
/// (Wilson and Hilferty 1931), and no token without probability is drawn.
fn check_draws(draw: impl Fn(u64) -> u32, expected: &[f64]) {
    let mut counts = vec![0u32; expected.len()];
    (0..u64::from(DRAWS)).for_each(|seed| counts[draw(seed) as usize] += 1);
    let likely = || counts.iter().zip(expected).filter(|(_, p)| **p > 0.0);
    let all: u32 = likely().map(|(count, _)| count).sum();
    assert_eq!(all, DRAWS, "{counts:?} for {expected:?}");
    let total = f64::from(DRAWS);
    let chi: f64 = likely().map(|(count, p)| (f64::from(*count) - total * p).powi(2) / (total * p)).sum();
    let degrees = (likely().count() - 1) as f64;
    let spread = 2.0 / (9.0 * degrees);
    let limit = if degrees == 0.0 { 1e-9 } else { degrees * (1.0 - spread + 3.09 * spread.sqrt()).powi(3) };
    assert!(chi <= limit, "{chi} exceeds {limit}: {counts:?} for {expected:?}");
}

fn check(sampling: &Sampling, history: History<'_>, expected: &[f64]) {
    sampling.check().unwrap();
    let draw = |seed| pick(&LOGITS, &Sampling { seed, ..sampling.clone() }, history).unwrap();
    check_draws(draw, expected);
}

#[test]
fn typical_keeps_the_tokens_nearest_to_the_entropy() {
    for p in [0.2, 0.5, 0.9] {
        let all = softmax(&plain());
        let entropy = entropy(&all);
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by(|a, b| (-all[*a].ln() - entropy).abs().total_cmp(&(-all[*b].ln() - entropy).abs()));
        let mut sum = 0.0;
        let count = order
            .iter()
            .take_while(|at| {
                let more = sum < f64::from(p);
                sum += all[**at];
                more
            })
            .count();
        let sampling = Sampling { typical_p: p, ..Sampling::default() };
        check(&sampling, History::default(), &kept(&plain(), |at| order[..count].contains(&at)));
    }
    // The most likely token is not typical of a flat tail.
    let sampling = Sampling { typical_p: 0.2, ..Sampling::default() };
    check(&sampling, History::default(), &kept(&plain(), |at| at == 1));
}

#[test]
fn top_n_sigma_keeps_the_tokens_near_the_highest_logit() {
    let mean = plain().iter().sum::<f64>() / 8.0;
    let sigma = (plain().iter().map(|logit| (logit - mean).powi(2)).sum::<f64>() / 8.0).sqrt();
    for n in [0.5, 1.0, 2.0] {
        for temperature in [1.0, 0.5, 2.0] {
            let sampling = Sampling { top_n_sigma: n, temperature, ..Sampling::default() };
            let scaled: Vec<f64> = plain().iter().map(|logit| logit / f64::from(temperature)).collect();
            let keep = |at: usize| plain()[at] >= 2.0 - f64::from(n) * sigma;
            check(&sampling, History::default(), &kept(&scaled, keep));
        }
    }
}

#[test]
fn xtc_excludes_all_top_choices_but_the_last() {
    for (probability, threshold) in [(1.0, 0.1), (0.5, 0.1), (0.3, 0.05), (1.0, 0.6)] {
        let all = softmax(&plain());
        let top: Vec<usize> = (0..8).filter(|at| all[*at] >= f64::from(threshold)).collect();
        let without = kept(&plain(), |at| !top.contains(&at) || Some(&at) == top.last());
        let share = f64::from(probability);
        let expected: Vec<f64> =
            all.iter().zip(&without).map(|(all, without)| share * without + (1.0 - share) * all).collect();
        let sampling =
            Sampling { xtc_probability: probability, xtc_threshold: threshold, ..Sampling::default() };
        check(&sampling, History::default(), &expected);
    }
}

#[test]
fn dynamic_temperature_follows_the_entropy() {
    for (temperature, range, exponent) in [(1.0, 0.5, 1.0), (0.8, 0.8, 2.0), (0.5, 1.0, 0.5)] {
        let share = (entropy(&softmax(&plain())) / 8f64.ln()).powf(f64::from(exponent));
        let low = f64::from(f32::max(temperature - range, 0.0));
        let chosen = low + (f64::from(temperature + range) - low) * share;
        let scaled: Vec<f64> = plain().iter().map(|logit| logit / chosen).collect();
        let sampling = Sampling {
            temperature,
            dynatemp_range: range,
            dynatemp_exponent: exponent,
            ..Sampling::default()
        };
        check(&sampling, History::default(), &softmax(&scaled));
    }
    // Their sum is above the largest `f32`, and the exponent makes a share of 0.
    let hot =
        Sampling { temperature: 3e38, dynatemp_range: 3e38, dynatemp_exponent: 1e38, ..Sampling::default() };
    assert!(pick(&LOGITS, &hot, History::default()).is_ok());
    let greedy = Sampling { dynatemp_range: 1.0, ..Sampling::greedy() };
    assert_eq!(pick(&LOGITS, &greedy, History::default()), Ok(0));
}

/// The definition of DRY, for each token and each earlier place of it.
fn plain_dry(tokens: &[u32], dry: &Dry) -> Vec<f64> {
    let start = if dry.range == 0 { 0 } else { tokens.len().saturating_sub(dry.range as usize) };
    let tokens = &tokens[start..];
    let mut logits = plain();
    for id in 0..8u32 {
        let mut longest = 0;
        for place in (0..tokens.len()).filter(|place| tokens[*place] == id) {
            let copies = |length: &usize| {
                let (copy, last) = (&tokens[place - length..place], &tokens[tokens.len() - length..]);
                copy == last && !last.iter().any(|id| dry.breakers.contains(id))
            };
            longest = (0..=place).filter(copies).max().unwrap_or(0).max(longest);
        }
        if longest >= dry.allowed_length as usize && !dry.breakers.contains(&id) {
            let exponent = longest as i32 - dry.allowed_length as i32;
            logits[id as usize] -= f64::from(dry.multiplier) * f64::from(dry.base).powi(exponent);
        }
    }
    logits
}

#[test]
fn dry_penalizes_what_continues_a_repetition() {
    let cases: [(&[u32], &[u32]); 5] = [
        (&[1, 2, 3, 4, 1, 2], &[3]),
        (&[0, 1, 2, 0, 1], &[2, 0, 1]),
        (&[5, 1, 2, 7, 1, 2, 6, 1], &[2]),
        (&[3], &[3, 3, 3, 3]),
        (&[], &[]),
    ];
    for (prompt, reply) in cases {
        for breakers in [vec![], vec![2], vec![7, 0]] {
            for (allowed_length, range) in [(1, 0), (2, 0), (3, 0), (2, 5)] {
                let breakers = breakers.iter().copied().collect();
                let dry = Dry { multiplier: 0.8, base: 1.5, allowed_length, range, breakers };
                let expected = softmax(&plain_dry(&[prompt, reply].concat(), &dry));
                let sampling = Sampling { dry, ..Sampling::default() };
                check(&sampling, History { prompt, reply }, &expected);
            }
        }
    }
    let dry = Dry { multiplier: f32::MAX, base: f32::MAX, ..Dry::default() };
    let history = History { prompt: &[0; 400], reply: &[0; 100] };
    assert_eq!(pick(&LOGITS, &Sampling { dry, ..Sampling::greedy() }, history), Ok(1));
}

/// The distribution of a reply's second token under Mirostat 2, by its definition.
#[test]
fn mirostat_moves_its_limit_by_the_surprise() {
    let (tau, eta) = (1.5, 0.4);
    let sampling = Sampling { mirostat_tau: tau, mirostat_eta: eta, ..Sampling::default() };
    let keep = |limit: f64| {
        let all = softmax(&plain());
        kept(&plain(), |at| at == 0 || -all[at].log2() <= limit)
    };
    let first = keep(2.0 * f64::from(tau));
    check(&sampling, History::default(), &first);
    let mut expected = vec![0.0; 8];
    for (at, p) in first.iter().enumerate().filter(|(_, p)| **p > 0.0) {
        let limit = 2.0 * f64::from(tau) - f64::from(eta) * (-first[at].log2() - f64::from(tau));
        keep(limit).iter().zip(&mut expected).for_each(|(next, sum)| *sum += p * next);
    }
    let second = |seed| {
        let (sampling, mut state) = (Sampling { seed, ..sampling.clone() }, SamplerState::default());
        let first = pick_next(&LOGITS, None, &sampling, History::default(), &mut state).unwrap();
        let history = History { prompt: &[], reply: &[first] };
        pick_next(&LOGITS, None, &sampling, history, &mut state).unwrap()
    };
    check_draws(second, &expected);
}

#[test]
fn settings_outside_their_range_are_refused_by_name() {
    let dry = Dry::default;
    let wrong = [
        ("top_n_sigma", Sampling { top_n_sigma: -1.0, ..Sampling::default() }),
        ("typical_p", Sampling { typical_p: 0.0, ..Sampling::default() }),
        ("xtc_probability", Sampling { xtc_probability: 1.1, ..Sampling::default() }),
        ("xtc_threshold", Sampling { xtc_threshold: f32::NAN, ..Sampling::default() }),
        ("dynatemp_range", Sampling { dynatemp_range: f32::INFINITY, ..Sampling::default() }),
        ("dynatemp_exponent", Sampling { dynatemp_exponent: 0.0, ..Sampling::default() }),
        ("mirostat_tau", Sampling { mirostat_tau: -0.1, ..Sampling::default() }),
        ("mirostat_eta", Sampling { mirostat_eta: 0.0, ..Sampling::default() }),
        ("dry_multiplier", Sampling { dry: Dry { multiplier: f32::NAN, ..dry() }, ..Sampling::default() }),
        ("dry_base", Sampling { dry: Dry { base: 0.5, ..dry() }, ..Sampling::default() }),
        ("dry_allowed_length", Sampling { dry: Dry { allowed_length: 0, ..dry() }, ..Sampling::default() }),
    ];
    for (name, sampling) in wrong {
        let error = sampling.check().unwrap_err().to_string();
        assert!(error.starts_with(name), "{name}: {error}");
    }
    assert!(Sampling::default().check().is_ok());
}

/// Proposes the reply, with an error at times.
struct Guess(Vec<u32>);

impl Drafter for Guess {
    fn draft(&mut self, DraftQuery { tokens, max, .. }: DraftQuery<'_>) -> Vec<u32> {
        let next = self.0.iter().enumerate().skip(tokens.len()).take(max as usize);
        next.map(|(at, id)| if at % 5 == 0 { (id + 1) % oracle::VOCABULARY as u32 } else { *id }).collect()
    }
}

#[test]
fn a_reply_is_the_same_with_drafts_and_neighbours() {
    let sampling = Sampling {
        seed: 7,
        mirostat_tau: 3.0,
        mirostat_eta: 0.5,
        xtc_probability: 0.5,
        xtc_threshold: 0.02,
        dry: Dry { multiplier: 2.0, ..Dry::default() },
        dynatemp_range: 0.5,
        ..Sampling::default()
    };
    let ask = TokenRequest { sampling, ..request(&prompt(1, 40), 60) };
    let reply = |drafter: Option<Box<dyn Drafter>>, neighbours: u64| {
        let (mut engine, _) = batched(4, 64);
        for seed in 0..neighbours {
            engine.submit(request(&prompt(seed + 5, 30), 40), Hooks::default()).unwrap();
        }
        let id = engine.submit(ask.clone(), Hooks { drafter, ..Hooks::default() }).unwrap();
        finish(&mut engine, id).ids
    };
    let plain = reply(None, 0);
    assert_eq!(plain.len(), 60);
    assert_eq!(reply(None, 3), plain);
    let known = [ask.tokens.clone(), plain.clone()].concat();
    for neighbours in [0, 2] {
        assert_eq!(reply(Some(Box::new(Guess(known.clone()))), neighbours), plain);
    }
}
