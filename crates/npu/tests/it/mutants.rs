//! Changed blobs cause no panic: 2,000 with the tests, 100,000 with
//!
//! ```text
//! cargo test --release --locked -p girih-npu --test it mutants -- --ignored
//! ```
//!
//! Half of them keep the digest of the unchanged blob and are all refused. The others get
//! the digest that they need; those that are accepted are run for some thousand events.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use girih_npu::Target;
use girih_npu::blob::{decode, encode};
use girih_npu::form::schedule::Schedule;
use girih_npu::memory::{Binding, Objects, SimMemory};
use girih_npu::pass::{ArrayMapping, ArrayWeights, NoDump, Policy, compile, groups};
use girih_npu::sim::{Cycle, EventOrder, SimEvent, SimWatch, Simulator};
use girih_tensor::Random;
use sha2::{Digest as _, Sha256};

use crate::llama::{LlamaSizes, SMALL, key, llama};

/// The bytes of the digest at the end of a blob.
const DIGEST_BYTES: usize = 32;

/// The events after which a run is ended, as counts of loops may have become large.
const MAX_EVENTS: u32 = 4000;

/// The largest arguments for which a run computes values.
const MAX_VALUE_BYTES: u64 = 1 << 20;

/// The blobs of all programs of a layer, in prefill and for a token, with weights in bf16 and in
/// Q4NX.
fn blobs(target: &Target) -> Vec<Vec<u8>> {
    let sizes = LlamaSizes { layers: 1, ..SMALL };
    let cut = |(rows, weights)| {
        let mapping = ArrayMapping { weights, ..ArrayMapping::from(Policy::MLIR_AIR) };
        groups(&llama(&sizes, key(rows)), target, &mapping, &mut NoDump).unwrap()
    };
    let (bf16, q4nx) = (ArrayWeights::Bf16, ArrayWeights::Q4nx);
    let steps = [(16, bf16), (1, bf16), (16, q4nx), (1, q4nx)];
    let programs = steps.map(cut).into_iter().flat_map(|groups| groups.programs);
    let blob = |program| encode(&compile(&program, target, &mut NoDump).unwrap(), target).unwrap();
    programs.map(blob).collect()
}

/// Changes some bytes: of any value, of values at the ends of a range, removed, repeated, or from
/// another blob.
fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(24)).min(bytes.len());
        match random.below(8) {
            0 | 1 => bytes[at] ^= 1 << random.below(8),
            2 | 3 => bytes[at] = random.bits() as u8,
            4 => bytes[at] = [0, 1, 0x3f, 0x40, 0x7f, 0x80, 0xfe, 0xff][random.below(8)],
            5 => drop(bytes.drain(at..end)),
            6 => {
                let repeated = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, repeated));
            }
            _ => {
                let from = random.below(other.len());
                let count = (end - at).min(other.len() - from);
                bytes[at..at + count].copy_from_slice(&other[from..from + count]);
            }
        }
    }
}

/// Ends a run after some events.
struct Budget(u32);

/// What a run that has been ended unwinds with.
struct Spent;

impl SimWatch for Budget {
    fn event(&mut self, _: Cycle, _: &SimEvent<'_>) {
        if self.0 == 0 {
            resume_unwind(Box::new(Spent));
        }
        self.0 -= 1;
    }
}

/// Runs an accepted schedule: time only, and values if its arguments are small. Any end is
/// fine, except a panic.
fn run(schedule: &Schedule, target: &Target) {
    let simulate = |bindings: &[Binding], memory: &mut SimMemory<'_>| {
        let mut simulator = Simulator::new(target).unwrap();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let order = EventOrder::Earliest;
            simulator.run(schedule, bindings, memory, &mut Budget(MAX_EVENTS), order).is_ok()
        }));
        if let Err(payload) = ended
            && !payload.is::<Spent>()
        {
            resume_unwind(payload);
        }
    };
    simulate(&[], &mut SimMemory::TimeOnly);
    let bytes = schedule.arguments.iter().map(|argument| argument.bytes).fold(0, u64::saturating_add);
    if bytes <= MAX_VALUE_BYTES {
        let mut objects = Objects::new();
        let bindings: Vec<Binding> = schedule
            .arguments
            .iter()
            .map(|argument| Binding { object: objects.add(argument.bytes).unwrap(), offset: 0 })
            .collect();
        simulate(&bindings, &mut SimMemory::Values(&mut objects));
    }
}

/// Checks this number of changed blobs.
fn mutants(count: usize) {
    let target = Target::named("toy").unwrap();
    let blobs = blobs(&target);
    let mut random = Random(1);
    let mut accepted = 0;
    for number in 0..count {
        let blob = &blobs[random.below(blobs.len())];
        let other = &blobs[random.below(blobs.len())];
        if number % 2 == 0 {
            let mut bytes = blob.clone();
            change(&mut bytes, other, &mut random);
            assert!(bytes == *blob || decode(&bytes, &target).is_err(), "mutant {number} is accepted");
        } else {
            let mut bytes = blob[..blob.len() - DIGEST_BYTES].to_vec();
            change(&mut bytes, other, &mut random);
            let digest = Sha256::digest(&bytes);
            bytes.extend_from_slice(&digest);
            if let Ok(schedule) = decode(&bytes, &target) {
                accepted += 1;
                run(&schedule, &target);
            }
        }
    }
    println!("{count} mutants without a panic; {accepted} with a new digest are accepted");
    assert!(accepted > count / 100, "{accepted} of {count} mutants are accepted");
}

#[test]
fn a_changed_blob_causes_no_panic() {
    mutants(2000);
}

#[test]
#[ignore = "takes minutes"]
fn a_hundred_thousand_changed_blobs_cause_no_panic() {
    mutants(100_000);
}

#[test]
fn a_truncated_blob_is_refused() {
    let target = Target::named("toy").unwrap();
    let blob = &blobs(&target)[1];
    for end in (0..blob.len()).step_by(97) {
        let error = decode(&blob[..end], &target).unwrap_err().to_string();
        assert!(error.starts_with("this is not a blob, or it is damaged"), "{error}");
    }
}
