//! The prompt cache: the state of prompts and replies in a folder, kept between runs of a program.
//!
//! ```text
//! PROMPT_MAGIC 8 | PROMPT_FORMAT u32 | identity 16
//! length of the tenant u32 | tenant | count of tokens u32 | tokens | count of groups u32
//! for each group: first block u32 | count of blocks u32 | bytes of a block u64 | blocks
//! a digest of everything before u64
//! ```
//! Numbers are little-endian. The identity names the model's files, its graph, the kernels and their
//! rounding, so state is never used by another program than the one that computed it. A note tells of files
//! that would be used with another type of KV cache. The digest is
//! XXH3; it detects damage, not forgery. So the folder must be writable by this user only.

use std::collections::hash_map::RandomState;
use std::fs::Permissions;
use std::hash::BuildHasher;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::SystemTime;

use girih_engine::{Engine, SavedBlocks, SavedPrefix, Tenant};
use girih_file::PrivateFolder;
use girih_graph::{Error, ErrorKind, Key, Result, STATE_TYPES, WeightSource as _};
use girih_model::GraphOptions;
use girih_tensor::DType;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

use crate::model::Model;
use crate::plan::Plan;
use crate::progress::LoadControl;
use crate::run_options::PromptCache;

const PROMPT_MAGIC: &[u8; 8] = b"girihkvs";

/// The version of the format in the module's documentation.
const PROMPT_FORMAT: u32 = 1;

/// The suffix of complete files.
const PROMPT_SUFFIX: &str = ".prompt";

/// The suffix of files that are being written.
const PARTIAL_SUFFIX: &str = ".prompt-part";

/// The prompt cache of one planned model.
pub(crate) struct PromptStore {
    options: PromptCache,
    /// Equal identities mean state of the same meaning.
    identity: u128,
    source: IdentitySource,
    control: Arc<LoadControl>,
}

/// What the identity of a program's state is made of.
struct IdentitySource {
    /// The model's files, the kernels and their rounding.
    text: String,
    model: Model,
    key: Key,
    options: GraphOptions,
}

impl IdentitySource {
    /// The identity of the state if the KV cache has this type.
    fn identity(&self, kv: DType) -> Result<u128> {
        // Hidden states of drafts change no state.
        let options = GraphOptions { state: kv, hidden_rows: false, ..self.options };
        let graph = self.model.files().graph(self.key, options)?;
        Ok(xxh3_128(format!("{}\n{graph}", self.text).as_bytes()))
    }
}

/// A file of the folder.
struct PromptFile {
    name: String,
    bytes: u64,
    used: SystemTime,
}

impl PromptStore {
    /// The prompt cache that a plan asks for.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the model's files have no identity.
    pub fn of(plan: &Plan) -> Result<Option<PromptStore>> {
        let Some(options) = plan.options().prompt_cache.clone() else { return Ok(None) };
        let files = plan.model().files();
        let Some(weights) = files.weights.identity() else {
            let name = plan.model().name();
            let sentence = format!(
                "a prompt cache was requested, but {name} is not read from a file, which would identify it: \
                 request none, or use a model file"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        };
        // State does not depend on the sizes of steps.
        let key = Key { rows: 1, sequences: 1, output_rows: 1, ..plan.key() };
        let (backend, kernels, numerics) = (plan.backend(), plan.kernels(), plan.numerics());
        let text = format!(
            "{PROMPT_FORMAT}\n{}\n{weights:?}\n{backend}\n{kernels}\n{numerics:?}",
            env!("CARGO_PKG_VERSION")
        );
        let source = IdentitySource { text, model: plan.model().clone(), key, options: plan.graph_options() };
        let control = Arc::clone(plan.services().control());
        let identity = source.identity(source.options.state)?;
        Ok(Some(PromptStore { options, identity, source, control }))
    }

    /// Reads what fits into the engine's blocks, the most recently used first. A failure is a note.
    pub fn restore(&self, engine: &mut Engine) {
        if let Err(error) = self.try_restore(engine) {
            self.note(&error);
        }
    }

    /// Writes the engine's prefixes. A failure is a note.
    pub fn save(&self, engine: &mut Engine) {
        if let Err(error) = self.try_save(engine) {
            self.note(&error);
        }
    }

    fn note(&self, error: &Error) {
        self.control.note(format!("prompt cache in {}: {error}", self.options.folder.display()));
    }

    fn try_restore(&self, engine: &mut Engine) -> Result<()> {
        let Some(folder) = PrivateFolder::open(&self.options.folder)? else { return Ok(()) };
        let mut room: Vec<usize> = engine.cache().free();
        let mut found = Vec::new();
        let own = prefix_of(self.identity);
        let files = self.files()?;
        self.note_other_types(&files);
        for file in files.iter().rev().filter(|file| file.name.starts_with(&own)) {
            let prefix = match self.read(&folder, file) {
                Ok(prefix) => prefix,
                Err(error) => {
                    self.note(&error.of(&file.name));
                    continue;
                }
            };
            let need = || prefix.groups.iter().map(|group| group.blocks.len());
            if room.len() != prefix.groups.len() || !need().zip(&room).all(|(need, room)| need <= *room) {
                break;
            }
            room.iter_mut().zip(need()).for_each(|(room, need)| *room -= need);
            found.push(prefix);
        }
        // The most recently used one is restored last, so that it is evicted last.
        for prefix in found.into_iter().rev() {
            engine.restore_prefix(prefix)?;
        }
        Ok(())
    }

    /// Tells how many files would be used if the KV cache had another type.
    fn note_other_types(&self, files: &[PromptFile]) {
        let own = prefix_of(self.identity);
        if files.iter().all(|file| file.name.starts_with(&own)) {
            return;
        }
        let kv = self.source.options.state;
        for other in STATE_TYPES.into_iter().filter(|other| *other != kv) {
            // A model that cannot have this type has no files of it.
            let Ok(identity) = self.source.identity(other) else { continue };
            let theirs = prefix_of(identity);
            let count = files.iter().filter(|file| file.name.starts_with(&theirs)).count();
            if count > 0 {
                self.note(&Error::new(format!(
                    "{count} of the saved prompts are not used: their keys and values are {other}, \
                     and the KV cache is {kv}; use --kv {other}, or remove the files {theirs}*"
                )));
            }
        }
    }

    /// Reads a file of this identity.
    fn read(&self, folder: &PrivateFolder, file: &PromptFile) -> Result<SavedPrefix> {
        if file.bytes > self.options.limit {
            let (have, limit) = (file.bytes, self.options.limit);
            return Err(Error::new(format!("ignored: {have} bytes exceed the limit of {limit}")));
        }
        let unread = |error: io::Error| Error::new(format!("cannot be read: {error}"));
        let opened = folder.file(&file.name)?.ok_or_else(|| Error::new("was removed meanwhile"))?;
        let mut bytes = Vec::new();
        opened.take(self.options.limit).read_to_end(&mut bytes).map_err(unread)?;
        decode(&bytes, self.identity).ok_or_else(|| {
            // Otherwise its name would keep the same prefix from being written again.
            let end = if folder.remove(&file.name).is_ok() { " and was removed" } else { "; remove it" };
            Error::new(format!("is damaged{end}"))
        })
    }

    fn try_save(&self, engine: &mut Engine) -> Result<()> {
        let (mut kept, mut bytes): (Vec<SavedPrefix>, u64) = (Vec::new(), 0);
        engine.save_prefixes(|prefix| {
            // One that begins a longer one is found there.
            let begins = |longer: &SavedPrefix| {
                longer.tenant == prefix.tenant
                    && longer.tokens.starts_with(&prefix.tokens)
                    && longer.groups.iter().all(|group| group.first == 0)
            };
            if kept.iter().any(begins) {
                return true;
            }
            let after = bytes + size(&prefix);
            let fits = after <= self.options.limit;
            if fits {
                bytes = after;
                kept.push(prefix);
            }
            // One that is larger than the limit alone does not keep older ones out.
            fits || kept.is_empty()
        })?;
        if kept.is_empty() {
            return Ok(());
        }
        let folder = PrivateFolder::create(&self.options.folder)?;
        // The most recently used one is written last, so that it is removed last.
        for prefix in kept.into_iter().rev() {
            self.write(&folder, &prefix).map_err(|error| Error::new(format!("not kept: {error}")))?;
        }
        Ok(())
    }

    /// Writes a prefix, or marks its file as used if there is one.
    fn write(&self, folder: &PrivateFolder, prefix: &SavedPrefix) -> io::Result<()> {
        let name = format!("{}{:032x}{PROMPT_SUFFIX}", prefix_of(self.identity), content_key(prefix));
        if let Ok(Some(file)) = folder.file(&name) {
            return file.set_modified(SystemTime::now());
        }
        self.make_room(folder, size(prefix))?;
        let partial = format!("{name}.{:016x}{PARTIAL_SUFFIX}", RandomState::new().hash_one(0));
        let mut file = folder.new_file(&partial)?;
        let written = (|| {
            encode(prefix, self.identity, &mut file)?;
            file.set_permissions(Permissions::from_mode(0o400))?;
            file.sync_all()?;
            folder.rename(&partial, &name)?;
            folder.sync()
        })();
        if written.is_err() {
            // The first error is the one to be told.
            let _ = folder.remove(&partial);
        }
        written
    }

    /// Removes files, the least recently used first, until `bytes` more are within the limit.
    fn make_room(&self, folder: &PrivateFolder, bytes: u64) -> io::Result<()> {
        let files = self.files().map_err(io::Error::other)?;
        let mut kept: u64 = files.iter().map(|file| file.bytes).sum();
        for file in files {
            if kept.saturating_add(bytes) <= self.options.limit {
                break;
            }
            folder.remove(&file.name)?;
            kept -= file.bytes;
        }
        Ok(())
    }

    /// The files of the folder, of all models, the least recently used first; those that a killed
    /// program left incomplete count, too.
    fn files(&self) -> Result<Vec<PromptFile>> {
        let unread = |error: io::Error| Error::new(format!("cannot be read: {error}"));
        let mut files = Vec::new();
        for entry in self.options.folder.read_dir().map_err(unread)? {
            let entry = entry.map_err(unread)?;
            // Another process may have removed it meanwhile.
            let (Ok(status), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) else {
                continue;
            };
            let is_ours = name.ends_with(PROMPT_SUFFIX) || name.ends_with(PARTIAL_SUFFIX);
            if is_ours && status.is_file() {
                files.push(PromptFile {
                    name,
                    bytes: status.len(),
                    used: status.modified().map_err(unread)?,
                });
            }
        }
        files.sort_by(|a, b| a.used.cmp(&b.used).then_with(|| a.name.cmp(&b.name)));
        Ok(files)
    }
}

/// The beginning of the names of files of this identity.
fn prefix_of(identity: u128) -> String {
    format!("{identity:032x}-")
}

/// A key of the tenant and the tokens.
fn content_key(prefix: &SavedPrefix) -> u128 {
    xxh3_128(&head(prefix))
}

/// The tenant and the tokens.
fn head(prefix: &SavedPrefix) -> Vec<u8> {
    let (name, tokens) = (prefix.tenant.key(), &prefix.tokens);
    let mut bytes = Vec::new();
    bytes.extend((name.len() as u32).to_le_bytes());
    bytes.extend(name);
    bytes.extend((tokens.len() as u32).to_le_bytes());
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    bytes
}

/// The size of a prefix's file, without making its contents.
fn size(prefix: &SavedPrefix) -> u64 {
    // The magic number, the format, the identity, the number of groups and the digest.
    const FIXED_BYTES: usize = PROMPT_MAGIC.len() + 4 + 16 + 4 + 8;
    const GROUP_BYTES: usize = 4 + 4 + 8;
    let blocks = prefix.groups.iter().flat_map(|group| &group.blocks).map(Vec::len).sum::<usize>();
    (FIXED_BYTES + head(prefix).len() + GROUP_BYTES * prefix.groups.len() + blocks) as u64
}

/// Writes the contents of a file, block by block: a copy of a whole prefix may not fit into the memory.
fn encode(prefix: &SavedPrefix, identity: u128, out: impl Write) -> io::Result<()> {
    let mut out = DigestingWriter { out: BufWriter::new(out), digest: Xxh3::new() };
    out.write_all(PROMPT_MAGIC)?;
    out.write_all(&PROMPT_FORMAT.to_le_bytes())?;
    out.write_all(&identity.to_le_bytes())?;
    out.write_all(&head(prefix))?;
    out.write_all(&(prefix.groups.len() as u32).to_le_bytes())?;
    for SavedBlocks { first, blocks } in &prefix.groups {
        out.write_all(&first.to_le_bytes())?;
        out.write_all(&(blocks.len() as u32).to_le_bytes())?;
        let length = blocks.first().map_or(0, Vec::len) as u64;
        out.write_all(&length.to_le_bytes())?;
        blocks.iter().try_for_each(|block| out.write_all(block))?;
    }
    let digest = out.digest.digest();
    out.write_all(&digest.to_le_bytes())?;
    out.flush()
}

/// Writes bytes and computes their digest.
struct DigestingWriter<W> {
    out: W,
    digest: Xxh3,
}

impl<W: Write> Write for DigestingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The prefix in a file of this identity; `None` if a byte is wrong.
fn decode(bytes: &[u8], identity: u128) -> Option<SavedPrefix> {
    let (body, digest) = bytes.split_last_chunk::<8>()?;
    if xxh3_64(body).to_le_bytes() != *digest {
        return None;
    }
    let mut rest = Bytes(body);
    let is_ours = rest.take(8)? == PROMPT_MAGIC
        && rest.number()? == PROMPT_FORMAT
        && rest.take(16)? == identity.to_le_bytes();
    if !is_ours {
        return None;
    }
    let length = rest.number()?;
    let tenant = Tenant::from_key(rest.take(u64::from(length))?)?;
    let count = rest.number()?;
    let tokens = rest.take(4 * u64::from(count))?.chunks_exact(4);
    let tokens = tokens.map(|token| u32::from_le_bytes(token.try_into().expect("4 bytes"))).collect();
    let mut groups = Vec::new();
    for _ in 0..rest.number()? {
        let (first, count) = (rest.number()?, rest.number()?);
        let length = u64::from_le_bytes(rest.take(8)?.try_into().expect("8 bytes"));
        // A block has bytes, so the file's length bounds the number of blocks.
        let blocks = (0..count).map(|_| Some(rest.take(length)?.to_vec()).filter(|block| !block.is_empty()));
        groups.push(SavedBlocks { first, blocks: blocks.collect::<Option<_>>()? });
    }
    rest.0.is_empty().then_some(SavedPrefix { tenant, tokens, groups })
}

/// The bytes that are not read yet.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix() -> SavedPrefix {
        let blocks = |first, count| SavedBlocks { first, blocks: vec![vec![7; 30]; count] };
        let groups = vec![blocks(0, 3), blocks(2, 1)];
        SavedPrefix { tenant: Tenant::new("a"), tokens: (0..150).collect(), groups }
    }

    /// The contents of a file.
    fn encoded(prefix: &SavedPrefix, identity: u128) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(prefix, identity, &mut bytes).unwrap();
        bytes
    }

    /// The largest write is one block, however many there are.
    #[test]
    fn a_file_is_written_block_by_block() {
        struct Largest(usize);
        impl Write for Largest {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.max(bytes.len());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let blocks = vec![vec![7; 50_000]; 20];
        let groups = vec![SavedBlocks { first: 0, blocks }];
        let (prefix, mut largest) = (SavedPrefix { groups, ..prefix() }, Largest(0));
        encode(&prefix, 5, &mut largest).unwrap();
        assert_eq!(largest.0, 50_000);
    }

    #[test]
    fn a_file_has_the_prefix_that_was_written() {
        let mut prefix = prefix();
        assert_eq!(decode(&encoded(&prefix, 5), 5), Some(prefix.clone()));
        assert_eq!(decode(&encoded(&prefix, 5), 6), None, "of another model");
        let key = content_key(&prefix);
        prefix.tenant = Tenant::default();
        assert_eq!(decode(&encoded(&prefix, 5), 5), Some(prefix.clone()));
        assert_ne!(content_key(&prefix), key);
    }

    #[test]
    fn a_damaged_file_is_not_read() {
        let bytes = encoded(&prefix(), 5);
        assert_eq!(bytes.len() as u64, size(&prefix()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged, 5), None, "byte {at}");
            assert_eq!(decode(&bytes[..at], 5), None, "{at} bytes");
            // Wrong lengths with a right digest are no panic and allocate nothing.
            let body = damaged.len() - 8;
            let digest = xxh3_64(&damaged[..body]).to_le_bytes();
            damaged[body..].copy_from_slice(&digest);
            let _ = decode(&damaged, 5);
        }
    }
}
