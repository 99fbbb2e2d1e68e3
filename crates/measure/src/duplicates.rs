//! How much of a container's tensors repeats: as whole tensors, bands of rows, blocks of bytes, and groups of values.

use std::collections::{BTreeSet, HashMap, HashSet};

use girih_file::{Container, TensorInfo};
use girih_tensor::DType;
use sha2::{Digest as _, Sha256};

use crate::{Error, Result};

/// The rows of a band, as the kernels of the CPU pack them.
const BAND_ROWS: usize = 32;

/// The bytes of a block: a page of memory.
const BLOCK_BYTES: u64 = 4096;

/// The values of a group of floats; a block format has its own.
const GROUP_VALUES: usize = 32;

/// The most parts of a kind that are compared: half a GiB of digests.
const PARTS_MAX: usize = 1 << 25;

/// The bytes that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// The maximum number of pairs that are listed.
const PAIRS_MAX: usize = 100;

/// Parts of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedParts {
    /// What the parts are.
    pub part: &'static str,
    /// The number of parts.
    pub count: u64,
    /// The bytes of those that an earlier part equals, by the first 64 bits of their digests; `None` if there are too many
    /// parts to compare.
    pub repeated: Option<u64>,
}

/// What repeats among the tensors of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicates {
    /// The bytes of all tensors; those that share their place in a file count once.
    pub bytes: u64,
    /// The largest parts first.
    pub parts: Vec<RepeatedParts>,
    /// Tensors that equal an earlier one, each with that one; at most 100.
    pub pairs: Vec<(String, String)>,
}

/// The bytes of each part of a tensor.
type PartSize = fn(&TensorInfo) -> u64;

/// Finds what repeats among the tensors of a container, which is read once.
///
/// # Errors
/// When a tensor cannot be read.
pub fn duplicates(container: &Container) -> Result<Duplicates> {
    let kinds: [(&'static str, PartSize); 4] = [
        ("tensor", |_| u64::MAX),
        ("band of 32 rows", |info| of_rows(info)),
        ("block of 4 KiB", |_| BLOCK_BYTES),
        ("group", |info| of_group(info.dtype)),
    ];
    let mut counts = kinds.map(|(part, _)| PartCount::new(part));
    let (mut bytes, mut places, mut first) = (0, BTreeSet::new(), HashMap::new());
    let mut pairs = Vec::new();
    let mut piece = vec![0; PIECE_BYTES as usize];
    for (name, info) in container.tensors() {
        if info.bytes == 0 || !places.insert((info.shard, info.offset, info.bytes)) {
            continue;
        }
        bytes += info.bytes;
        for (count, (_, size)) in counts.iter_mut().zip(kinds) {
            count.begin(size(info));
        }
        for offset in (0..info.bytes).step_by(PIECE_BYTES as usize) {
            let piece = &mut piece[..PIECE_BYTES.min(info.bytes - offset) as usize];
            container.read(info, offset, piece).map_err(|error: Error| error.of(name))?;
            counts.iter_mut().for_each(|count| count.feed(piece));
        }
        let digests = counts.each_mut().map(PartCount::end);
        match first.get(&digests[0]) {
            None => drop(first.insert(digests[0], name)),
            Some(first) if pairs.len() < PAIRS_MAX => pairs.push((name.clone(), (*first).clone())),
            Some(_) => {}
        }
    }
    Ok(Duplicates { bytes, parts: counts.map(PartCount::into_parts).into(), pairs })
}

/// The bytes of a band of rows.
fn of_rows(info: &TensorInfo) -> u64 {
    // An extent of a tensor was checked when its container was opened, and a band is no larger but in its last rows.
    info.dtype.matrix_bytes(BAND_ROWS, info.shape.columns()).map_or(u64::MAX, |bytes| bytes as u64)
}

/// The bytes of a group of values that share a scale.
fn of_group(dtype: DType) -> u64 {
    let blocks = if dtype.tile() == (1, 1) { GROUP_VALUES } else { 1 };
    (blocks * dtype.block_bytes()) as u64
}

/// Counts the parts of one kind.
struct PartCount {
    part: &'static str,
    seen: HashSet<u64>,
    count: u64,
    repeated: u64,
    /// The size of a part of this tensor, and how much of the present one was read.
    size: u64,
    filled: u64,
    hasher: Sha256,
    /// The digest of the last part.
    last: u64,
}

impl PartCount {
    fn new(part: &'static str) -> PartCount {
        let (seen, hasher) = (HashSet::new(), Sha256::new());
        PartCount { part, seen, count: 0, repeated: 0, size: u64::MAX, filled: 0, hasher, last: 0 }
    }

    /// Begins a tensor whose parts have this size; the last one may be smaller.
    fn begin(&mut self, size: u64) {
        (self.size, self.filled) = (size.max(1), 0);
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = usize::try_from(self.size - self.filled).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.hasher.update(now);
            self.filled += now.len() as u64;
            if self.filled == self.size {
                self.close();
            }
            bytes = later;
        }
    }

    /// Ends a tensor; returns the digest of its last part.
    fn end(&mut self) -> u64 {
        if self.filled > 0 {
            self.close();
        }
        self.last
    }

    fn close(&mut self) {
        let digest = self.hasher.finalize_reset();
        let (start, _) = digest.split_at(size_of::<u64>());
        self.last = u64::from_le_bytes(start.try_into().expect("a digest is longer than eight bytes"));
        self.count += 1;
        if self.seen.contains(&self.last) {
            self.repeated += self.filled;
        } else if self.seen.len() < PARTS_MAX {
            self.seen.insert(self.last);
        }
        self.filled = 0;
    }

    fn into_parts(self) -> RepeatedParts {
        let PartCount { part, count, repeated, seen, .. } = self;
        RepeatedParts { part, count, repeated: (seen.len() < PARTS_MAX).then_some(repeated) }
    }
}

#[cfg(test)]
mod tests {
    use girih_file::{ContainerKind, FileLimits};

    use super::*;

    #[test]
    fn what_repeats_is_counted_by_the_size_of_its_parts() {
        // a: 64 rows of 64 bytes; b equals a; c equals a in its first 33 rows.
        let rows: Vec<u8> =
            (0..64 * 64u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 16) as u8).collect();
        let mut changed = rows.clone();
        changed[33 * 64..].iter_mut().for_each(|byte| *byte ^= 0x55);
        let entry = |at: usize| {
            format!(r#"{{"dtype":"U8","shape":[64,64],"data_offsets":[{},{}]}}"#, at * 4096, (at + 1) * 4096)
        };
        let header = format!(r#"{{"a":{},"b":{},"c":{}}}"#, entry(0), entry(1), entry(2));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        [&rows, &rows, &changed].iter().for_each(|bytes| file.extend(*bytes));
        let container =
            Container::memory(ContainerKind::Safetensors, "memory", file, &FileLimits::DEFAULT).unwrap();
        let found = duplicates(&container).unwrap();
        assert_eq!((found.bytes, found.pairs), (3 * 4096, vec![("b".to_owned(), "a".to_owned())]));
        let parts: Vec<_> = found.parts.iter().map(|parts| (parts.count, parts.repeated)).collect();
        let groups = 33 * 64;
        assert_eq!(
            parts,
            [(3, Some(4096)), (6, Some(4096 + 2048)), (3, Some(4096)), (384, Some(4096 + groups))]
        );
    }
}
