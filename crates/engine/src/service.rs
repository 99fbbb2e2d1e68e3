//! How a request wants to be served: for whom, how urgently, and for how long.

use std::sync::Arc;
use std::time::Duration;

/// The party that a request belongs to, such as the holder of an API key. Tenants share the
/// model's time by tokens, and no state: a prompt of one never finds a prefix of another. The
/// default is the tenant of programs that have only one.
///
/// ```
/// use girih_engine::Tenant;
///
/// assert_ne!(Tenant::new("alice"), Tenant::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Option<Arc<str>>);

impl Tenant {
    /// The maximum length of a name in bytes.
    pub const MAX_NAME_BYTES: usize = 256;

    /// Returns the tenant of this name.
    pub fn new(name: &str) -> Tenant {
        Tenant(Some(name.into()))
    }

    /// The tenant as bytes, from which [`Tenant::from_key`] makes it again.
    pub fn key(&self) -> Vec<u8> {
        match &self.0 {
            None => Vec::new(),
            Some(name) => [b"=", name.as_bytes()].concat(),
        }
    }

    /// The tenant of this [`Tenant::key`]; `None` if it is no key.
    pub fn from_key(key: &[u8]) -> Option<Tenant> {
        match key {
            [] => Some(Tenant::default()),
            [b'=', name @ ..] if name.len() <= Tenant::MAX_NAME_BYTES => {
                Some(Tenant::new(std::str::from_utf8(name).ok()?))
            }
            _ => None,
        }
    }

    /// The name; empty for the default tenant.
    pub fn name(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

/// The order in which waiting requests are admitted: higher ones first. A lower priority is
/// passed over a bounded number of times, so it never starves; see
/// [`Scheduler`](crate::scheduler::Scheduler).
///
/// ```
/// use girih_engine::Priority;
///
/// assert!(Priority::Low < Priority::default() && Priority::default() < Priority::High);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// After the others, such as work in batches.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before the others.
    High,
}

impl Priority {
    /// All priorities, the lowest first.
    pub const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];
}

/// How long a request may take, from its submission. A request that takes longer ends with
/// [`Stop::Deadline`](crate::Stop::Deadline) before the next step, also while it waits or is
/// suspended; one that waits longer than `queue` fails with
/// [`ErrorKind::WaitTooLong`](crate::ErrorKind::WaitTooLong).
///
/// ```
/// use std::time::Duration;
///
/// use girih_engine::TimeLimits;
///
/// let limits = TimeLimits { whole: Some(Duration::from_secs(60)), ..TimeLimits::default() };
/// assert_eq!(limits.first_token, None); // No limit of its own.
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeLimits {
    /// The maximum time until it is admitted for the first time.
    pub queue: Option<Duration>,
    /// The maximum time until the first token of the reply.
    pub first_token: Option<Duration>,
    /// The maximum time until the end.
    pub whole: Option<Duration>,
}
