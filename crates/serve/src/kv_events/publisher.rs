//! What is published: numbers messages, keeps the last ones for replay, and hands them to subscribers without waiting.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use girih::{BLOCK_POSITIONS, CacheEvent, CacheObserver, StoredBlocks};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::message_pack::MessagePack;
use crate::calendar::since_1970;
use crate::hexadecimal::hexadecimal;

/// The messages that wait for a subscriber before it is dropped.
const WAITING_MESSAGES: usize = 4096;

/// The number of last messages that are kept for replay; vLLM keeps as many (`buffer_steps`).
const KEPT_MESSAGES: usize = 10_000;

/// The bytes that they may have.
const KEPT_BYTES: usize = 32 << 20;

/// The medium of all blocks: vLLM's word for memory that steps read, on every device.
const MEDIUM: &str = "GPU";

/// A message to subscribers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EventMessage {
    pub topic: Arc<str>,
    pub number: u64,
    /// The batch of events.
    pub payload: Vec<u8>,
}

/// Publishes what prefix caches gain and lose.
#[derive(Debug)]
pub(crate) struct KvEvents {
    pod: String,
    published: Mutex<Published>,
}

/// What was published, and to whom.
#[derive(Debug, Default)]
struct Published {
    /// The number of the next message.
    next: u64,
    kept: VecDeque<Arc<EventMessage>>,
    kept_bytes: usize,
    subscribers: Vec<mpsc::Sender<Arc<EventMessage>>>,
    /// Subscribers that were dropped because they did not read.
    dropped: u64,
    /// The number of blocks that each model has cached.
    blocks: BTreeMap<Arc<str>, usize>,
}

/// What the metrics have of published events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KvEventCounts {
    pub messages: u64,
    pub subscribers: usize,
    pub dropped: u64,
}

impl KvEvents {
    /// A publisher of the server that routers call `pod`.
    pub fn new(pod: String) -> KvEvents {
        KvEvents { pod, published: Mutex::default() }
    }

    /// An observer of the model of this name.
    pub fn observer(self: &Arc<KvEvents>, model: &str) -> CacheObserver {
        let events = Arc::clone(self);
        let (topic, name) = (format!("kv@{}@{model}", self.pod).into(), Arc::<str>::from(model));
        CacheObserver::new(model, move |new| {
            // The wall clock may go back: subscribers order messages by their numbers.
            events.publish(&topic, &name, &new, since_1970().as_secs_f64());
        })
    }

    fn publish(&self, topic: &Arc<str>, model: &Arc<str>, events: &[CacheEvent], time: f64) {
        let has_ended = events.iter().any(|event| matches!(event, CacheEvent::Cleared(_)));
        // Both before the lock is taken, for which other engines wait.
        let of_model = batch(events, false, time);
        let of_all = has_ended.then(|| batch(events, true, time));
        let mut published = self.published();
        events.iter().for_each(|event| published.count(model, event));
        // Routers take `AllBlocksCleared` for the blocks of all models of a server.
        let payload = of_all.filter(|_| published.has_no_blocks()).unwrap_or(of_model);
        published.send(Arc::clone(topic), payload);
    }

    /// What a new subscriber gets from now on.
    pub fn subscribe(&self) -> mpsc::Receiver<Arc<EventMessage>> {
        let (sender, receiver) = mpsc::channel(WAITING_MESSAGES);
        self.published().subscribers.push(sender);
        receiver
    }

    /// Drops a subscriber that did not take a message in time.
    pub fn drop_subscriber(&self, messages: &mut mpsc::Receiver<Arc<EventMessage>>) {
        let mut published = self.published();
        // One that was too far behind is counted already.
        if !messages.is_closed() {
            messages.close();
            published.dropped += 1;
        }
    }

    /// The messages from this number on that are kept.
    pub fn since(&self, number: u64) -> Vec<Arc<EventMessage>> {
        let published = self.published();
        published.kept.iter().filter(|message| message.number >= number).cloned().collect()
    }

    /// What the metrics have.
    pub fn counts(&self) -> KvEventCounts {
        let mut published = self.published();
        published.subscribers.retain(|subscriber| !subscriber.is_closed());
        let Published { next, dropped, ref subscribers, .. } = *published;
        KvEventCounts { messages: next, subscribers: subscribers.len(), dropped }
    }

    fn published(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Published {
    /// Counts the blocks of an event.
    fn count(&mut self, model: &Arc<str>, event: &CacheEvent) {
        let blocks = self.blocks.entry(Arc::clone(model)).or_default();
        *blocks = match event {
            CacheEvent::Stored(stored) => *blocks + stored.hashes.len(),
            CacheEvent::Removed(hashes) => blocks.saturating_sub(hashes.len()),
            CacheEvent::Cleared(_) => 0,
        };
    }

    fn has_no_blocks(&self) -> bool {
        self.blocks.values().all(|blocks| *blocks == 0)
    }

    /// Numbers a message, keeps it and hands it to subscribers; one that is too far behind is dropped.
    fn send(&mut self, topic: Arc<str>, payload: Vec<u8>) {
        let message = Arc::new(EventMessage { topic, number: self.next, payload });
        self.next += 1;
        let before = self.subscribers.len();
        let mut left = 0;
        self.subscribers.retain(|subscriber| match subscriber.try_send(Arc::clone(&message)) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => false,
            Err(TrySendError::Closed(_)) => {
                left += 1;
                false
            }
        });
        self.dropped += (before - self.subscribers.len() - left) as u64;
        self.kept_bytes += message.payload.len();
        self.kept.push_back(message);
        while self.kept.len() > KEPT_MESSAGES || self.kept_bytes > KEPT_BYTES {
            let Some(first) = self.kept.pop_front() else { break };
            self.kept_bytes -= first.payload.len();
        }
    }
}

/// A batch of events; the end of an engine removes its blocks, or those of all models (`ends_all`).
fn batch(events: &[CacheEvent], ends_all: bool, time: f64) -> Vec<u8> {
    let mut pack = MessagePack::default();
    pack.list(3);
    pack.float(time);
    pack.list(events.len());
    for event in events {
        match event {
            CacheEvent::Stored(stored) => write_stored(&mut pack, stored),
            CacheEvent::Cleared(_) if ends_all => {
                pack.map(1);
                pack.text("type");
                pack.text("AllBlocksCleared");
            }
            CacheEvent::Removed(hashes) | CacheEvent::Cleared(hashes) => write_removed(&mut pack, hashes),
        }
    }
    // vLLM's data-parallel rank: a server has one engine for a model.
    pack.number(0);
    pack.bytes()
}

/// A `BlockStored` with all keys that vLLM writes without a default.
fn write_stored(pack: &mut MessagePack, stored: &StoredBlocks) {
    let StoredBlocks { hashes, parent, tokens, images, tenant, adapter, .. } = stored;
    let salt = Some(tenant.name()).filter(|name| parent.is_none() && !name.is_empty());
    let has_keys = salt.is_some() || images.iter().any(|images| !images.is_empty());
    pack.map(if has_keys { 9 } else { 8 });
    pack.text("type");
    pack.text("BlockStored");
    pack.text("block_hashes");
    write_numbers(pack, hashes.iter().copied());
    pack.text("parent_block_hash");
    match parent {
        Some(parent) => pack.number(*parent),
        None => pack.nil(),
    }
    pack.text("token_ids");
    write_numbers(pack, tokens.iter().map(|token| u64::from(*token)));
    pack.text("block_size");
    pack.number(BLOCK_POSITIONS as u64);
    pack.text("lora_id");
    pack.nil();
    pack.text("medium");
    pack.text(MEDIUM);
    pack.text("lora_name");
    match adapter {
        Some(name) => pack.text(name),
        None => pack.nil(),
    }
    if has_keys {
        pack.text("extra_keys");
        pack.list(images.len());
        for (index, images) in images.iter().enumerate() {
            write_keys(pack, images, salt.filter(|_| index == 0));
        }
    }
}

/// The extra keys of a block: its images, then what tells tenants apart, in the first block of a prompt as in vLLM.
fn write_keys(pack: &mut MessagePack, images: &[[u8; 32]], salt: Option<&str>) {
    let count = images.len() + usize::from(salt.is_some());
    if count == 0 {
        return pack.nil();
    }
    pack.list(count);
    images.iter().for_each(|image| pack.text(&hexadecimal(image)));
    salt.into_iter().for_each(|salt| pack.text(salt));
}

fn write_removed(pack: &mut MessagePack, hashes: &[u64]) {
    pack.map(3);
    pack.text("type");
    pack.text("BlockRemoved");
    pack.text("block_hashes");
    write_numbers(pack, hashes.iter().copied());
    pack.text("medium");
    pack.text(MEDIUM);
}

fn write_numbers(pack: &mut MessagePack, numbers: impl ExactSizeIterator<Item = u64>) {
    pack.list(numbers.len());
    numbers.for_each(|number| pack.number(number));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(events: &KvEvents, model: &str, new: Vec<CacheEvent>) {
        events.publish(&format!("kv@pod@{model}").into(), &model.into(), &new, 0.5);
    }

    #[test]
    fn messages_are_numbered_and_a_subscriber_that_does_not_read_is_dropped() {
        let events = KvEvents::new("pod".to_owned());
        let mut subscriber = events.subscribe();
        publish(&events, "lily", vec![CacheEvent::Removed(vec![7])]);
        let first = subscriber.try_recv().unwrap();
        assert_eq!((first.number, &*first.topic), (0, "kv@pod@lily"));
        for _ in 0..=WAITING_MESSAGES {
            publish(&events, "lily", vec![CacheEvent::Removed(vec![7])]);
        }
        let messages = WAITING_MESSAGES as u64 + 2;
        assert_eq!(events.counts(), KvEventCounts { messages, subscribers: 0, dropped: 1 });
        assert_eq!(events.since(messages - 2).iter().map(|kept| kept.number).min(), Some(messages - 2));
        // One that leaves is not counted.
        drop(events.subscribe());
        publish(&events, "lily", Vec::new());
        assert_eq!(events.counts().dropped, 1);
    }

    #[test]
    fn a_subscriber_that_takes_no_message_in_time_is_counted_once() {
        let events = KvEvents::new("pod".to_owned());
        let mut late = events.subscribe();
        events.drop_subscriber(&mut late);
        publish(&events, "lily", Vec::new());
        assert_eq!(events.counts(), KvEventCounts { messages: 1, subscribers: 0, dropped: 1 });
        let mut behind = events.subscribe();
        (0..=WAITING_MESSAGES).for_each(|_| publish(&events, "lily", Vec::new()));
        assert_eq!(events.counts().dropped, 2);
        events.drop_subscriber(&mut behind);
        assert_eq!(events.counts().dropped, 2);
    }

    #[test]
    fn kept_messages_are_bounded() {
        let events = KvEvents::new("pod".to_owned());
        (0..KEPT_MESSAGES + 5).for_each(|_| publish(&events, "lily", Vec::new()));
        let kept = events.since(0);
        assert_eq!((kept.len(), kept[0].number), (KEPT_MESSAGES, 5));
        let large = CacheEvent::Removed(vec![u64::MAX; KEPT_BYTES / 9 / 4]);
        (0..5).for_each(|_| publish(&events, "lily", vec![large.clone()]));
        assert!(events.since(0).len() <= 4);
    }

    #[test]
    fn the_end_of_one_of_two_models_removes_its_blocks_only() {
        let events = KvEvents::new("pod".to_owned());
        let mut stored = StoredBlocks::default();
        (stored.hashes, stored.images) = (vec![1], vec![Vec::new()]);
        for model in ["lily", "tom"] {
            publish(&events, model, vec![CacheEvent::Stored(stored.clone())]);
        }
        let text = |message: &EventMessage| String::from_utf8_lossy(&message.payload).into_owned();
        publish(&events, "tom", vec![CacheEvent::Cleared(vec![1])]);
        publish(&events, "lily", vec![CacheEvent::Cleared(vec![1])]);
        let kept = events.since(2);
        assert!(text(&kept[0]).contains("BlockRemoved") && text(&kept[1]).contains("AllBlocksCleared"));
    }
}
