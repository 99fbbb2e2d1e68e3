//! Places for requests: bounds how many have not ended at once, of all tenants and of each one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use girih_engine::Tenant;
use girih_graph::{Error, ErrorKind, Result};

/// The places of a session.
pub(crate) struct RequestPlaces {
    /// The maximum number of requests that have not ended.
    max: u32,
    /// As `max`, of each tenant.
    max_of_tenant: u32,
    taken: Mutex<HashMap<Tenant, u32>>,
}

/// The place of a request that has not ended; dropping it frees the place.
pub(crate) struct RequestPlace {
    places: Arc<RequestPlaces>,
    tenant: Tenant,
}

impl RequestPlaces {
    pub fn new(max: u32, max_of_tenant: u32) -> RequestPlaces {
        RequestPlaces { max, max_of_tenant, taken: Mutex::default() }
    }

    /// Takes `count` places, or none.
    ///
    /// # Errors
    /// [`ErrorKind::QueueFull`] if fewer are free.
    pub fn take(self: &Arc<RequestPlaces>, tenant: &Tenant, count: u32) -> Result<Vec<RequestPlace>> {
        let mut taken = self.lock();
        let (all, own) = (taken.values().sum::<u32>(), taken.get(tenant).copied().unwrap_or(0));
        let sentence = if count > self.max.saturating_sub(all) {
            format!("{all} requests run or wait; the maximum is {}: try again later", self.max)
        } else if count > self.max_of_tenant.saturating_sub(own) {
            let max = self.max_of_tenant;
            format!(
                "{own} requests of this tenant run, wait or are unread; the maximum is {max}: try again later"
            )
        } else {
            *taken.entry(tenant.clone()).or_default() += count;
            let place = || RequestPlace { places: Arc::clone(self), tenant: tenant.clone() };
            return Ok((0..count).map(|_| place()).collect());
        };
        Err(Error::with_kind(ErrorKind::QueueFull, sentence))
    }

    /// No code panics while it holds the lock, so a poisoned one has valid contents.
    fn lock(&self) -> MutexGuard<'_, HashMap<Tenant, u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(count) = taken.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}
