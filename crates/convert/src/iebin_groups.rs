//! Finds near-equal tensors of a folder of IEBIN, and writes them as differences to one of them.
//!
//! Tensors are compared by the bytes that would be stored. A sample of each is compared first; then those that may be near-equal
//! are compared whole, one at a time with its default, which is in memory. So a conversion with an overlay converts each
//! tensor twice, and those of groups three times.

use std::collections::BTreeMap;

use girih_file::{IebinGroup, IebinStorage, OverlayWriters, quote};
use girih_tensor::{Error, ErrorKind, Result};

use super::bands::TensorSink;
use super::iebin_tensors::{PlannedTensor, TensorSource};

/// The share of equal bytes from which on a tensor is stored as differences: those take at most 1/8 + 1/2 of its bytes then.
const MIN_EQUAL: f64 = 0.5;

/// The bytes of the smallest tensor that is compared. A smaller one saves less than the text of its entry in the list.
const MIN_BYTES: u64 = 1024;

/// The pieces of a sample, spread over the tensor, and the bytes of each.
const PIECES: u64 = 64;
const PIECE_BYTES: u64 = 64;

/// The groups of near-equal tensors of one shape and storage. The first of a group is its default.
///
/// # Errors
/// When a tensor cannot be converted, or memory does not suffice for one.
pub(super) fn near_equal(
    planned: &mut [PlannedTensor<'_>],
    source: TensorSource<'_>,
) -> Result<Vec<IebinGroup>> {
    let mut groups = Vec::new();
    for tensors in classes(planned)? {
        for (default, targets) in by_samples(planned, source, &tensors)? {
            let exact = compared(planned, source, (default, &targets))?;
            for (index, differing) in &exact {
                let (name, bytes) = (&planned[default].tensor.name, planned[*index].new_tensor().bytes()?);
                let percent = 100.0 * *differing as f64 / bytes as f64;
                let note = format!("differs from {} in {percent:.1} % of its bytes", quote(name));
                let earlier = planned[*index].tensor.note.take();
                planned[*index].tensor.note = Some(match earlier {
                    Some(earlier) => format!("{earlier}; {note}"),
                    None => note,
                });
            }
            if !exact.is_empty() {
                groups.push(IebinGroup { default, targets: exact });
            }
        }
    }
    groups.sort_by_key(|group| group.default);
    Ok(groups)
}

/// The indexes of tensors that may be compared: those of one shape and kind of storage.
fn classes(planned: &[PlannedTensor<'_>]) -> Result<Vec<Vec<usize>>> {
    let mut classes: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    for (index, tensor) in planned.iter().enumerate() {
        let kind = match &tensor.storage {
            IebinStorage::Plain(dtype) => dtype.name(),
            IebinStorage::Int4(_) => "int4",
            IebinStorage::Int8(_) => "int8",
        };
        if tensor.new_tensor().bytes()? >= MIN_BYTES {
            let class = (kind.to_owned(), tensor.tensor.shape.to_string());
            classes.entry(class).or_default().push(index);
        }
    }
    Ok(classes.into_values().filter(|class| class.len() > 1).collect())
}

/// Tensors with those whose samples are near-equal to theirs.
fn by_samples(
    planned: &[PlannedTensor<'_>],
    source: TensorSource<'_>,
    tensors: &[usize],
) -> Result<Vec<(usize, Vec<usize>)>> {
    let mut groups: Vec<(Vec<u8>, usize, Vec<usize>)> = Vec::new();
    for index in tensors {
        let mut sample = Sample::of(planned[*index].new_tensor().bytes()?);
        planned[*index].write(&mut sample, source, &mut |_| ())?;
        let equal = |own: &[u8]| own.iter().zip(&sample.bytes).filter(|(a, b)| a == b).count();
        let best = groups.iter_mut().map(|group| (equal(&group.0), group)).max_by_key(|(equal, _)| *equal);
        match best {
            Some((equal, group)) if equal as f64 >= MIN_EQUAL * sample.bytes.len() as f64 => {
                group.2.push(*index)
            }
            _ => groups.push((sample.bytes, *index, Vec::new())),
        }
    }
    let groups = groups.into_iter().filter(|(_, _, targets)| !targets.is_empty());
    Ok(groups.map(|(_, default, targets)| (default, targets)).collect())
}

/// Those of the targets that are near-equal to their default, each with the number of bytes that differ.
fn compared(
    planned: &[PlannedTensor<'_>],
    source: TensorSource<'_>,
    (default, targets): (usize, &[usize]),
) -> Result<Vec<(usize, u64)>> {
    let default = WholeTensor::of(&planned[default], source)?;
    let mut near = Vec::new();
    for index in targets {
        let mut count = Differences { default: &default.0, at: 0, differing: 0, files: None };
        planned[*index].write(&mut count, source, &mut |_| ())?;
        if count.differing as f64 <= (1.0 - MIN_EQUAL) * default.0.len() as f64 {
            near.push((*index, count.differing));
        }
    }
    Ok(near)
}

/// Writes the tensors of groups; `write` gives a sink the bytes of the tensor of an index.
///
/// # Errors
/// When a tensor cannot be converted or written.
pub(super) fn write_groups(
    overlay: &mut OverlayWriters,
    groups: &[IebinGroup],
    mut write: impl FnMut(usize, &mut dyn TensorSink) -> Result<()>,
) -> Result<()> {
    for group in groups {
        let mut default = WholeTensor(Vec::new());
        let mut both = DefaultSink { kept: &mut default, file: &mut overlay.defaults };
        write(group.default, &mut both)?;
        for (index, _) in &group.targets {
            let files = Some(DifferenceFiles { overlay: &mut *overlay, name: String::new(), mask: 0 });
            let mut sink = Differences { default: &default.0, at: 0, differing: 0, files };
            write(*index, &mut sink)?;
            sink.finish()?;
        }
    }
    Ok(())
}

/// Bytes of a tensor at equal distances.
struct Sample {
    /// The bytes from the beginning of one piece to the next.
    step: u64,
    at: u64,
    bytes: Vec<u8>,
}

impl Sample {
    /// Of a tensor of this many bytes.
    fn of(bytes: u64) -> Sample {
        Sample { step: (bytes / PIECES).max(PIECE_BYTES), at: 0, bytes: Vec::new() }
    }
}

impl TensorSink for Sample {
    fn append(&mut self, _: &str, bytes: &[u8]) -> Result<()> {
        let end = self.at + bytes.len() as u64;
        for piece in self.at / self.step..end.div_ceil(self.step) {
            let first = (piece * self.step).clamp(self.at, end) - self.at;
            let last = (piece * self.step + PIECE_BYTES).clamp(self.at, end) - self.at;
            self.bytes.extend(&bytes[first as usize..last as usize]);
        }
        self.at = end;
        Ok(())
    }
}

/// The bytes of a tensor in memory.
struct WholeTensor(Vec<u8>);

impl WholeTensor {
    fn of(tensor: &PlannedTensor<'_>, source: TensorSource<'_>) -> Result<WholeTensor> {
        let mut whole = WholeTensor(Vec::new());
        tensor.write(&mut whole, source, &mut |_| ())?;
        Ok(whole)
    }
}

impl TensorSink for WholeTensor {
    fn append(&mut self, _: &str, bytes: &[u8]) -> Result<()> {
        self.0.try_reserve(bytes.len()).map_err(|_| {
            let sentence = "memory does not suffice for the default of an overlay; omit --dedup";
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        })?;
        self.0.extend(bytes);
        Ok(())
    }
}

/// A default that is written and kept in memory.
struct DefaultSink<'a> {
    kept: &'a mut WholeTensor,
    file: &'a mut dyn TensorSink,
}

impl TensorSink for DefaultSink<'_> {
    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.file.append(name, bytes)?;
        self.kept.append(name, bytes)
    }
}

/// The bytes of a tensor that differ from its default's.
struct Differences<'a> {
    default: &'a [u8],
    at: usize,
    differing: u64,
    /// Where they are written, or only counted.
    files: Option<DifferenceFiles<'a>>,
}

struct DifferenceFiles<'a> {
    overlay: &'a mut OverlayWriters,
    name: String,
    /// The bits of the byte of the mask in progress.
    mask: u8,
}

impl Differences<'_> {
    /// Writes the last byte of the mask.
    fn finish(self) -> Result<()> {
        match self.files {
            Some(DifferenceFiles { overlay, name, mask }) if !self.at.is_multiple_of(8) => {
                overlay.masks.append(&name, &[mask])
            }
            _ => Ok(()),
        }
    }
}

impl TensorSink for Differences<'_> {
    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let own = &self.default[self.at..self.at + bytes.len()];
        let (mut masks, mut exceptions) = (Vec::new(), Vec::new());
        let mut mask = self.files.as_ref().map_or(0, |files| files.mask);
        for (place, (byte, default)) in (self.at..).zip(bytes.iter().zip(own)) {
            if byte != default {
                mask |= 1 << (place % 8);
                exceptions.push(*byte);
            }
            if place % 8 == 7 {
                masks.push(std::mem::take(&mut mask));
            }
        }
        self.at += bytes.len();
        self.differing += exceptions.len() as u64;
        if let Some(files) = &mut self.files {
            (files.mask, files.name) = (mask, name.to_owned());
            files.overlay.masks.append(name, &masks)?;
            files.overlay.exceptions.append(name, &exceptions)?;
        }
        Ok(())
    }
}
