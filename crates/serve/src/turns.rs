//! Turns of requests that wait for each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use girih::Tenant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ApiError;

/// A turn, for which a request waits at most `max`.
///
/// # Errors
/// When that takes longer: status 429.
pub async fn turn_within(
    turns: &Arc<Semaphore>,
    max: Option<Duration>,
) -> Result<OwnedSemaphorePermit, ApiError> {
    within(max, async { Arc::clone(turns).acquire_owned().await.expect("it is never closed") }).await
}

/// What `turns` waits for, which takes at most `max`.
///
/// # Errors
/// As [`turn_within`].
async fn within<T>(max: Option<Duration>, turns: impl Future<Output = T>) -> Result<T, ApiError> {
    let Some(max) = max else { return Ok(turns.await) };
    timeout(max, turns).await.map_err(|_| {
        let seconds = max.as_secs_f64();
        let message = format!(
            "the request has waited {seconds:.0} s for its turn, which is the maximum; try again later"
        );
        ApiError::queue_timeout(message).retry_after(max)
    })
}

/// Turns: one tenant has at most a part of them, so that others have the rest.
#[derive(Debug)]
pub struct SharedTurns {
    all: Arc<Semaphore>,
    /// The turns of a tenant at once.
    of_one: usize,
    /// What is left of the turns of each tenant that has or waits for one.
    by_tenant: Mutex<BTreeMap<Tenant, Weak<Semaphore>>>,
}

/// One of [`SharedTurns`], until it is dropped.
#[derive(Debug)]
pub struct SharedTurn {
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl SharedTurns {
    /// This number of turns, and the maximum of one tenant.
    pub fn new(all: usize, of_one: usize) -> SharedTurns {
        SharedTurns { all: Arc::new(Semaphore::new(all)), of_one, by_tenant: Mutex::default() }
    }

    /// A turn, for which a request waits at most `max`.
    ///
    /// # Errors
    /// As [`turn_within`].
    pub async fn turn_within(&self, tenant: &Tenant, max: Option<Duration>) -> Result<SharedTurn, ApiError> {
        let of_tenant = self.of_tenant(tenant);
        let turn = |turns: Arc<Semaphore>| async { turns.acquire_owned().await.expect("it is never closed") };
        // In this order: a tenant's turn that waits for another of its own keeps no others out.
        let turns = async {
            SharedTurn { _of_tenant: turn(of_tenant).await, _of_all: turn(Arc::clone(&self.all)).await }
        };
        within(max, turns).await
    }

    fn of_tenant(&self, tenant: &Tenant) -> Arc<Semaphore> {
        let mut by_tenant = self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        by_tenant.retain(|_, turns| turns.strong_count() > 0);
        if let Some(turns) = by_tenant.get(tenant).and_then(Weak::upgrade) {
            return turns;
        }
        // Without keys, all clients are the default tenant: there are no others.
        let of_one = if *tenant == Tenant::default() { Semaphore::MAX_PERMITS } else { self.of_one };
        let turns = Arc::new(Semaphore::new(of_one));
        by_tenant.insert(tenant.clone(), Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_its_turn_at_most_as_long_as_it_may() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (turns, max) = (Arc::new(Semaphore::new(1)), Some(Duration::from_millis(1)));
            let held = turn_within(&turns, None).await.unwrap();
            let error = turn_within(&turns, max).await.unwrap_err();
            assert_eq!(error.code, "queue_timeout");
            drop(held);
            assert!(turn_within(&turns, max).await.is_ok());
        });
    }

    #[test]
    fn one_tenant_leaves_turns_to_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (turns, max) = (SharedTurns::new(4, 2), Some(Duration::from_millis(1)));
            let [first, second, third] = ["a", "b", "c"].map(Tenant::new);
            let mut held = Vec::new();
            for tenant in [&first, &second, &first] {
                held.push(turns.turn_within(tenant, max).await.unwrap());
            }
            assert_eq!(turns.turn_within(&first, max).await.unwrap_err().code, "queue_timeout");
            held.push(turns.turn_within(&third, max).await.unwrap());
            assert!(turns.turn_within(&second, max).await.is_err(), "all have a turn");
            held.clear();
            assert!(turns.turn_within(&first, max).await.is_ok());
            assert_eq!(turns.by_tenant.lock().unwrap().len(), 1, "tenants without turns are forgotten");
        });
    }
}
