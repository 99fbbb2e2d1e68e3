//! Integration tests of the model crate.
#![forbid(unsafe_code)]

#[path = "../../../words/tests/it/data.rs"]
mod data;
mod encoders;
mod experts;
mod families;
#[path = "../../../file/tests/it/folder.rs"]
mod folder;
mod fused;
mod keys;
mod latent;
mod layered;
mod layers;
mod light;
mod new_mixers;
mod parallel;
mod projectors;
mod shared_kv;
mod spread;
mod towers;
mod verified;
