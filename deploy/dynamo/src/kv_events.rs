//! Events of the prefix cache, published by Dynamo.

use std::sync::{Arc, OnceLock};

use dynamo_backend_common::{DynamoError, KvEventPublisher, KvEventSource};
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, compute_block_hash_for_seq,
};
use girih::{BLOCK_POSITIONS, CacheEvent, CacheObserver, StoredBlocks};

/// The only engine of a worker.
const RANK: u32 = 0;

/// Hands what the cache tells to Dynamo's publisher.
#[derive(Default)]
pub(crate) struct KvEventFeed {
    /// Dynamo gives it between the start and the first request, before which the cache has nothing to tell.
    publisher: OnceLock<Arc<KvEventPublisher>>,
}

impl KvEventFeed {
    /// The observer of the cache of the model of this name.
    pub fn observer(self: &Arc<KvEventFeed>, model: &str) -> CacheObserver {
        let feed = Arc::clone(self);
        CacheObserver::new(model, move |events| feed.publish(events))
    }

    /// What Dynamo gives its publisher to.
    pub fn source(self: &Arc<KvEventFeed>) -> KvEventSource {
        let feed = Arc::clone(self);
        let on_ready = move |publisher| -> Result<(), DynamoError> {
            // A second one cannot come: a worker starts once.
            let _ = feed.publisher.set(publisher);
            Ok(())
        };
        KvEventSource::Push { on_ready: Box::new(on_ready), dp_rank: RANK }
    }

    fn publish(&self, events: Vec<CacheEvent>) {
        let Some(publisher) = self.publisher.get() else { return };
        let events = events.iter().map(|event| kv_cache_event(event, publisher.next_event_id()));
        // It fails when Dynamo's runtime has ended, and with it all who listen.
        let _ = publisher.publish_batch(events.collect());
    }
}

/// An event of a cache with a number, as Dynamo's router reads it.
pub fn kv_cache_event(event: &CacheEvent, event_id: u64) -> KvCacheEvent {
    let data = match event {
        CacheEvent::Stored(stored) => KvCacheEventData::Stored(store_data(stored)),
        CacheEvent::Removed(hashes) => {
            let block_hashes = hashes.iter().copied().map(ExternalSequenceBlockHash).collect();
            KvCacheEventData::Removed(KvCacheRemoveData { block_hashes })
        }
        CacheEvent::Cleared(_) => KvCacheEventData::Cleared,
    };
    KvCacheEvent { event_id, data, dp_rank: RANK }
}

/// The router hashes the tokens of a prompt with its adapter and its salt in the same way.
fn store_data(stored: &StoredBlocks) -> KvCacheStoreData {
    let options = BlockHashOptions {
        lora_name: stored.adapter.as_deref(),
        cache_namespace: Some(stored.tenant.name()).filter(|name| !name.is_empty()),
        ..BlockHashOptions::default()
    };
    let tokens = compute_block_hash_for_seq(&stored.tokens, BLOCK_POSITIONS as u32, options);
    let blocks = stored.hashes.iter().zip(tokens).map(|(hash, tokens_hash)| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(*hash),
        tokens_hash,
        mm_extra_info: None,
    });
    KvCacheStoreData {
        parent_hash: stored.parent.map(ExternalSequenceBlockHash),
        start_position: None,
        blocks: blocks.collect(),
    }
}
