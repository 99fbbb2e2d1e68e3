//! Accuracy and speed of a loaded model: comparison with golden outputs of
//! transformers, layer by layer and token by token; times, and the minimal work of a
//! step. This crate compares and reports. It implements no inference and never prints.
#![forbid(unsafe_code)]

mod activation_gain;
mod bound;
mod duplicates;
mod encoder_gate;
mod encoder_golden;
mod gate;
mod golden;
mod golden_file;
mod golden_image;
mod golden_step;
mod hidden;
mod layers;
mod minimal_work;
mod mtp_gate;
mod perplexity;
mod profile;
mod progress;
pub mod record;
mod rounding;
mod row_sizes;
mod running_error;
mod speed;
mod touch;
mod tower_gate;

pub use bound::{BoundUse, ErrorBound, GoldenPrecision};
pub use duplicates::{Duplicates, RepeatedParts, duplicates};
pub use encoder_gate::{EncoderPromptVerdict, EncoderVerdict, diagnose_encoder, verify_encoder};
pub use encoder_golden::{EncoderGolden, EncoderPrompt, PaddedText};
pub use gate::{Divergence, FailedStep, PromptVerdict, TopChoices, Verdict, verify};
pub use girih_tensor::{Error, ErrorKind, Result};
pub use golden::{Golden, GoldenPrompt, ReferenceOutputs};
pub use golden_file::{GoldenSizes, ImageSizes};
pub use golden_image::GoldenImage;
pub use golden_step::{ChoiceRanks, Disagreement, GoldenStep};
pub use hidden::HiddenStates;
pub use layers::{LayerRow, diagnose, diagnose_against};
pub use minimal_work::{LoadedGraph, MinimalWork};
pub use mtp_gate::{MtpGolden, MtpPrompt, MtpVerdict, verify_mtp};
pub use perplexity::{Perplexity, perplexity};
pub use profile::{Amounts, Profile, ProfileRow, profile, profile_image};
pub use progress::{MeasureProgress, ProgressWatcher};
pub use speed::{BenchCase, BenchTimes, Spread, first_token, random_tokens, speed};
pub use touch::{TouchPlan, TouchTimes, WeightToucher};
pub use tower_gate::{IMAGE_ROWS, TowerBound, diagnose_image};
