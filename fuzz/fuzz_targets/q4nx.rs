//! Opens any bytes as FastFlowLM's `model.q4nx`: an error, or every tensor lies within the bytes and has as many as its shape needs.
#![no_main]

use girih_file::{Container, ContainerKind, FileLimits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let opened = Container::memory(ContainerKind::Q4nx, "model.q4nx", bytes.to_vec(), &FileLimits::DEFAULT);
    let Ok(container) = opened else { return };
    for info in container.tensors().values() {
        assert!(info.offset + info.bytes <= bytes.len() as u64);
        assert_eq!(info.dtype.bytes(&info.shape).map(|needed| needed as u64), Ok(info.bytes));
    }
});
