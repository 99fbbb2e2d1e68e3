//! What the body of a request takes of the memory of all bodies, until nothing of it is in memory.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

tokio::task_local! {
    /// The room of the request that a task answers, until it is freed.
    static CURRENT: RefCell<Option<Arc<BodyRoom>>>;
}

/// What a body takes of the memory of all bodies, until it is dropped.
#[derive(Debug, Default)]
pub struct BodyRoom {
    /// Of that of bodies without images.
    pub text: Option<OwnedSemaphorePermit>,
    /// Of that of what is beyond them.
    pub large: Option<OwnedSemaphorePermit>,
}

impl BodyRoom {
    /// Answers a request whose body has this room. Work of the request in the background holds it, too, as it goes on when
    /// the client leaves.
    pub async fn scope<T>(self, rest: impl Future<Output = T>) -> T {
        CURRENT.scope(RefCell::new(Some(Arc::new(self))), rest).await
    }

    /// The room of the request that this task answers; `None` if it has none, or none any more.
    pub fn current() -> Option<Arc<BodyRoom>> {
        CURRENT.try_with(|room| room.borrow().clone()).ok().flatten()
    }

    /// Gives up the room of the request that this task answers, of whose body nothing is in memory any more.
    pub fn free_current() {
        // Tests without a server have none.
        let _ = CURRENT.try_with(RefCell::take);
    }
}
