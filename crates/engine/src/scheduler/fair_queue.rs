//! The waiting requests of one priority, in the order of start-time fair queueing (Goyal, Vin
//! and Cheng, SIGCOMM 1996): the tenant that was served the fewest tokens goes first.
//!
//! Each tenant has a counter of the tokens that it was served. The virtual time is the counter
//! of the tenant that was admitted last, before it was charged. A tenant that begins to wait is
//! lifted to the virtual time, so it cannot save up service while it asks for none. As in the
//! virtual token counter (Sheng et al., OSDI 2024), tokens of a reply are charged when they are
//! chosen, because their number is not known at admission.

use std::collections::{BTreeMap, BTreeSet};

use crate::request::RequestId;
use crate::service::Tenant;

/// The number of tenants beyond which those that do not wait are forgotten.
const REMEMBERED_TENANTS: usize = 1024;

/// The waiting requests of one priority.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    tenants: BTreeMap<Tenant, Account>,
    virtual_time: u64,
    waiting: usize,
}

/// What a tenant was served, and its waiting requests by age.
#[derive(Debug, Default)]
struct Account {
    served: u64,
    waiting: BTreeSet<RequestId>,
}

impl FairQueue {
    /// The number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// The number of waiting requests of a tenant.
    pub fn waiting_of(&self, tenant: &Tenant) -> usize {
        self.tenants.get(tenant).map_or(0, |account| account.waiting.len())
    }

    /// Adds a request: behind all older ones of its tenant, before all younger ones.
    pub fn add(&mut self, tenant: &Tenant, id: RequestId) {
        let account = self.tenants.entry(tenant.clone()).or_default();
        if account.waiting.is_empty() {
            account.served = account.served.max(self.virtual_time);
        }
        account.waiting.insert(id);
        self.waiting += 1;
        if self.tenants.len() > REMEMBERED_TENANTS {
            self.tenants.retain(|_, account| !account.waiting.is_empty());
        }
    }

    /// Removes a request.
    pub fn remove(&mut self, tenant: &Tenant, id: RequestId) {
        let account = self.tenants.get_mut(tenant).expect("a tenant that waits is known");
        assert!(account.waiting.remove(&id), "the request waits");
        self.waiting -= 1;
    }

    /// The request that is admitted next: the oldest one of the tenant that was served the
    /// fewest tokens. Among equal tenants, the oldest request.
    pub fn next(&self) -> Option<RequestId> {
        let heads = self.tenants.values().filter_map(|one| Some((one.served, *one.waiting.first()?)));
        heads.min().map(|(_, id)| id)
    }

    /// Removes a request, because it is admitted.
    pub fn admit(&mut self, tenant: &Tenant, id: RequestId) {
        self.remove(tenant, id);
        self.virtual_time = self.virtual_time.max(self.served(tenant));
    }

    /// Counts tokens that a tenant was served.
    pub fn charge(&mut self, tenant: &Tenant, tokens: u32) {
        let served = self.served(tenant);
        let account = self.tenants.entry(tenant.clone()).or_default();
        account.served = served + u64::from(tokens);
    }

    /// The tokens that a tenant was served; the virtual time if it is not remembered.
    pub fn served(&self, tenant: &Tenant) -> u64 {
        self.tenants.get(tenant).map_or(self.virtual_time, |account| account.served)
    }

    /// Forgets what was served, because no request is left: the next ones begin as equals.
    pub fn forget(&mut self) {
        assert_eq!(self.waiting, 0, "no request waits");
        self.tenants.clear();
        self.virtual_time = 0;
    }
}
