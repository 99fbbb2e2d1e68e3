//! Places for requests: bounds how many have not ended at once, of all tenants and of each one, and how
//! long they are expected to wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use girih_engine::Tenant;
use girih_graph::{Error, ErrorKind, Result};

use crate::expected_wait::ServiceRecord;

/// What bounds the requests of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceLimits {
    /// The maximum number of requests that run.
    pub sequences: u32,
    /// The maximum number of requests that wait.
    pub waiting: u32,
    /// The maximum number of requests of a tenant that have not ended.
    pub of_tenant: u32,
    /// The maximum time for which a request waits that has no limit of its own.
    pub wait: Option<Duration>,
}

/// The places of a session.
pub(crate) struct RequestPlaces {
    limits: PlaceLimits,
    state: Mutex<PlacesState>,
}

#[derive(Default)]
struct PlacesState {
    /// The number of places of each tenant.
    taken: HashMap<Tenant, u32>,
    /// The number of the next place.
    next: u64,
    /// The requests that wait for their turn, in the order of their places.
    queue: BTreeMap<u64, QueuedRequest>,
    service: ServiceRecord,
}

/// A request that waits for its turn.
struct QueuedRequest {
    tenant: Tenant,
    /// The rows of its prompt; 0 until they are known.
    rows: u32,
}

/// The place of a request that has not ended; dropping it frees the place.
pub(crate) struct RequestPlace {
    places: Arc<RequestPlaces>,
    tenant: Tenant,
    /// Its number, by which places are in order.
    number: u64,
    /// The rows of the request's prompt; 0 until they are known.
    rows: u32,
}

impl RequestPlaces {
    pub fn new(limits: PlaceLimits) -> RequestPlaces {
        RequestPlaces { limits, state: Mutex::default() }
    }

    /// The maximum time for which a request waits that has no limit of its own.
    pub fn max_wait(&self) -> Option<Duration> {
        self.limits.wait
    }

    /// Takes `count` places, or none. They wait for their turn until a report says otherwise.
    ///
    /// # Errors
    /// [`ErrorKind::QueueFull`] if fewer are free, and [`ErrorKind::WaitTooLong`] if the first of them
    /// is expected to wait longer than `max_wait`: the others are the same caller's, and follow it.
    pub fn take(
        self: &Arc<RequestPlaces>,
        tenant: &Tenant,
        count: u32,
        max_wait: Option<Duration>,
    ) -> Result<Vec<RequestPlace>> {
        let PlaceLimits { sequences, waiting, of_tenant, .. } = self.limits;
        let mut state = self.lock();
        let (all, own) = (state.taken.values().sum::<u32>(), state.taken.get(tenant).copied().unwrap_or(0));
        let max = sequences.saturating_add(waiting);
        let full = if count > max.saturating_sub(all) {
            Some(format!("{all} requests run or wait; the maximum is {max}: try again later"))
        } else if count > of_tenant.saturating_sub(own) {
            Some(format!(
                "{own} requests of this tenant run, wait or are unread; the maximum is {of_tenant}: try again later"
            ))
        } else {
            None
        };
        if let Some(sentence) = full {
            return Err(Error::with_kind(ErrorKind::QueueFull, sentence));
        }
        if let Some(max) = max_wait {
            let expected = state.expected_wait(sequences, tenant);
            if expected > max {
                let (expected, max) = (expected.as_secs_f64(), max.as_secs_f64());
                let sentence = format!(
                    "the expected wait is {expected:.1} s; the maximum is {max:.1} s: try again later"
                );
                return Err(Error::with_kind(ErrorKind::WaitTooLong, sentence));
            }
        }
        *state.taken.entry(tenant.clone()).or_default() += count;
        let place = |_| {
            let number = state.next;
            state.next += 1;
            state.queue.insert(number, QueuedRequest { tenant: tenant.clone(), rows: 0 });
            RequestPlace { places: Arc::clone(self), tenant: tenant.clone(), number, rows: 0 }
        };
        Ok((0..count).map(place).collect())
    }

    /// The time for which a request of this tenant would wait now.
    pub fn expected_wait(&self, tenant: &Tenant) -> Duration {
        self.lock().expected_wait(self.limits.sequences, tenant)
    }

    /// Records what the engine does, and which requests wait for their turn. Requests that it does
    /// not know yet go on waiting.
    pub fn report<'a>(
        &self,
        update: impl FnOnce(&mut ServiceRecord),
        known: impl Iterator<Item = (&'a RequestPlace, bool)>,
    ) {
        let mut state = self.lock();
        update(&mut state.service);
        for (RequestPlace { tenant, number, rows, .. }, waits) in known {
            if !waits {
                state.queue.remove(number);
            } else if !state.queue.contains_key(number) {
                state.queue.insert(*number, QueuedRequest { tenant: tenant.clone(), rows: *rows });
            }
        }
    }

    /// No code panics while it holds the lock, so a poisoned one has valid contents.
    fn lock(&self) -> MutexGuard<'_, PlacesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlacesState {
    /// The time for which a request of `tenant` would wait now. Tenants take turns, so of each other
    /// one at most as many requests go first as `tenant` has in the queue, and one more.
    fn expected_wait(&self, sequences: u32, tenant: &Tenant) -> Duration {
        let own = self.queue.values().filter(|queued| queued.tenant == *tenant).count();
        let mut before: HashMap<&Tenant, usize> = HashMap::new();
        let ahead = self.queue.values().filter(|queued| {
            let count = before.entry(&queued.tenant).or_default();
            *count += 1;
            queued.tenant == *tenant || *count <= own + 1
        });
        self.service.expected_wait(sequences, Instant::now(), ahead.map(|queued| queued.rows))
    }
}

impl RequestPlace {
    /// Says how many rows the prompt of the request has.
    pub fn set_prompt(&mut self, rows: u32) {
        self.rows = rows;
        if let Some(queued) = self.places.lock().queue.get_mut(&self.number) {
            queued.rows = rows;
        }
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        state.queue.remove(&self.number);
        if let Some(count) = state.taken.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                state.taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expected_wait::RunningReply;

    fn places() -> Arc<RequestPlaces> {
        let limits = PlaceLimits { sequences: 2, waiting: 20, of_tenant: u32::MAX, wait: None };
        Arc::new(RequestPlaces::new(limits))
    }

    /// Places for requests that may wait for any time.
    fn take(places: &Arc<RequestPlaces>, tenant: &Tenant, count: u32) -> Vec<RequestPlace> {
        places.take(tenant, count, None).expect("places")
    }

    /// Two replies have just begun; a reply takes 10 s.
    fn begin_two(places: &Arc<RequestPlaces>) -> Vec<RequestPlace> {
        let taken = take(places, &Tenant::default(), 2);
        let since = Instant::now();
        let running = RunningReply { since, prompt_rows: 0, tokens: 1000 };
        places.report(
            |service| {
                service.pace.step = Duration::from_secs(1);
                service.count_reply(Duration::from_secs(10));
                service.running = vec![running; 2];
            },
            taken.iter().map(|place| (place, false)),
        );
        taken
    }

    fn about(places: &Arc<RequestPlaces>, tenant: &Tenant) -> f64 {
        places.expected_wait(tenant).as_secs_f64().round()
    }

    #[test]
    fn a_request_that_would_wait_too_long_gets_no_place() {
        let places = places();
        let running = begin_two(&places);
        let tenant = Tenant::default();
        let max = Some(Duration::from_secs(15));
        let mut waiting = places.take(&tenant, 1, max).expect("10 s are allowed");
        waiting.extend(places.take(&tenant, 1, max).expect("both replies end then"));
        let error = places.take(&tenant, 1, max).err().expect("20 s are not");
        drop(places.take(&tenant, 1, Some(Duration::MAX)).expect("it may wait for any time"));
        assert_eq!(error.kind(), ErrorKind::WaitTooLong);
        let sentence = error.to_string();
        assert!(
            sentence.starts_with("the expected wait is ") && sentence.contains("maximum is 15.0 s"),
            "{sentence}"
        );
        // Of several replies, the first one decides.
        waiting.pop();
        drop(places.take(&tenant, 3, max).expect("the first waits 10 s"));
        drop((running, waiting));
        let state = places.lock();
        assert!(state.taken.is_empty() && state.queue.is_empty());
    }

    #[test]
    fn a_tenant_waits_only_for_its_share_of_the_others() {
        let places = places();
        let _running = begin_two(&places);
        let (many, few) = (Tenant::new("many"), Tenant::new("few"));
        let waiting = take(&places, &many, 8);
        assert_eq!((about(&places, &many), about(&places, &few)), (50.0, 10.0));
        let _own = take(&places, &few, 3);
        assert_eq!(about(&places, &few), 40.0, "four of the others and three of its own go first");
        // Requests that run, or whose reader is behind, wait no more; others may wait again.
        places.report(|_| {}, waiting.iter().map(|place| (place, false)));
        assert_eq!(about(&places, &few), 20.0);
        places.report(|_| {}, waiting.iter().map(|place| (place, true)));
        assert_eq!(about(&places, &few), 40.0);
    }

    #[test]
    fn the_prompts_before_a_request_count() {
        let places = places();
        let mut waiting = take(&places, &Tenant::default(), 1);
        places.report(|service| service.pace.prompt_row = Duration::from_millis(10), std::iter::empty());
        assert_eq!(about(&places, &Tenant::default()), 0.0, "it is not known yet");
        waiting[0].set_prompt(700);
        assert_eq!(about(&places, &Tenant::default()), 7.0);
    }
}
