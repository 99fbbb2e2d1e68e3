//! Overlays of IEBIN: tensors that are stored as their differences to others of the same size.
//!
//! ```text
//! model.dedup.json      { "magic": "DUDP", "version": 1, "files": { "defaults", "masks", "exceptions" },
//!                         "totals": { "defaults_size", "masks_size", "exceptions_size" },
//!                         "groups": [ { "default": { "tensor_index", "nbytes", "default_off" },
//!                                       "targets": [ { "tensor_index", "nbytes", "mask_off", "mask_nbytes",
//!                                                      "exc_off", "exc_nbytes", "exc_popcount" } ] } ] }
//! model.defaults.bin    the bytes of each group's default
//! model.masks.bin       for each target a bit for each byte, from the lowest bit on: whether it differs from the default's
//! model.exceptions.bin  for each target the bytes that differ, in ascending order
//! ```
//! (IE-Core's inference-engine, `tools/dedup_extract_int4.py`.) `tensor_index` counts the tensors of the manifest from 0. The
//! bytes of a tensor that is listed here are those of the overlay: its entry in the manifest needs no offset. Sums of bits,
//! sizes and offsets are checked when the folder is opened, so a mask is read twice: then, and with its tensor.

use std::collections::BTreeMap;

use girih_tensor::{DType, Error, ErrorKind, Result, Shape};
use serde::Deserialize;

use crate::capped_list::CappedList;
use crate::container::{Container, MadeTensor, TensorInfo};
use crate::quote::{quote, shorten_parse};

/// The file that lists the groups.
pub const OVERLAY: &str = "model.dedup.json";

/// The value of `magic`.
pub(crate) const MAGIC: &str = "DUDP";

/// The value of `version`.
pub(crate) const VERSION: u64 = 1;

/// The files of defaults, masks and exceptions that are written.
pub(crate) const FILES: [&str; 3] = ["model.defaults.bin", "model.masks.bin", "model.exceptions.bin"];

/// The bytes of a mask between two counts of its bits.
const COUNTED: usize = 512;

/// The bytes of a tensor between two counts.
const GRAIN: usize = 8 * COUNTED;

/// The bytes of a tensor that are patched at once.
const AT_ONCE: usize = 16 * GRAIN;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOverlay {
    magic: String,
    version: u64,
    files: OverlayFiles,
    totals: Option<OverlayTotals>,
    groups: CappedList<RawGroup>,
}

/// The names of the three files, which may be paths.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverlayFiles {
    defaults: String,
    masks: String,
    exceptions: String,
}

/// The lengths of the three files.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverlayTotals {
    defaults_size: u64,
    masks_size: u64,
    exceptions_size: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    default: RawDefault,
    targets: CappedList<RawTarget>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDefault {
    tensor_index: u64,
    nbytes: u64,
    default_off: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTarget {
    tensor_index: u64,
    nbytes: u64,
    mask_off: u64,
    mask_nbytes: u64,
    exc_off: u64,
    exc_nbytes: u64,
    exc_popcount: u64,
}

/// Where the stored bytes of tensors lie that an overlay lists: shard, offset and length, by their index in the manifest.
pub(crate) type OverlaidPlaces = BTreeMap<u64, (usize, u64, u64)>;

/// An overlay whose JSON was read.
pub(crate) struct Overlay(RawOverlay);

impl Overlay {
    /// Reads the list of groups.
    ///
    /// # Errors
    /// When it is none, or of another version.
    pub fn parse(json: &[u8]) -> Result<Overlay> {
        let raw: RawOverlay = serde_json::from_slice(json).map_err(|error| {
            Error::new(format!("is not a valid overlay of IEBIN: {}", shorten_parse(&error)))
        })?;
        if raw.magic != MAGIC {
            let magic = quote(&raw.magic);
            return Err(refused(format!("has the magic {magic}; girih reads {MAGIC}")));
        }
        if raw.version != VERSION {
            return Err(refused(format!("has the version {}; girih reads {VERSION}", raw.version)));
        }
        Ok(Overlay(raw))
    }

    /// The names of its files: defaults, masks and exceptions.
    pub fn files(&self) -> [&str; 3] {
        let files = &self.0.files;
        [&files.defaults, &files.masks, &files.exceptions]
    }

    /// Checks the groups against the files, and adds each target to the container. `shards` are the files, `tensors` is the
    /// number of tensors of the manifest.
    ///
    /// # Errors
    /// When a tensor occurs twice or not in the manifest, an extent exceeds its file, or a mask has other bits than stated.
    pub fn add_to(
        &self,
        container: &mut Container,
        shards: [usize; 3],
        tensors: u64,
    ) -> Result<OverlaidPlaces> {
        let files = shards.map(|shard| OverlayFile::whole(container, shard));
        self.check_totals(files.each_ref().map(|file| file.length))?;
        let [defaults, mut masks, mut exceptions] = files;
        let mut places = OverlaidPlaces::new();
        for group in &self.0.groups.0 {
            let RawDefault { tensor_index, nbytes, default_off } = group.default;
            let of = |error: Error| error.of(format!("the default of tensor_index {tensor_index}"));
            let default = defaults.part(default_off, nbytes).map_err(of)?;
            put(&mut places, tensors, tensor_index, (defaults.shard, default_off, nbytes)).map_err(of)?;
            for target in &group.targets.0 {
                let of =
                    |error: Error| error.of(format!("the target of tensor_index {}", target.tensor_index));
                target.check(nbytes).map_err(of)?;
                let mask = masks.next_part(target.mask_off, target.mask_nbytes).map_err(of)?;
                let exceptions = exceptions.next_part(target.exc_off, target.exc_nbytes).map_err(of)?;
                let made = OverlaidTensor::new(container, (default.clone(), mask, exceptions)).map_err(of)?;
                let shard = container.add_made(Box::new(made), defaults.shard);
                put(&mut places, tensors, target.tensor_index, (shard, 0, nbytes)).map_err(of)?;
            }
        }
        Ok(places)
    }

    /// Compares the stated lengths of the files with their own.
    fn check_totals(&self, found: [u64; 3]) -> Result<()> {
        let Some(totals) = &self.0.totals else { return Ok(()) };
        let stated = [totals.defaults_size, totals.masks_size, totals.exceptions_size];
        for ((stated, found), name) in stated.iter().zip(found).zip(self.files()) {
            if *stated != found {
                let name = quote(name);
                return Err(Error::new(format!("states {stated} bytes for {name}, which has {found} bytes")));
            }
        }
        Ok(())
    }
}

/// Notes where a tensor lies.
fn put(places: &mut OverlaidPlaces, tensors: u64, index: u64, place: (usize, u64, u64)) -> Result<()> {
    if index >= tensors {
        return Err(Error::new(format!("is none of the manifest's {tensors} tensors")));
    }
    match places.insert(index, place) {
        None => Ok(()),
        Some(_) => Err(Error::new("is in the overlay twice")),
    }
}

impl RawTarget {
    /// Checks what does not need the files.
    fn check(&self, default: u64) -> Result<()> {
        let RawTarget { nbytes, mask_nbytes, exc_nbytes, exc_popcount, .. } = *self;
        if nbytes != default {
            return Err(Error::new(format!("has {nbytes} bytes, but its default has {default}")));
        }
        if mask_nbytes != nbytes.div_ceil(8) {
            let needed = nbytes.div_ceil(8);
            return Err(Error::new(format!("has a mask of {mask_nbytes} bytes; {needed} are needed")));
        }
        if exc_nbytes != exc_popcount {
            return Err(Error::new(format!(
                "has {exc_nbytes} exceptions for {exc_popcount} bits of its mask"
            )));
        }
        Ok(())
    }
}

/// A file of the overlay.
struct OverlayFile {
    shard: usize,
    length: u64,
    /// Where the last part ends. The three files have different names, and parts of masks and of exceptions follow each other, so that none of
    /// their bytes counts for two tensors, and reading all masks takes no longer than their file is.
    end: u64,
}

impl OverlayFile {
    fn whole(container: &Container, shard: usize) -> OverlayFile {
        OverlayFile { shard, length: container.file_length(shard), end: 0 }
    }

    /// A part of the file.
    fn part(&self, offset: u64, bytes: u64) -> Result<TensorInfo> {
        let count = usize::try_from(bytes).ok();
        match (offset.checked_add(bytes).filter(|end| *end <= self.length), count) {
            (Some(_), Some(count)) => {
                let shape = Shape::vector(count);
                Ok(TensorInfo { dtype: DType::U8, shape, shard: self.shard, offset, bytes })
            }
            _ => Err(Error::new(format!("has {bytes} bytes at {offset} of a file of {} bytes", self.length))),
        }
    }

    /// A part of the file behind the ones before.
    fn next_part(&mut self, offset: u64, bytes: u64) -> Result<TensorInfo> {
        if offset < self.end {
            let end = self.end;
            return Err(Error::new(format!("begins at {offset} of a file whose part before ends at {end}")));
        }
        let part = self.part(offset, bytes)?;
        self.end = offset + bytes;
        Ok(part)
    }
}

/// The stored bytes of a tensor, made of those of its default.
#[derive(Debug)]
struct OverlaidTensor {
    default: TensorInfo,
    mask: TensorInfo,
    exceptions: TensorInfo,
    /// The bits before each [`COUNTED`] bytes of the mask.
    before: Vec<u64>,
}

impl OverlaidTensor {
    /// A tensor whose mask has as many bits as there are exceptions.
    fn new(
        container: &Container,
        (default, mask, exceptions): (TensorInfo, TensorInfo, TensorInfo),
    ) -> Result<OverlaidTensor> {
        let (mut before, mut count, mut piece) = (Vec::new(), 0, vec![0; COUNTED]);
        for start in (0..mask.bytes).step_by(COUNTED) {
            let piece = &mut piece[..(mask.bytes - start).min(COUNTED as u64) as usize];
            container.read(&mask, start, piece)?;
            before.push(count);
            count += piece.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
            let used = default.bytes % 8;
            let is_last = start + piece.len() as u64 == mask.bytes;
            if is_last && used > 0 && piece.last().is_some_and(|last| last >> used != 0) {
                return Err(Error::new("has bits behind the end of its mask"));
            }
        }
        if count != exceptions.bytes {
            let stated = exceptions.bytes;
            return Err(Error::new(format!("has a mask of {count} bits, but {stated} exceptions")));
        }
        Ok(OverlaidTensor { default, mask, exceptions, before })
    }

    /// Fills `into` with bytes that begin at a multiple of [`GRAIN`].
    fn read_piece(&self, container: &Container, start: u64, into: &mut [u8]) -> Result<()> {
        container.read(&self.default, start, into)?;
        let mut mask = vec![0; into.len().div_ceil(8)];
        container.read(&self.mask, start / 8, &mut mask)?;
        let set = |index: &usize| mask[index / 8] >> (index % 8) & 1 == 1;
        let count = (0..into.len()).filter(set).count();
        let mut exceptions = vec![0; count];
        container.read(&self.exceptions, self.before[start as usize / GRAIN], &mut exceptions)?;
        let places = (0..into.len()).filter(set);
        places.zip(exceptions).for_each(|(index, exception)| into[index] = exception);
        Ok(())
    }
}

impl MadeTensor for OverlaidTensor {
    fn read(&self, container: &Container, start: u64, into: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (start, into);
        while !rest.is_empty() {
            let (first, skipped) = (at / GRAIN as u64 * GRAIN as u64, at as usize % GRAIN);
            let length = rest.len().min(AT_ONCE - skipped);
            let (now, later) = rest.split_at_mut(length);
            match skipped {
                0 => self.read_piece(container, first, now)?,
                _ => {
                    let mut piece = vec![0; skipped + length];
                    self.read_piece(container, first, &mut piece)?;
                    now.copy_from_slice(&piece[skipped..]);
                }
            }
            (at, rest) = (at + length as u64, later);
        }
        Ok(())
    }
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}
