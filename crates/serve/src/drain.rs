//! The end of a server's connections, and the requests for which it waits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// The requests of a server's connections, and their end. Clones share it.
#[derive(Clone, Debug)]
pub struct Drain(Arc<DrainState>);

#[derive(Debug)]
struct DrainState {
    /// The number of requests whose response has not been written.
    requests: watch::Sender<usize>,
    is_closing: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Drain {
        let state = DrainState { requests: watch::Sender::new(0), is_closing: watch::Sender::new(false) };
        Drain(Arc::new(state))
    }
}

impl Drain {
    /// The number of requests whose response has not been written to its end.
    pub fn requests(&self) -> usize {
        *self.0.requests.borrow()
    }

    /// Waits until no request is left, at most for `limit`. Returns the number that is left.
    pub async fn until_idle(&self, limit: Duration) -> usize {
        let mut requests = self.0.requests.subscribe();
        let _ = timeout(limit, requests.wait_for(|requests| *requests == 0)).await;
        self.requests()
    }

    /// Accepts no more connections, and closes those that wait for a request.
    pub fn close(&self) {
        self.0.is_closing.send_replace(true);
    }

    /// Waits for [`Drain::close`].
    pub(crate) fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut is_closing = self.0.is_closing.subscribe();
        async move {
            // An error means that nobody is left to close.
            let _ = is_closing.wait_for(|is_closing| *is_closing).await;
        }
    }

    /// Counts a request until the result is dropped.
    pub(crate) fn count_request(&self) -> CountedRequest {
        self.0.requests.send_modify(|requests| *requests += 1);
        CountedRequest(self.clone())
    }
}

/// A request that counts as running.
pub(crate) struct CountedRequest(Drain);

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.0.requests.send_modify(|requests| *requests -= 1);
    }
}
