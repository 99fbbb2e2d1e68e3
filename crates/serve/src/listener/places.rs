//! The places of connections. When all are taken, the connection that has waited longest for a
//! request gives up its place, so that silent clients do not keep others out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::clock::ConnectionClock;
use super::limits::ListenerLimits;

/// The places of connections.
#[derive(Clone)]
pub struct ConnectionPlaces {
    free: Arc<Semaphore>,
    clocks: Arc<Mutex<Vec<Weak<ConnectionClock>>>>,
}

/// The place of one connection, and its clock.
pub struct ConnectionPlace {
    _permit: OwnedSemaphorePermit,
    pub clock: Arc<ConnectionClock>,
}

impl ConnectionPlaces {
    pub fn new(count: usize) -> ConnectionPlaces {
        ConnectionPlaces { free: Arc::new(Semaphore::new(count)), clocks: Arc::default() }
    }

    /// A place for a connection that begins now, as soon as there is one; `None` if every connection
    /// has a request.
    pub async fn take(&self, limits: ListenerLimits) -> Option<ConnectionPlace> {
        let free = Arc::clone(&self.free);
        let permit = match Arc::clone(&free).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.displace()?;
                free.acquire_owned().await.ok()?
            }
        };
        let clock = Arc::new(ConnectionClock::new(limits));
        let mut clocks = lock(&self.clocks);
        // Those of ended connections are removed, so that the list does not grow.
        if clocks.len() == clocks.capacity() {
            clocks.retain(|clock| clock.strong_count() > 0);
        }
        clocks.push(Arc::downgrade(&clock));
        Some(ConnectionPlace { _permit: permit, clock })
    }

    /// Ends the connection that has waited longest for a request.
    fn displace(&self) -> Option<()> {
        let mut clocks = lock(&self.clocks);
        clocks.retain(|clock| clock.strong_count() > 0);
        let live: Vec<Arc<ConnectionClock>> = clocks.iter().filter_map(Weak::upgrade).collect();
        let waiting = live.iter().filter_map(|clock| Some((clock.waiting_since()?, clock)));
        let (_, clock) = waiting.min_by_key(|(since, _)| *since)?;
        clock.displace();
        Some(())
    }
}

/// No code panics while it holds the lock, so a poisoned one has valid contents.
fn lock(clocks: &Mutex<Vec<Weak<ConnectionClock>>>) -> MutexGuard<'_, Vec<Weak<ConnectionClock>>> {
    clocks.lock().unwrap_or_else(PoisonError::into_inner)
}
