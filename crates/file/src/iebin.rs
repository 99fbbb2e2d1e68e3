//! Reads folders of IEBIN, the container of IE-Core's inference-engine.
//!
//! ```text
//! model.ie.json  { "format": "iebin.v1", "version": 1, "bin": "model.ie.bin", "tensors": [ …, one object each:
//!                  "name", "shape", "dtype", "offset", "nbytes", "quant"?: { "per", "scale_bin", … } ] }
//! model.ie.bin   the bytes of the tensors, without a header
//! ```
//! A tensor with `file` and `file_data_offset` (or `shard` and `shard_data_offset`) lies in that file instead. Integers of four
//! and eight bits have a file of scales each; `iebin_matrix.rs` shows them in a block format with the same numbers.
//!
//! Paths are often those of the machine that wrote the folder, so only their last component counts: a file of this folder. Two tensors
//! may share all of their bytes, but not a part of them; `iebin_overlay.rs` reads those that are stored as differences. The keys `tokenizer`, `source`, `dedup` and the folder's `dtype` state
//! where the folder came from; girih finds a tokenizer by its usual name.

use std::collections::BTreeMap;

use girih_tensor::{DType, Error, ErrorKind, Result, Shape};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::capped_list::CappedList;
use crate::container::{Container, ContainerKind, HeaderContents, Shard, TensorInfo, UnreadableTensor};
use crate::iebin_matrix::{CodeBits, IebinMatrix};
use crate::iebin_overlay::{OVERLAY, OverlaidPlaces, Overlay};
use crate::limits::FileLimits;
use crate::quote::{quote, shorten_parse};
use crate::safetensors::{self, Extents, unread_type};
use crate::source::ReadAt;

/// The file that lists the tensors.
pub const MANIFEST: &str = "model.ie.json";

/// The file of their bytes, unless the manifest names another.
pub const BIN: &str = "model.ie.bin";

/// The value of `format`.
pub const FORMAT: &str = "iebin.v1";

/// The names of formats, in lower case; the first name of each is the one that is written.
const TYPES: [(DType, &[&str]); 7] = [
    (DType::F32, &["fp32", "f32", "float32"]),
    (DType::F16, &["fp16", "f16", "float16"]),
    (DType::BF16, &["bf16", "bfloat16"]),
    (DType::U8, &["u8", "uint8"]),
    (DType::I8, &["i8"]),
    (DType::I32, &["i32", "int32"]),
    (DType::I64, &["i64", "int64"]),
];

/// The format of integers of four bits with scales.
pub const INT4: &str = "int4";

/// The format of integers of eight bits with scales.
pub const INT8: &str = "int8";

/// The order of integers of four bits: the lower half of a byte comes first.
pub const PACK: &str = "nibble_lohi";

/// The manifest's name of a format of single values; `None` if it has none.
pub fn type_name(dtype: DType) -> Option<&'static str> {
    TYPES.iter().find(|row| row.0 == dtype).map(|row| row.1[0])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawManifest {
    format: Option<String>,
    version: Option<u64>,
    bin: Option<String>,
    tensors: CappedList<RawIebinEntry>,
    #[serde(rename = "dtype")]
    _dtype: Option<String>,
    #[serde(rename = "tokenizer")]
    _tokenizer: Option<IgnoredAny>,
    #[serde(rename = "source")]
    _source: Option<IgnoredAny>,
    #[serde(rename = "dedup")]
    _dedup: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawIebinEntry {
    name: String,
    dtype: String,
    shape: Extents,
    offset: Option<u64>,
    nbytes: Option<u64>,
    file: Option<String>,
    file_data_offset: Option<u64>,
    shard: Option<String>,
    shard_data_offset: Option<u64>,
    quant: Option<RawQuant>,
}

/// How integers stand for numbers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawQuant {
    per: String,
    scale_bin: String,
    scale_dtype: Option<String>,
    pack: Option<String>,
    zp: Option<i64>,
    symmetric: Option<bool>,
}

/// Opens the folder whose files `open` opens by their plain names. `has_overlay` is whether one of them is [`OVERLAY`].
pub(crate) fn open(
    limits: &FileLimits,
    open: &dyn Fn(&str) -> Result<Shard>,
    has_overlay: bool,
) -> Result<Container> {
    let manifest = open(MANIFEST)?;
    let named = |error: Error| error.of(manifest.path.display());
    let raw = parse(&manifest.source, limits).map_err(named)?;
    let bin = raw.bin.as_deref().map_or(Ok(BIN), plain_name).map_err(|error| named(error.of("key 'bin'")))?;
    let path = manifest.path.clone();
    let mut folder = Folder::new(manifest, limits, open);
    if has_overlay {
        folder.add_overlay(raw.tensors.0.len() as u64)?;
    }
    for (entry, index) in raw.tensors.0.iter().zip(0..) {
        // The errors of other files have their names.
        let location = Location { bin, overlaid: folder.overlaid.get(&index).copied() };
        folder.add(entry, location).map_err(|fault| match fault {
            EntryFault::OfEntry(error) => {
                error.of(format!("tensor {}", quote(&entry.name))).of(path.display())
            }
            EntryFault::OfFile(error) => error,
        })?;
    }
    folder.check_overlaps().map_err(|error| error.of(path.display()))?;
    Ok(folder.container)
}

/// The bytes of a file of JSON.
fn read_json(source: &dyn ReadAt, limits: &FileLimits) -> Result<Vec<u8>> {
    let length = source.length();
    if length > limits.header_bytes {
        return Err(Error::new(format!("has {length} bytes; the cap is {}", limits.header_bytes)));
    }
    let mut json = vec![0; length as usize]; // bounded by the cap
    source.read_at(0, &mut json)?;
    Ok(json)
}

/// Reads the manifest and checks what does not concern its tensors.
fn parse(source: &dyn ReadAt, limits: &FileLimits) -> Result<RawManifest> {
    let json = read_json(source, limits)?;
    let raw: RawManifest = serde_json::from_slice(&json).map_err(|error| {
        Error::new(format!("is not a valid manifest of IEBIN: {}", shorten_parse(&error)))
    })?;
    if let Some(format) = raw.format.as_deref().filter(|format| *format != FORMAT) {
        return Err(refused(format!("has the format {}; girih reads {FORMAT}", quote(format))));
    }
    match raw.version {
        None | Some(1 | 2) if raw.tensors.0.is_empty() => Err(Error::new("lists no tensors")),
        None | Some(1 | 2) => Ok(raw),
        Some(version) => Err(refused(format!("has the version {version}; girih reads 1 and 2"))),
    }
}

/// An error, and whether its sentence already names its file.
enum EntryFault {
    OfEntry(Error),
    OfFile(Error),
}

impl From<Error> for EntryFault {
    fn from(error: Error) -> EntryFault {
        EntryFault::OfEntry(error)
    }
}

/// The folder, with the tensors so far.
struct Folder<'a> {
    container: Container,
    limits: &'a FileLimits,
    open: &'a dyn Fn(&str) -> Result<Shard>,
    /// The shard of each file.
    shards: BTreeMap<String, usize>,
    /// The headers of files of safetensors.
    headers: BTreeMap<usize, HeaderContents>,
    /// The bytes of each tensor as shard, first byte and end, with its name.
    extents: Vec<(usize, u64, u64, String)>,
    /// The tensors that the overlay lists.
    overlaid: OverlaidPlaces,
}

/// Where a tensor lies whose entry does not say it.
#[derive(Clone, Copy)]
struct Location<'a> {
    /// The file of tensors that name none.
    bin: &'a str,
    /// The shard, offset and length by the overlay.
    overlaid: Option<(usize, u64, u64)>,
}

impl<'a> Folder<'a> {
    /// A folder whose first file is the manifest: to change it is to change the model.
    fn new(manifest: Shard, limits: &'a FileLimits, open: &'a dyn Fn(&str) -> Result<Shard>) -> Folder<'a> {
        let mut container = Container::empty(ContainerKind::Iebin);
        container.shards.push(manifest);
        Folder {
            container,
            limits,
            open,
            shards: BTreeMap::new(),
            headers: BTreeMap::new(),
            extents: Vec::new(),
            overlaid: OverlaidPlaces::new(),
        }
    }

    /// Adds the files of the overlay, for a manifest of `tensors` tensors.
    fn add_overlay(&mut self, tensors: u64) -> Result<()> {
        let list = (self.open)(OVERLAY)?;
        let path = list.path.clone();
        let named = |error: Error| error.of(path.display());
        let json = read_json(&list.source, self.limits).map_err(named)?;
        let overlay = Overlay::parse(&json).map_err(named)?;
        self.container.shards.push(list);
        let mut shards = [0; 3];
        for (shard, file) in shards.iter_mut().zip(overlay.files()) {
            let name = plain_name(file).map_err(|error| named(error.of("key 'files'")))?;
            *shard = self.shard(name).map_err(|fault| match fault {
                EntryFault::OfEntry(error) => named(error),
                EntryFault::OfFile(error) => error,
            })?;
        }
        let [defaults, masks, exceptions] = shards;
        if defaults == masks || exceptions == defaults || exceptions == masks {
            let sentence = "names one file twice; defaults, masks and exceptions need a file each";
            return Err(named(Error::new(sentence).of("key 'files'")));
        }
        self.overlaid = overlay.add_to(&mut self.container, shards, tensors).map_err(named)?;
        Ok(())
    }

    /// Adds a tensor.
    fn add(&mut self, entry: &RawIebinEntry, location: Location<'_>) -> Result<(), EntryFault> {
        self.limits.check_name(&entry.name)?;
        if self.container.tensors.contains_key(&entry.name)
            || self.container.unreadable.contains_key(&entry.name)
        {
            return Err(Error::new("occurs twice").into());
        }
        let kind = entry.dtype.to_ascii_lowercase();
        let dtype = TYPES.iter().find(|row| row.1.contains(&kind.as_str())).map(|row| row.0);
        let bits = [(INT4, CodeBits::Four), (INT8, CodeBits::Eight)];
        let bits = bits.iter().find(|row| row.0 == kind).map(|row| row.1);
        match (dtype, bits) {
            (_, Some(bits)) => self.add_matrix(entry, bits, location),
            (_, None) if entry.quant.is_some() => {
                let kind = quote(&entry.dtype);
                Err(Error::new(format!(
                    "has the key 'quant', but {kind} has no scales; {INT4} and {INT8} have"
                ))
                .into())
            }
            (Some(dtype), None) => self.add_plain(entry, dtype, location),
            (None, None) => self.add_unreadable(entry, location),
        }
    }

    /// Adds a tensor of single values.
    fn add_plain(
        &mut self,
        entry: &RawIebinEntry,
        dtype: DType,
        location: Location<'_>,
    ) -> Result<(), EntryFault> {
        let bytes = entry.shape.bytes(8 * dtype.block_bytes() as u64)?;
        let (shard, offset) = self.place(entry, bytes, location)?;
        if !entry.shape.is_supported() {
            return self.keep_unreadable(entry, shard, entry.shape.too_many());
        }
        let info = TensorInfo { dtype, shape: entry.shape.checked()?, shard, offset, bytes };
        self.check_header(entry, shard, |found| *found == TensorInfo { shard: 0, ..info.clone() })?;
        self.container.tensors.insert(entry.name.clone(), info);
        Ok(())
    }

    /// Adds a tensor in a format that girih does not read. Its size is known only from the manifest.
    fn add_unreadable(&mut self, entry: &RawIebinEntry, location: Location<'_>) -> Result<(), EntryFault> {
        let bytes = entry.nbytes.ok_or_else(|| Error::new("has no key 'nbytes'"))?;
        let (shard, _) = self.place(entry, bytes, location)?;
        self.keep_unreadable(entry, shard, unread_type(&entry.dtype))
    }

    fn keep_unreadable(
        &mut self,
        entry: &RawIebinEntry,
        shard: usize,
        why: String,
    ) -> Result<(), EntryFault> {
        self.container.unreadable.insert(entry.name.clone(), UnreadableTensor { shard, why, words: None });
        Ok(())
    }

    /// Adds a matrix of integers with scales, as a tensor that is made while it is read.
    fn add_matrix(
        &mut self,
        entry: &RawIebinEntry,
        bits: CodeBits,
        location: Location<'_>,
    ) -> Result<(), EntryFault> {
        let missing = || Error::new(format!("is {}, but has no key 'quant'", quote(&entry.dtype)));
        let quant = entry.quant.as_ref().ok_or_else(missing)?;
        if !entry.shape.is_supported() {
            return Err(refused(entry.shape.too_many()).into());
        }
        let shape = entry.shape.checked()?;
        let is_by_row = quant.check(bits)?;
        let bytes = bits.stored_bytes(&shape)?;
        let (shard, offset) = self.place(entry, bytes, location)?;
        self.check_header(entry, shard, |found| (found.offset, found.bytes) == (offset, bytes))?;
        let codes = TensorInfo {
            dtype: DType::U8,
            shape: Shape::new(&[usize::try_from(bytes).map_err(|_| too_large(bytes))?])?,
            shard,
            offset,
            bytes,
        };
        let scales = self.scales(quant, if is_by_row { shape.rows() } else { 1 })?;
        let matrix = IebinMatrix::new(&self.container, &entry.name, bits, (codes, scales), shape)?;
        let info = matrix.info()?;
        let shard = self.container.add_made(Box::new(matrix), shard);
        self.container.tensors.insert(entry.name.clone(), TensorInfo { shard, ..info });
        Ok(())
    }

    /// The scales of a matrix: all of the file that `quant` names.
    fn scales(&mut self, quant: &RawQuant, count: usize) -> Result<TensorInfo, EntryFault> {
        let of = |error: Error| error.of("key 'scale_bin'");
        let kind = quant.scale_dtype.as_deref().unwrap_or("fp16");
        let dtype = match kind.to_ascii_lowercase().as_str() {
            "fp16" | "f16" => DType::F16,
            "fp32" | "f32" => DType::F32,
            _ => {
                return Err(refused(format!("has scales of {}; fp16 and fp32 are known", quote(kind))).into());
            }
        };
        let name = plain_name(&quant.scale_bin).map_err(of)?;
        let shard = self.shard(name)?;
        let shape = Shape::new(&[count])?;
        let (bytes, held) = (dtype.bytes(&shape)? as u64, self.container.shards[shard].source.length());
        if bytes != held {
            let sentence =
                format!("{} has {held} bytes, but {count} scales of {kind} take {bytes} bytes", quote(name));
            return Err(of(Error::new(sentence)).into());
        }
        Ok(TensorInfo { dtype, shape, shard, offset: 0, bytes })
    }

    /// The shard and the offset of a tensor of this size, which lies within its file.
    fn place(
        &mut self,
        entry: &RawIebinEntry,
        bytes: u64,
        location: Location<'_>,
    ) -> Result<(usize, u64), EntryFault> {
        if let Some(stated) = entry.nbytes.filter(|stated| *stated != bytes) {
            let (shape, kind) = (&entry.shape, quote(&entry.dtype));
            return Err(
                Error::new(format!("has {stated} bytes, but {shape} of {kind} takes {bytes} bytes")).into()
            );
        }
        let Some(overlaid) = location.overlaid else { return self.place_in_file(entry, bytes, location.bin) };
        if entry.has_location() {
            // Its own place is checked like any other; the bytes of the overlay count.
            self.place_in_file(entry, bytes, location.bin)?;
        }
        match overlaid {
            (shard, offset, found) if found == bytes => {
                self.extents.push((shard, offset, offset + bytes, entry.name.clone())); // the end is within the file
                Ok((shard, offset))
            }
            (_, _, found) => {
                Err(Error::new(format!("has {bytes} bytes, but {found} bytes in {OVERLAY}")).into())
            }
        }
    }

    /// The shard and the offset of a tensor of this size by its entry.
    fn place_in_file(
        &mut self,
        entry: &RawIebinEntry,
        bytes: u64,
        bin: &str,
    ) -> Result<(usize, u64), EntryFault> {
        let file = one_of(("file", &entry.file), ("shard", &entry.shard))?;
        let offsets =
            (("file_data_offset", &entry.file_data_offset), ("shard_data_offset", &entry.shard_data_offset));
        let offset = one_of(offsets.0, offsets.1)?;
        let (name, offset) = match (file, offset) {
            (Some(_), Some(_)) if entry.offset.is_some() => {
                return Err(refused(
                    "has both an offset in its own file and the key 'offset'; remove one".to_owned(),
                )
                .into());
            }
            (Some(file), Some(offset)) => {
                (plain_name(file).map_err(|error| error.of("key 'file'"))?, *offset)
            }
            (Some(_), None) => {
                return Err(Error::new("has the key 'file', but no key 'file_data_offset'").into());
            }
            (None, Some(_)) => {
                return Err(Error::new("has the key 'file_data_offset', but no key 'file'").into());
            }
            (None, None) => (bin, entry.offset.ok_or_else(|| Error::new("has no key 'offset'"))?),
        };
        let shard = self.shard(name)?;
        let held = self.container.shards[shard].source.length();
        let Some(end) = offset.checked_add(bytes).filter(|end| *end <= held) else {
            let sentence = format!("has {bytes} bytes at {offset}, but {} has {held} bytes", quote(name));
            return Err(Error::new(sentence).into());
        };
        self.extents.push((shard, offset, end, entry.name.clone()));
        Ok((shard, offset))
    }

    /// The shard of a file, which is opened when it is first named.
    fn shard(&mut self, name: &str) -> Result<usize, EntryFault> {
        if let Some(shard) = self.shards.get(name) {
            return Ok(*shard);
        }
        let index = self.container.shards.len();
        if index > self.limits.shards as usize {
            return Err(
                Error::new(format!("needs one more file than the cap of {}", self.limits.shards)).into()
            );
        }
        let shard = (self.open)(name).map_err(EntryFault::OfFile)?;
        if name.ends_with(".safetensors") {
            let header = safetensors::parse(&shard.source, self.limits);
            let header = header.map_err(|error| EntryFault::OfFile(error.of(shard.path.display())))?;
            self.headers.insert(index, header);
        }
        self.container.shards.push(shard);
        self.shards.insert(name.to_owned(), index);
        Ok(index)
    }

    /// Compares a tensor with the header of its file, if that is one of safetensors. So an offset that counts from the data
    /// instead of from the file's beginning is found.
    fn check_header(
        &self,
        entry: &RawIebinEntry,
        shard: usize,
        is_same: impl Fn(&TensorInfo) -> bool,
    ) -> Result<(), EntryFault> {
        let Some(header) = self.headers.get(&shard) else { return Ok(()) };
        match header.tensors.get(&entry.name) {
            Some(found) if is_same(found) => Ok(()),
            Some(TensorInfo { dtype, shape, offset, .. }) => Err(Error::new(format!(
                "is {dtype} {shape} at {offset} by the header of its file, which the manifest contradicts"
            ))
            .into()),
            None => Err(Error::new("is not in the header of its file").into()),
        }
    }

    /// Checks that tensors which share bytes share all of them.
    fn check_overlaps(&mut self) -> Result<()> {
        self.extents.sort();
        let mut last: Option<&(usize, u64, u64, String)> = None;
        for extent in self.extents.iter().filter(|(_, start, end, _)| start < end) {
            if let Some((shard, start, end, name)) = last
                && *shard == extent.0
                && extent.1 < *end
                && (*start, *end) != (extent.1, extent.2)
            {
                let names = (quote(name), quote(&extent.3));
                return Err(Error::new(format!(
                    "the tensors {} and {} share some of their bytes, but not all",
                    names.0, names.1
                )));
            }
            last = Some(extent);
        }
        Ok(())
    }
}

impl RawIebinEntry {
    /// Whether it says where the bytes lie.
    fn has_location(&self) -> bool {
        let files = [&self.file, &self.shard].iter().any(|file| file.is_some());
        files
            || [self.offset, self.file_data_offset, self.shard_data_offset]
                .iter()
                .any(|offset| offset.is_some())
    }
}

impl RawQuant {
    /// Checks how the integers stand for numbers; returns whether each row has a scale of its own.
    fn check(&self, bits: CodeBits) -> Result<bool> {
        let is_by_row = match self.per.as_str() {
            "row" => true,
            "tensor" => false,
            per => return Err(refused(format!("has scales per {}; row and tensor are known", quote(per)))),
        };
        if let Some(zero) = self.zp.filter(|zero| *zero != 0) {
            return Err(refused(format!("has the zero point {zero}; girih reads integers around 0")));
        }
        if self.symmetric == Some(false) {
            return Err(refused("is not symmetric; girih reads integers around 0".to_owned()));
        }
        match (bits, self.pack.as_deref()) {
            (CodeBits::Four, None | Some(PACK)) | (CodeBits::Eight, None) => Ok(is_by_row),
            (CodeBits::Four, Some(pack)) => {
                Err(refused(format!("is packed as {}; {PACK} is known", quote(pack))))
            }
            (CodeBits::Eight, Some(pack)) => Err(refused(format!(
                "is packed as {}, but integers of eight bits are not packed",
                quote(pack)
            ))),
        }
    }
}

/// The value of a key with two names.
fn one_of<'v, T: PartialEq>(
    (first, one): (&str, &'v Option<T>),
    (second, other): (&str, &'v Option<T>),
) -> Result<Option<&'v T>> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => {
            Err(Error::new(format!("has different values of '{first}' and '{second}', which mean the same")))
        }
        (one, other) => Ok(one.as_ref().or(other.as_ref())),
    }
}

/// The last component of a path: a file of the folder.
pub(crate) fn plain_name(path: &str) -> Result<&str> {
    let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
    let has_ending =
        [".bin", ".safetensors"].iter().any(|ending| name.len() > ending.len() && name.ends_with(ending));
    if has_ending && !name.contains('\0') {
        return Ok(name);
    }
    Err(Error::new(format!(
        "names the file {}; a name that ends in .bin or .safetensors is needed",
        quote(path)
    )))
}

fn too_large(bytes: u64) -> Error {
    Error::new(format!("has {bytes} bytes, which exceed the address space"))
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}
