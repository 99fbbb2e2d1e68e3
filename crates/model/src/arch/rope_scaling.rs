//! Schemes that scale rotary frequencies: a divisor for each, and a factor of the rotated components.
//!
//! The formulas are those of transformers' `modeling_rope_utils`.

use std::f64::consts::TAU;

use girih_tensor::{Error, Result};

/// The divisor of a frequency that rotates nothing: that of llama.cpp's converter. With it, no sine of a
/// position below 2³² changes a number.
const STILL: f32 = 1e30;

/// Frequencies before they are scaled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unscaled {
    pub base: f32,
    /// The size of a head.
    pub head: usize,
    /// The share of its components that `config.json` states.
    pub share: f64,
    /// The number of its components that are rotated.
    pub rotated: usize,
    /// The number of positions of the model.
    pub context: usize,
    /// The number of positions before the scaling, if the model states it apart from the scaling.
    pub original: Option<usize>,
}

/// What a scheme makes of frequencies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scaled {
    /// The divisor of each frequency; empty without scaling.
    pub factors: Vec<f32>,
    /// The factor of the rotated components.
    pub factor: Option<f32>,
    /// The number of rotated components, if the scheme states another one.
    pub rotated: Option<usize>,
    /// The factor of scores, where the scheme has one.
    pub score: Option<f32>,
    /// The number of positions for which this holds; longer texts would need other frequencies at all positions.
    pub context: Option<usize>,
}

impl Scaled {
    /// Divisors without further effect.
    pub fn by(factors: Vec<f32>) -> Scaled {
        Scaled { factors, ..Scaled::default() }
    }
}

/// A factor that may be 1, which is none.
pub(super) fn unless_one(factor: f64) -> Option<f32> {
    Some(factor as f32).filter(|factor| *factor != 1.0)
}

/// Llama 3's scaling: frequencies of long wavelengths are divided by `factor`,
/// short ones are kept, those between are interpolated (`_compute_llama3_parameters`).
pub(super) struct Llama3 {
    pub factor: f64,
    pub low: f64,
    pub high: f64,
    pub original: f64,
}

impl Llama3 {
    pub fn scaled(&self, from: &Unscaled) -> Scaled {
        let divisor = |i: usize| {
            let exponent = (2 * i) as f64 / from.rotated as f64;
            self.divisor(TAU * f64::from(from.base).powf(exponent))
        };
        Scaled::by((0..from.rotated / 2).map(divisor).collect())
    }

    fn divisor(&self, wavelength: f64) -> f32 {
        if wavelength > self.original / self.low {
            return self.factor as f32;
        }
        if wavelength < self.original / self.high {
            return 1.0;
        }
        let smooth = (self.original / wavelength - self.low) / (self.high - self.low);
        (1.0 / ((1.0 - smooth) / self.factor + smooth)) as f32
    }
}

/// YaRN (Peng et al. 2023, arXiv 2309.00071): pairs that turn often are kept, those that turn seldom are divided by
/// `factor`, with a ramp between (`_compute_yarn_parameters`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Yarn {
    pub factor: f64,
    pub original: f64,
    /// Turns over the original context from which pairs are kept.
    pub fast: f64,
    /// Turns below which pairs are divided.
    pub slow: f64,
    /// Whether the ends of the ramp are whole pairs.
    pub is_truncated: bool,
    /// The factor of the rotated components.
    pub attention: f64,
}

impl Yarn {
    pub fn scaled(&self, from: &Unscaled) -> Scaled {
        let size = from.rotated as f64;
        let pair =
            |turns: f64| size * (self.original / (turns * TAU)).ln() / (2.0 * f64::from(from.base).ln());
        let (low, high) = match (pair(self.fast), pair(self.slow)) {
            (low, high) if self.is_truncated => (low.floor(), high.ceil()),
            ends => ends,
        };
        let (low, high) = (low.max(0.0), high.min(size - 1.0));
        let high = if low == high { high + 0.001 } else { high };
        let divisor = |i: usize| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / (ramp / self.factor + (1.0 - ramp))) as f32
        };
        Scaled {
            factors: (0..from.rotated / 2).map(divisor).collect(),
            factor: unless_one(self.attention),
            ..Scaled::default()
        }
    }

    /// The factor of scores of a model that multiplies them twice by the scale of all components
    /// (`yarn_apply_mscale` of transformers' `deepseek_v3`).
    pub fn score(factor: f64, of_all: Option<f64>) -> Option<f32> {
        let of_all = of_all.filter(|of_all| *of_all != 0.0 && factor > 1.0)?;
        unless_one((0.1 * of_all * factor.ln() + 1.0).powi(2))
    }

    /// The factor of the rotated components, if the model does not state it.
    pub fn attention(factor: f64, mscale: Option<f64>, of_all: Option<f64>) -> f64 {
        let scale = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        match (mscale, of_all) {
            (Some(mscale), Some(of_all)) if mscale != 0.0 && of_all != 0.0 => scale(mscale) / scale(of_all),
            _ => scale(1.0),
        }
    }
}

/// LongRoPE (Ding et al. 2024, arXiv 2402.13753): a divisor for each frequency, by two lists
/// (`_compute_longrope_parameters`).
///
/// transformers uses the long list once a text is longer than the original context, and then for all its positions. So
/// what a position means would depend on the length of the text; the model keeps to texts that need the short list.
pub(super) struct LongRope {
    pub short: Vec<f32>,
    pub long: Vec<f32>,
    pub original: usize,
    /// The factor of the rotated components, and that of longer texts.
    pub attention: [f64; 2],
}

impl LongRope {
    pub fn scaled(self, from: &Unscaled) -> Scaled {
        let [attention, of_longer] = self.attention;
        let is_one = self.short == self.long && attention == of_longer;
        let is_limited = !is_one && self.original < from.context;
        Scaled {
            factors: self.short,
            factor: unless_one(attention),
            rotated: None,
            score: None,
            context: is_limited.then_some(self.original),
        }
    }

    /// The factor of the rotated components, if the model does not state it.
    pub fn attention(factor: f64, original: usize) -> f64 {
        if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() }
    }
}

/// Frequencies of whole heads that turn their first pairs only (`_compute_proportional_rope_parameters`).
pub(super) fn proportional(factor: f64, from: &Unscaled) -> Result<Scaled> {
    let turning = (from.share * from.head as f64 / 2.0).floor();
    if !(0.0..=from.head as f64 / 2.0).contains(&turning) {
        let share = from.share;
        return Err(Error::new(format!("the share {share} of a head is rotated; one from 0 to 1 is needed")));
    }
    let divisor = |i: usize| if (i as f64) < turning { factor as f32 } else { STILL };
    let factors = (0..from.head / 2).map(divisor).collect();
    Ok(Scaled { rotated: Some(from.head), ..Scaled::by(factors) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Unscaled =
        Unscaled { base: 10_000.0, head: 8, share: 0.5, rotated: 8, context: 64, original: None };

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let yarn =
            Yarn { factor: 4.0, original: 4096.0, fast: 32.0, slow: 1.0, is_truncated: true, attention: 1.1 };
        let from = Unscaled { head: 128, rotated: 128, ..FROM };
        let scaled = yarn.scaled(&from);
        // 4096 positions turn pair 20.9 of 64 32 times, and pair 45.0 once.
        assert_eq!((scaled.factors[20], scaled.factors[46], scaled.factor), (1.0, 4.0, Some(1.1)));
        assert!(scaled.factors[20..=46].is_sorted() && scaled.factors[21] > 1.0 && scaled.factors[44] < 4.0);
        let open = Yarn { is_truncated: false, ..yarn }.scaled(&from);
        assert!(open.factors[21] < scaled.factors[21], "the ramp begins later");
    }

    #[test]
    fn the_attention_factor_of_yarn_follows_from_its_scales() {
        assert_eq!(Yarn::attention(1.0, None, None), 1.0);
        assert_eq!(Yarn::attention(16.0, Some(1.0), Some(1.0)), 1.0);
        assert_eq!(Yarn::attention(16.0, None, Some(1.0)), 0.1 * 16f64.ln() + 1.0);
        assert!(Yarn::attention(16.0, Some(2.0), Some(1.0)) > 1.0);
    }

    #[test]
    fn scores_are_multiplied_twice_by_the_scale_of_all() {
        let scale = 0.1 * 40f64.ln() + 1.0;
        assert_eq!(Yarn::score(40.0, Some(1.0)), Some((scale * scale) as f32));
        assert_eq!(
            [Yarn::score(40.0, None), Yarn::score(40.0, Some(0.0)), Yarn::score(0.5, Some(1.0))],
            [None; 3]
        );
    }

    #[test]
    fn longrope_holds_for_the_original_context_unless_both_lists_are_equal() {
        let of = |long: &[f32]| LongRope {
            short: vec![1.0; 4],
            long: long.to_vec(),
            original: 32,
            attention: [1.2; 2],
        };
        assert_eq!(of(&[2.0; 4]).scaled(&FROM).context, Some(32));
        assert_eq!(of(&[1.0; 4]).scaled(&FROM).context, None);
        let of_longer = LongRope { attention: [1.2, 1.3], ..of(&[1.0; 4]) }.scaled(&FROM);
        assert_eq!((of_longer.context, of_longer.factor), (Some(32), Some(1.2)));
        assert_eq!(of(&[2.0; 4]).scaled(&Unscaled { context: 32, ..FROM }).context, None);
    }

    #[test]
    fn proportional_frequencies_turn_the_first_pairs_of_whole_heads() {
        let scaled = proportional(2.0, &Unscaled { rotated: 4, ..FROM }).unwrap();
        assert_eq!((scaled.factors, scaled.rotated), (vec![2.0, 2.0, STILL, STILL], Some(8)));
        assert!(proportional(2.0, &Unscaled { share: 1.5, ..FROM }).is_err());
    }
}
