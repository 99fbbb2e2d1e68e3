//! What a pool knows of one model: how it is opened, its session, the faults of its engine, and since when it has
//! waited for room. Times are those of the pool's caller.

use std::time::Duration;

use crate::model::Model;
use crate::open_options::OpenOptions;
use crate::readiness::EnginePhase;
use crate::run_options::RunOptions;
use crate::session::Session;

/// The pause after the first fault of an engine, before the model is loaded again. It doubles with each
/// further fault.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The maximum pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The time after which a fault of an engine does not count as following the one before.
const STEADY_AFTER: Duration = Duration::from_secs(600);

/// How long a model is kept from loading by others in use, and how long one that was loaded is used, before it
/// makes room.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The time without a request after which nobody waits for a model any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(2);

/// A model of a pool.
pub(crate) struct PoolEntry {
    /// The name or path by which it is opened.
    pub source: String,
    pub open_options: OpenOptions,
    pub run_options: RunOptions,
    pub loaded: Option<PooledModel>,
    /// The model without its weights, as it was last opened: its tokenizer takes longer to be made than mapped weights.
    pub opened: Option<OpenedEntry>,
    /// The bytes of its memory plan; `None` until it is planned.
    pub bytes: Option<u64>,
    pub faults: EngineFaultRecord,
    pub wait: Option<RoomWait>,
}

/// A model that is kept open.
pub(crate) struct OpenedEntry {
    pub model: Model,
    /// When its last load began.
    pub loaded: Duration,
}

/// A session of a pool.
pub(crate) struct PooledModel {
    pub session: Session,
    pub bytes: u64,
    /// When its load began.
    pub begun: Duration,
    /// When it was first found ready.
    pub ready: Option<Duration>,
    pub last_used: Duration,
}

/// The faults of a model's engines.
#[derive(Debug, Default)]
pub(crate) struct EngineFaultRecord {
    /// Engines that have ended, of those that are not in the pool any more.
    pub count: u64,
    /// Those that ended soon after they were loaded, one after another.
    in_a_row: u32,
    /// When the model may be loaded again.
    not_before: Duration,
    /// Whether no engine was loaded since the last fault.
    pub is_down: bool,
}

/// A model for which others in use leave no room.
#[derive(Debug)]
pub(crate) struct RoomWait {
    since: Duration,
    last: Duration,
    /// The models in use that have to make room.
    blockers: Vec<String>,
}

impl PoolEntry {
    pub fn new(source: String, open_options: OpenOptions, run_options: RunOptions) -> PoolEntry {
        PoolEntry {
            source,
            open_options,
            run_options,
            loaded: None,
            opened: None,
            bytes: None,
            faults: EngineFaultRecord::default(),
            wait: None,
        }
    }

    /// Its session, unless that could not be loaded or its engine has ended.
    pub fn live(&self) -> Option<&PooledModel> {
        let is_live = |loaded: &&PooledModel| {
            matches!(loaded.session.phase(), EnginePhase::Loading | EnginePhase::Ready(_))
        };
        self.loaded.as_ref().filter(is_live)
    }

    /// The number of its engines that have ended by a fault.
    pub fn engine_faults(&self) -> u64 {
        let has_ended = self.loaded.as_ref().is_some_and(|loaded| loaded.session.has_ended());
        self.faults.count + u64::from(has_ended)
    }

    /// Whether its engine has ended by a fault and no other one is ready.
    pub fn is_down(&self) -> bool {
        match self.loaded.as_ref().map(|loaded| loaded.session.phase()) {
            Some(EnginePhase::Ready(_)) => false,
            Some(EnginePhase::Ended(_)) => true,
            Some(EnginePhase::Loading | EnginePhase::NotLoaded(_)) | None => self.faults.is_down,
        }
    }

    /// Marks the session as used, and returns it if it is loaded or being loaded.
    pub fn used(&mut self, now: Duration) -> Option<Session> {
        self.live()?;
        let loaded = self.loaded.as_mut()?;
        loaded.last_used = loaded.last_used.max(now);
        if matches!(loaded.session.phase(), EnginePhase::Ready(_)) {
            loaded.ready.get_or_insert(now);
            self.faults.is_down = false;
        }
        Some(loaded.session.clone())
    }

    /// Takes out a session that cannot be used any more.
    pub fn take_ended(&mut self, now: Duration) -> Option<PooledModel> {
        if self.live().is_some() {
            return None;
        }
        let ended = self.loaded.take()?;
        match ended.session.phase() {
            EnginePhase::Ended(_) => self.faults.note_end(ended.begun, now),
            // Loading again has failed.
            _ if self.faults.is_down => self.faults.pause(now),
            _ => {}
        }
        Some(ended)
    }

    /// Takes out a session that makes room for another one, or that nobody has used for long.
    pub fn take_unused(&mut self) -> Option<PooledModel> {
        self.faults.is_down = false;
        self.loaded.take()
    }

    /// The time until the model may be loaded again; `None` if it may be now.
    pub fn pause_left(&self, now: Duration) -> Option<Duration> {
        let left = self.faults.not_before.saturating_sub(now);
        (self.faults.is_down && !left.is_zero()).then_some(left)
    }

    /// Records that these models in use left no room for it.
    pub fn note_refusal(&mut self, blockers: Vec<String>, now: Duration) {
        let since = self.wait.as_ref().filter(|wait| wait.is_current(now)).map_or(now, |wait| wait.since);
        self.wait = Some(RoomWait { since, last: now, blockers });
    }

    /// Whether the model `name`, which is ready since `ready`, has to make room for this one.
    pub fn needs_room_of(&self, name: &str, ready: Duration, now: Duration) -> bool {
        self.wait.as_ref().is_some_and(|wait| {
            let from = wait.since.max(ready).saturating_add(PATIENCE);
            wait.is_current(now) && now >= from && wait.blockers.iter().any(|blocker| blocker == name)
        })
    }
}

impl RoomWait {
    /// Whether somebody has asked for the model lately.
    fn is_current(&self, now: Duration) -> bool {
        now <= self.last.saturating_add(FORGOTTEN_AFTER)
    }
}

impl EngineFaultRecord {
    /// Records that an engine whose load began at `begun` has ended.
    fn note_end(&mut self, begun: Duration, now: Duration) {
        self.count += 1;
        if now.saturating_sub(begun) >= STEADY_AFTER {
            self.in_a_row = 0;
        }
        self.pause(now);
    }

    /// Keeps the model from being loaded for a while.
    pub fn pause(&mut self, now: Duration) {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.in_a_row.min(16));
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.not_before = now.saturating_add(doubled.min(MAX_PAUSE));
        self.is_down = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn entry() -> PoolEntry {
        PoolEntry::new("stories260k".to_owned(), OpenOptions::default(), RunOptions::default())
    }

    #[test]
    fn the_pause_doubles_until_an_engine_lasts() {
        let mut entry = entry();
        let mut pauses = Vec::new();
        for begun in [100, 200, 300, 400, 500, 600, 700, 800] {
            entry.faults.note_end(at(begun), at(begun + 10));
            pauses.push(entry.pause_left(at(begun + 10)).expect("a pause").as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(entry.pause_left(at(869)), Some(at(1)));
        assert_eq!(entry.pause_left(at(870)), None);
        entry.faults.note_end(at(900), at(1500));
        assert_eq!(entry.pause_left(at(1500)), Some(at(1)), "it has served for ten minutes");
        assert_eq!(entry.faults.count, 9);
    }

    #[test]
    fn a_model_makes_room_after_a_while_for_one_that_is_still_wanted() {
        let mut entry = entry();
        for now in [10, 12, 14] {
            entry.note_refusal(vec!["busy".to_owned()], at(now));
        }
        let needs = |entry: &PoolEntry, ready, now| entry.needs_room_of("busy", at(ready), at(now));
        assert!(!needs(&entry, 0, 14) && needs(&entry, 0, 15) && needs(&entry, 0, 16));
        assert!(!needs(&entry, 0, 17), "nobody has asked for three seconds");
        assert!(!needs(&entry, 12, 16), "it has been ready for four seconds");
        assert!(!entry.needs_room_of("other", at(0), at(15)));
        // A request that comes back later waits anew.
        entry.note_refusal(vec!["busy".to_owned()], at(30));
        assert!(!needs(&entry, 0, 31));
    }
}
