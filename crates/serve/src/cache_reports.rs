//! Why a prompt was not served from the prefix cache: for the header of its response, the log, and
//! `/v1/girih/cache`.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderName, HeaderValue};
use girih::{NearestPrompt, PromptMap, PromptPart, Stats, Tenant};

/// The header of a response that says how much of its prompt was cached, and why not more.
pub const HEADER: HeaderName = HeaderName::from_static("x-girih-cache");

/// The maximum number of tenants whose reports are kept.
const MAX_TENANTS: usize = 64;

/// The maximum number of reports of a tenant.
const MAX_REPORTS: usize = 16;

/// The tokens whose text a report has.
const TEXT_TOKENS: usize = 24;

/// The tokens by which state that is kept at the ends of blocks may lie before the first token that differs.
const BLOCK_TOKENS: u32 = 64;

/// Why no more of a prompt was cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheReason {
    /// All of it was, but the last token, whose logits are needed.
    Whole,
    /// The tenant has no earlier prompt that begins so.
    First,
    /// Its next token differs from the nearest earlier prompt.
    Differs,
    /// An earlier prompt that has more of it was evicted.
    Evicted,
    /// The state up to there is not kept any more: it lies behind a window.
    Window,
}

/// How much of a prompt was cached, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheReport {
    /// The tokens of the prompt.
    pub prompt: u32,
    /// Those that were cached.
    pub cached: u32,
    /// Why not more were.
    pub reason: CacheReason,
    /// The first token that is not that of the nearest earlier prompt, if there is one.
    pub position: Option<u32>,
    /// The part of the prompt in which that token lies.
    pub part: Option<PromptPart>,
    /// The text from there on, if prompts are logged.
    pub text: Option<String>,
}

impl CacheReport {
    /// The report of a prompt of `prompt` tokens.
    pub fn new(prompt: u32, stats: &Stats, map: Option<&PromptMap>, has_text: bool) -> CacheReport {
        let (reason, position) = reason(prompt, stats.cached, stats.nearest);
        let place = position.zip(map);
        let text = place.filter(|_| has_text).map(|(position, map)| map.text_at(position, TEXT_TOKENS));
        let part = place.map(|(position, map)| map.part_at(position));
        CacheReport { prompt, cached: stats.cached, reason, position, part, text }
    }

    /// The value of the header.
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.to_string()).ok()
    }
}

fn reason(prompt: u32, cached: u32, nearest: NearestPrompt) -> (CacheReason, Option<u32>) {
    let NearestPrompt { held, evicted } = nearest;
    let last = prompt.saturating_sub(1);
    let longest = held.max(evicted);
    if cached >= last {
        (CacheReason::Whole, None)
    } else if longest == 0 && cached == 0 {
        (CacheReason::First, None)
    } else if evicted > held && evicted > cached {
        (CacheReason::Evicted, Some(evicted.min(last)))
    } else if held >= cached.saturating_add(BLOCK_TOKENS) {
        (CacheReason::Window, Some(held.min(last)))
    } else {
        (CacheReason::Differs, Some(longest.max(cached).min(last)))
    }
}

impl CacheReason {
    /// Its name in the header.
    pub fn name(self) -> &'static str {
        match self {
            CacheReason::Whole => "whole",
            CacheReason::First => "first",
            CacheReason::Differs => "differs",
            CacheReason::Evicted => "evicted",
            CacheReason::Window => "window",
        }
    }
}

/// The name of a part, in ASCII.
pub fn part_name(part: &PromptPart) -> String {
    match part {
        PromptPart::Start => "start".to_owned(),
        PromptPart::System => "system".to_owned(),
        PromptPart::Tools => "tools".to_owned(),
        PromptPart::Message { number, role } => {
            let role: String = role.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
            format!("message {number} {role}")
        }
    }
}

impl fmt::Display for CacheReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheReport { prompt, cached, reason, .. } = self;
        write!(f, "prompt={prompt}; cached={cached}; reason={}", reason.name())?;
        if let Some(position) = self.position {
            write!(f, "; position={position}")?;
        }
        if let Some(part) = &self.part {
            write!(f, "; part=\"{}\"", part_name(part))?;
        }
        Ok(())
    }
}

/// A report, and of which model.
#[derive(Clone, Debug)]
pub struct KeptReport {
    /// The model's name.
    pub model: String,
    /// When it was made, in seconds since 1970.
    pub time: u64,
    /// The report.
    pub report: CacheReport,
}

/// The last reports of each tenant.
#[derive(Debug, Default)]
pub struct CacheReports(Mutex<VecDeque<(Tenant, VecDeque<KeptReport>)>>);

impl CacheReports {
    /// Keeps a report of a tenant.
    pub fn add(&self, tenant: &Tenant, report: KeptReport) {
        let mut all = self.lock();
        let at = all.iter().position(|(owner, _)| owner == tenant);
        let (_, mut own) = at.and_then(|at| all.remove(at)).unwrap_or_default();
        own.push_back(report);
        if own.len() > MAX_REPORTS {
            own.pop_front();
        }
        all.push_back((tenant.clone(), own));
        if all.len() > MAX_TENANTS {
            all.pop_front();
        }
    }

    /// The reports of a tenant, the newest first.
    pub fn of(&self, tenant: &Tenant) -> Vec<KeptReport> {
        let all = self.lock();
        let own = all.iter().find(|(owner, _)| owner == tenant);
        own.map(|(_, reports)| reports.iter().rev().cloned().collect()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Tenant, VecDeque<KeptReport>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_has_its_reason_and_its_place() {
        let of = |prompt, cached, held, evicted| {
            let stats = Stats { cached, nearest: NearestPrompt { held, evicted }, ..Stats::default() };
            CacheReport::new(prompt, &stats, None, true).to_string()
        };
        assert_eq!(of(10, 0, 0, 0), "prompt=10; cached=0; reason=first");
        assert_eq!(of(10, 9, 9, 0), "prompt=10; cached=9; reason=whole");
        assert_eq!(of(100, 40, 40, 3), "prompt=100; cached=40; reason=differs; position=40");
        assert_eq!(of(100, 0, 40, 0), "prompt=100; cached=0; reason=differs; position=40");
        assert_eq!(of(500, 0, 64, 0), "prompt=500; cached=0; reason=window; position=64");
        assert_eq!(of(500, 0, 0, 300), "prompt=500; cached=0; reason=evicted; position=300");
        assert_eq!(of(500, 256, 256, 256), "prompt=500; cached=256; reason=differs; position=256");
    }

    #[test]
    fn reports_are_kept_for_their_tenant_within_bounds() {
        let reports = CacheReports::default();
        let report = CacheReport::new(2, &Stats::default(), None, false);
        let add = |tenant: &Tenant, time| {
            reports.add(tenant, KeptReport { model: "m".to_owned(), time, report: report.clone() });
        };
        let (one, two) = (Tenant::new("one"), Tenant::new("two"));
        (0..20).for_each(|time| add(&one, time));
        add(&two, 1);
        let times: Vec<u64> = reports.of(&one).iter().map(|kept| kept.time).collect();
        assert_eq!((times.len(), times[0], times[15]), (16, 19, 4));
        assert_eq!(reports.of(&two).len(), 1);
        (0..64).for_each(|number| add(&Tenant::new(&format!("t{number}")), 0));
        assert!(reports.of(&one).is_empty());
    }
}
