//! What a session's prefix cache gains and loses, for programs that route requests to where their prompts are cached.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use girih_engine::cache::{PrefixCache, SequenceId};
use girih_engine::{PositionKey, Tenant};
use girih_graph::BLOCK_POSITIONS;
use sha2::{Digest as _, Sha256};

/// A function that is told what the prefix cache of a session gains and loses, on the engine's thread and between two
/// steps: it must not wait.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use girih::{CacheObserver, Model, Request, RunOptions};
///
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let events = Arc::clone(&seen);
/// let observer = CacheObserver::new("stories260k", move |new| events.lock().unwrap().extend(new));
/// let options = RunOptions { cache_observer: Some(observer), ..RunOptions::default() };
/// let session = Model::open("stories260k")?.plan(options)?.start(|_| {})?;
/// session.generate(Request::new("Once upon a time").max_tokens(100))?.text()?;
/// drop(session);
/// assert_eq!(seen.lock().unwrap().len(), 2, "a block of 64 tokens was stored, and the engine has ended");
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone)]
pub struct CacheObserver {
    model: Arc<str>,
    tell: Arc<dyn Fn(Vec<CacheEvent>) + Send + Sync>,
}

/// What happened to blocks of a prefix cache. A block is 64 tokens of a prompt or reply that
/// follow certain other tokens; however many sequences hold it, it is stored once.
///
/// ```
/// fn removed(event: &girih::CacheEvent) -> &[u64] {
///     match event {
///         girih::CacheEvent::Removed(blocks) | girih::CacheEvent::Cleared(blocks) => blocks,
///         _ => &[],
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// These blocks were stored.
    Stored(StoredBlocks),
    /// The blocks with these hashes were removed.
    Removed(Vec<u64>),
    /// The engine has ended, and with it the blocks with these hashes: all that it had.
    Cleared(Vec<u64>),
}

/// Blocks that follow each other. A hash is the same in each process that stores the same block under the same name of
/// its model, and another one for other tokens before it, another tenant, adapter or image.
///
/// ```
/// fn tokens(blocks: &girih::StoredBlocks) -> usize {
///     blocks.hashes.len() * 64
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredBlocks {
    /// The hash of each.
    pub hashes: Vec<u64>,
    /// The hash of the block before them; `None` if they are at the start of a prompt.
    pub parent: Option<u64>,
    /// The tokens of all, 64 of each.
    pub tokens: Vec<u32>,
    /// For each block, the SHA-256 of the images that have rows in it.
    pub images: Vec<Vec<[u8; 32]>>,
    /// Whose they are.
    pub tenant: Tenant,
    /// The name of the adapter that they were computed with.
    pub adapter: Option<String>,
}

impl CacheObserver {
    /// An observer of a model that is served under this name, which is part of the hashes.
    ///
    /// ```
    /// let observer = girih::CacheObserver::new("stories260k", |events| println!("{events:?}"));
    /// # let _ = observer;
    /// ```
    pub fn new(model: &str, tell: impl Fn(Vec<CacheEvent>) + Send + Sync + 'static) -> CacheObserver {
        CacheObserver { model: model.into(), tell: Arc::new(tell) }
    }
}

impl fmt::Debug for CacheObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheObserver").field("model", &self.model).finish_non_exhaustive()
    }
}

/// What the blocks of an engine are hashed with.
struct BlockHasher {
    model: Arc<str>,
    /// The names of the model's adapters by their indices.
    adapters: Vec<String>,
}

impl BlockHasher {
    /// The first 64 bits of a SHA-256 over what a block holds and all that is before it.
    fn block_hash(&self, tenant: &Tenant, parent: Option<u64>, block: &[PositionKey]) -> u64 {
        let mut digest = Sha256::new();
        match parent {
            Some(parent) => digest.update(parent.to_le_bytes()),
            None => {
                for part in [self.model.as_bytes(), &tenant.key()] {
                    update_with_length(&mut digest, part);
                }
            }
        }
        for key in block {
            digest.update(token(key).to_le_bytes());
            let PositionKey::Content(content) = key else { continue };
            if let Some((image, row)) = content.given {
                digest.update(b"g");
                digest.update(image);
                digest.update(row.to_le_bytes());
            }
            if let Some((index, length)) = content.span {
                digest.update(b"s");
                digest.update(index.to_le_bytes());
                digest.update(length.to_le_bytes());
            }
            if let Some(name) = self.adapter(key) {
                digest.update(b"n");
                update_with_length(&mut digest, name.as_bytes());
            }
        }
        let hash: [u8; 32] = digest.finalize().into();
        u64::from_be_bytes(hash[..8].try_into().expect("32 bytes begin with eight"))
    }

    /// The name of the adapter that a position has.
    fn adapter(&self, key: &PositionKey) -> Option<&str> {
        let PositionKey::Content(content) = key else { return None };
        content.adapter.map(|index| self.adapters[index as usize].as_str())
    }
}

/// The whole blocks of a sequence that were told.
#[derive(Default)]
struct KnownSequence {
    hashes: Vec<u64>,
    adapter: Option<String>,
}

/// Compares the prefix cache of an engine with what it was before. When it is dropped, the engine has ended.
pub(crate) struct ObservedCache {
    observer: CacheObserver,
    hasher: BlockHasher,
    known: HashMap<SequenceId, KnownSequence>,
    /// The number of known sequences that have each block.
    holders: HashMap<u64, u32>,
}

impl ObservedCache {
    /// The cache of an engine of a model with these adapters, in order.
    pub fn new<'a>(observer: CacheObserver, adapters: impl IntoIterator<Item = &'a str>) -> ObservedCache {
        let adapters = adapters.into_iter().map(str::to_owned).collect();
        let hasher = BlockHasher { model: Arc::clone(&observer.model), adapters };
        ObservedCache { observer, hasher, known: HashMap::new(), holders: HashMap::new() }
    }

    /// Tells what has changed since the last call.
    pub fn look(&mut self, cache: &PrefixCache<PositionKey>) {
        let mut changes = Changes::default();
        let present: HashSet<SequenceId> = cache.sequences().map(|(id, _)| id).collect();
        self.known.retain(|id, sequence| {
            let is_present = present.contains(id);
            if !is_present {
                changes.released.append(&mut sequence.hashes);
            }
            is_present
        });
        for (id, keys) in cache.sequences() {
            let blocks = keys.len() / BLOCK_POSITIONS;
            let known = self.known.entry(id).or_default();
            if blocks < known.hashes.len() {
                changes.released.extend(known.hashes.drain(blocks..));
            } else if blocks > known.hashes.len() {
                let (tenant, _) = cache.content(id);
                let run = known.extend(&self.hasher, tenant, &keys[..blocks * BLOCK_POSITIONS]);
                changes.runs.push(run);
            }
        }
        let events = self.events(changes);
        if !events.is_empty() {
            (self.observer.tell)(events);
        }
    }

    /// The events of changes: what is released and held again in one step has none.
    fn events(&mut self, changes: Changes) -> Vec<CacheEvent> {
        let Changes { released, runs } = changes;
        let mut events = Vec::new();
        for run in runs {
            // Other sequences have the first ones, or none: a hash is of all blocks before it, too.
            let mut held = 0;
            for hash in &run.hashes {
                let holders = self.holders.entry(*hash).or_default();
                held += usize::from(*holders > 0);
                *holders += 1;
            }
            let stored = run.behind(held);
            if !stored.hashes.is_empty() {
                events.push(CacheEvent::Stored(stored));
            }
        }
        let removed = released.into_iter().filter(|hash| {
            let Some(holders) = self.holders.get_mut(hash) else { return false };
            *holders -= 1;
            let is_last = *holders == 0;
            if is_last {
                self.holders.remove(hash);
            }
            is_last
        });
        let removed: Vec<u64> = removed.collect();
        if !removed.is_empty() {
            events.push(CacheEvent::Removed(removed));
        }
        events
    }
}

impl Drop for ObservedCache {
    fn drop(&mut self) {
        let mut blocks: Vec<u64> = self.holders.drain().map(|(hash, _)| hash).collect();
        if !blocks.is_empty() {
            blocks.sort_unstable();
            (self.observer.tell)(vec![CacheEvent::Cleared(blocks)]);
        }
    }
}

/// What differs from the last look.
#[derive(Default)]
struct Changes {
    /// The hashes that sequences do not have any more.
    released: Vec<u64>,
    /// The blocks that they have now.
    runs: Vec<StoredBlocks>,
}

impl KnownSequence {
    /// Adds the blocks of `keys`, all of the sequence's, that are not known yet; returns them.
    fn extend(&mut self, hasher: &BlockHasher, tenant: &Tenant, keys: &[PositionKey]) -> StoredBlocks {
        let from = self.hashes.len();
        if let (0, Some(first)) = (from, keys.first()) {
            self.adapter = hasher.adapter(first).map(str::to_owned);
        }
        let mut run = StoredBlocks {
            parent: self.hashes.last().copied(),
            tenant: tenant.clone(),
            adapter: self.adapter.clone(),
            ..StoredBlocks::default()
        };
        for block in keys.chunks_exact(BLOCK_POSITIONS).skip(from) {
            let parent = self.hashes.last().copied();
            let hash = hasher.block_hash(tenant, parent, block);
            self.hashes.push(hash);
            run.hashes.push(hash);
            run.tokens.extend(block.iter().map(token));
            run.images.push(images(block));
        }
        run
    }
}

impl StoredBlocks {
    /// Those behind the first `count`.
    fn behind(mut self, count: usize) -> StoredBlocks {
        if let Some(last) = self.hashes.drain(..count).next_back() {
            self.parent = Some(last);
        }
        self.tokens.drain(..count * BLOCK_POSITIONS);
        self.images.drain(..count);
        self
    }
}

fn token(key: &PositionKey) -> u32 {
    match key {
        PositionKey::Token(id) => *id,
        PositionKey::Content(content) => content.token,
    }
}

/// The images with rows among these positions, in order.
fn images(block: &[PositionKey]) -> Vec<[u8; 32]> {
    let mut images: Vec<[u8; 32]> = Vec::new();
    for key in block {
        let PositionKey::Content(content) = key else { continue };
        if let Some((image, _)) = content.given
            && images.last() != Some(&image)
        {
            images.push(image);
        }
    }
    images
}

/// Adds a part whose end its length tells.
fn update_with_length(digest: &mut Sha256, part: &[u8]) {
    digest.update((part.len() as u64).to_le_bytes());
    digest.update(part);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use girih_engine::PositionContent;
    use girih_engine::cache::SharingRules;
    use girih_graph::Span;

    use super::*;

    type Seen = Arc<Mutex<Vec<CacheEvent>>>;

    fn watch() -> (ObservedCache, Seen) {
        let seen = Seen::default();
        let events = Arc::clone(&seen);
        let observer = CacheObserver::new("lily", move |new| events.lock().unwrap().extend(new));
        (ObservedCache::new(observer, []), seen)
    }

    fn taken(seen: &Seen) -> Vec<CacheEvent> {
        std::mem::take(&mut *seen.lock().unwrap())
    }

    fn keys(tokens: std::ops::Range<u32>) -> Vec<PositionKey> {
        tokens.map(PositionKey::Token).collect()
    }

    fn stored(events: &[CacheEvent]) -> Vec<&StoredBlocks> {
        let stored = events.iter().map(|event| match event {
            CacheEvent::Stored(blocks) => blocks,
            other => panic!("{other:?}"),
        });
        stored.collect()
    }

    #[test]
    fn whole_blocks_are_stored_once_and_removed_with_their_last_sequence() {
        let (mut watch, seen) = watch();
        let mut cache = PrefixCache::new(&[Span::Full], &[16]);
        let (one, _) = cache.begin(&keys(0..200));
        cache.reserve(one, 150).unwrap();
        cache.extend(one, &keys(0..150));
        watch.look(&cache);
        let events = taken(&seen);
        let [first] = stored(&events)[..] else { panic!("{events:?}") };
        assert_eq!((first.hashes.len(), first.parent, &first.tokens), (2, None, &(0..128).collect()));
        watch.look(&cache);
        assert_eq!(taken(&seen), [], "nothing has changed");

        // The second one shares a block and a half, and goes on otherwise.
        let prompt: Vec<PositionKey> = [keys(0..100), keys(500..600)].concat();
        let (two, shared) = cache.begin(&prompt);
        assert_eq!(shared, 100);
        cache.reserve(two, 200).unwrap();
        cache.extend(two, &prompt[100..]);
        watch.look(&cache);
        let events = taken(&seen);
        let [second] = stored(&events)[..] else { panic!("{events:?}") };
        assert_eq!((second.parent, second.hashes.len()), (Some(first.hashes[0]), 2));
        assert_eq!(second.tokens[..36], (64..100).collect::<Vec<u32>>());

        cache.discard(one);
        watch.look(&cache);
        assert_eq!(taken(&seen), [CacheEvent::Removed(vec![first.hashes[1]])]);
        drop(watch);
        let mut left = [&first.hashes[..1], &second.hashes].concat();
        left.sort_unstable();
        assert_eq!(taken(&seen), [CacheEvent::Cleared(left)]);
    }

    #[test]
    fn a_rewound_sequence_loses_its_blocks() {
        let (mut watch, seen) = watch();
        let mut cache = PrefixCache::new(&[Span::Full], &[16]);
        let (one, _) = cache.begin(&keys(0..10));
        cache.reserve(one, 128).unwrap();
        cache.extend(one, &keys(0..128));
        watch.look(&cache);
        let hashes = stored(&taken(&seen))[0].hashes.clone();
        assert_eq!(cache.rewind(one, 127, &[]), Some(127));
        watch.look(&cache);
        assert_eq!(taken(&seen), [CacheEvent::Removed(vec![hashes[1]])]);
    }

    #[test]
    fn a_hash_is_of_the_tokens_before_the_tenant_and_the_model() {
        let block_hash = |model: &str, tenant: &Tenant, parent, block: &[PositionKey]| {
            BlockHasher { model: model.into(), adapters: Vec::new() }.block_hash(tenant, parent, block)
        };
        let first = keys(0..64);
        let none = Tenant::default();
        let hash = block_hash("lily", &none, None, &first);
        assert_eq!(hash, block_hash("lily", &none, None, &first));
        let others = [
            block_hash("tom", &none, None, &first),
            block_hash("lily", &Tenant::new(""), None, &first),
            block_hash("lily", &Tenant::new("alice"), None, &first),
            block_hash("lily", &none, Some(1), &first),
            block_hash("lily", &none, None, &keys(1..65)),
        ];
        assert!(!others.contains(&hash));
        let distinct: HashSet<u64> = others.into_iter().collect();
        assert_eq!(distinct.len(), others.len());
    }

    #[test]
    fn a_hash_is_of_the_name_of_the_adapter_and_not_of_its_index() {
        let block_hash = |names: &[&str], adapter| {
            let first = PositionContent { given: None, token: 0, span: None, adapter };
            let mut block = keys(0..64);
            block[0] = PositionKey::Content(Arc::new(first));
            let adapters = names.iter().map(|name| (*name).to_owned()).collect();
            BlockHasher { model: "lily".into(), adapters }.block_hash(&Tenant::default(), None, &block)
        };
        let hash = block_hash(&["pirate", "poet"], Some(0));
        assert_eq!(hash, block_hash(&["poet", "pirate"], Some(1)));
        assert_ne!(hash, block_hash(&["pirate", "poet"], Some(1)));
        assert_ne!(hash, block_hash(&["pirate", "poet"], None));
    }

    #[test]
    fn tenants_have_blocks_of_their_own() {
        let (mut watch, seen) = watch();
        let mut cache = PrefixCache::new(&[Span::Full], &[16]);
        for tenant in ["alice", "bob"] {
            let rules = SharingRules { tenant: Tenant::new(tenant), ..SharingRules::default() };
            let (id, shared) = cache.begin_within(&keys(0..65), rules);
            assert_eq!(shared, 0);
            cache.reserve(id, 64).unwrap();
            cache.extend(id, &keys(0..64));
        }
        watch.look(&cache);
        let events = taken(&seen);
        let [alice, bob] = stored(&events)[..] else { panic!("{events:?}") };
        assert_eq!((alice.tenant.name(), bob.tenant.name()), ("alice", "bob"));
        assert_ne!(alice.hashes, bob.hashes);
    }
}
