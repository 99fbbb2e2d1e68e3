//! A function of the program that changes requests before they are queued.

use std::fmt;
use std::sync::Arc;

use girih::{Model, Prompt, Request};

/// A function that changes requests before they are queued: it gets the model, the prompt and the
/// request, and returns the request that runs. It may add what a [`Request`] has and no API can
/// express, such as a priority, time limits, a drafter or a constraint.
///
/// ```
/// use girih::Priority;
/// use girih_serve::RequestHook;
///
/// let hook = RequestHook::new(|_, _, request| request.priority(Priority::Low));
/// ```
#[derive(Clone)]
pub struct RequestHook(Arc<HookFunction>);

type HookFunction = dyn Fn(&Model, &Prompt, Request) -> Request + Send + Sync;

impl RequestHook {
    /// A hook that calls `function` for each prompt of a request, on a thread that may wait.
    pub fn new(
        function: impl Fn(&Model, &Prompt, Request) -> Request + Send + Sync + 'static,
    ) -> RequestHook {
        RequestHook(Arc::new(function))
    }

    /// The request that runs in place of `request`.
    pub(crate) fn changed(&self, model: &Model, prompt: &Prompt, request: Request) -> Request {
        (self.0)(model, prompt, request)
    }
}

impl fmt::Debug for RequestHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHook").finish_non_exhaustive()
    }
}
