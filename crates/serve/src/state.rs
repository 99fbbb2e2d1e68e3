//! What all requests share: the models, and the generations that are in progress.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use girih::{CancelHandle, Result, Tenant};
use tokio::sync::Mutex as AsyncMutex;

use crate::access::PageToken;
use crate::cache_reports::CacheReports;
use crate::caller::ApiCaller;
use crate::drain::Drain;
use crate::error::ApiError;
use crate::fetched_images::FetchingImages;
use crate::model_changes::ModelChanger;
use crate::models::ServedModels;
use crate::observe::Metrics;
use crate::options::ServeOptions;
use crate::parameters::ParameterPolicy;
use crate::reply_rules::ReplyRules;
use crate::request_hook::RequestHook;
use crate::served_model::ServedModel;

/// What all requests share.
pub struct ServerState {
    /// The models.
    pub models: ServedModels,
    /// Changes which models there are, if clients may.
    pub model_changer: Option<Arc<dyn ModelChanger>>,
    /// The folder from which clients may load adapters.
    pub adapter_folder: Option<PathBuf>,
    /// Held while adapters change.
    pub(crate) changing_adapters: Arc<AsyncMutex<()>>,
    /// Fetches images that requests name by URL, if the server may.
    pub fetching_images: FetchingImages,
    /// Changes requests before they are queued.
    pub request_hook: Option<RequestHook>,
    /// What holds for all replies.
    pub reply_rules: ReplyRules,
    /// Why prompts were not served from the prefix cache.
    pub cache_reports: CacheReports,
    /// Whether reports may have texts of prompts.
    pub logs_prompts: bool,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What happens to parameters without effect.
    pub parameters: Arc<ParameterPolicy>,
    /// By what the server knows its page.
    pub page_token: PageToken,
    /// The requests of its connections, and their end.
    pub drain: Drain,
    phase: AtomicU8,
    live: Mutex<LiveGenerations>,
}

/// What the server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPhase {
    /// The models are being loaded; requests wait.
    Loading,
    /// Requests are served.
    Ready,
    /// As [`ServerPhase::Ready`], but the server says that it is not: it will end soon.
    Leaving,
    /// Requests that run are served to their end, and others are refused.
    Draining,
}

/// The generations in progress.
#[derive(Default)]
struct LiveGenerations {
    next: u64,
    by_number: BTreeMap<u64, LiveGeneration>,
    /// Whether all replies are to end now.
    is_cancelled: bool,
}

struct LiveGeneration {
    model: String,
    tenant: Tenant,
    replies: u32,
    handles: Vec<CancelHandle>,
}

impl ServerState {
    /// The state of a server that is about to load its models.
    ///
    /// # Errors
    /// As [`ServedModels::new`] and [`PageToken::random`].
    pub fn new(options: &ServeOptions) -> Result<ServerState> {
        Ok(ServerState {
            models: ServedModels::new(options)?,
            model_changer: options.model_changer.clone(),
            adapter_folder: options.adapter_folder.clone(),
            changing_adapters: Arc::default(),
            fetching_images: FetchingImages::new(options.image_fetcher.clone()),
            request_hook: options.request_hook.clone(),
            reply_rules: options.reply_rules,
            cache_reports: CacheReports::default(),
            logs_prompts: options.access_log.as_ref().is_some_and(|log| log.has_bodies),
            metrics: Arc::new(Metrics::new(options.metrics_compat)),
            parameters: Arc::new(
                ParameterPolicy::new(options.unknown_parameters, options.notice)
                    .keeping_header_lines(options.keeps_header_lines),
            ),
            page_token: PageToken::random()?,
            drain: Drain::default(),
            phase: AtomicU8::new(ServerPhase::Loading as u8),
            live: Mutex::default(),
        })
    }

    /// What the server does.
    pub fn phase(&self) -> ServerPhase {
        let phases = [ServerPhase::Loading, ServerPhase::Ready, ServerPhase::Leaving, ServerPhase::Draining];
        phases[usize::from(self.phase.load(Ordering::Acquire)).min(phases.len() - 1)]
    }

    /// Says what the server does now.
    pub fn set_phase(&self, phase: ServerPhase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// The number of generations in progress.
    pub fn live_generations(&self) -> usize {
        self.lock().by_number.len()
    }

    /// The number of replies of a model in progress, running or waiting.
    pub fn live_replies(&self, model: &str) -> u32 {
        self.lock().replies(|live| live.model == model)
    }

    /// Takes the places of `replies` replies in the queue of a model, before any work is done for them.
    ///
    /// # Errors
    /// When the queue or the caller's share of it is full (status 429), or the server ends (503).
    pub fn admit(
        self: &Arc<ServerState>,
        model: &ServedModel,
        caller: &ApiCaller,
        replies: u32,
    ) -> Result<Admission, ApiError> {
        if self.phase() == ServerPhase::Draining {
            return Err(ApiError::shutting_down());
        }
        let capacity = model.run_options.sequences.saturating_add(model.run_options.waiting);
        if replies > capacity {
            let message =
                format!("{replies} replies were requested; the server's queue has {capacity} places");
            return Err(ApiError::invalid("n", message));
        }
        if let Some(max) = caller.max_replies
            && replies > max
        {
            let message = format!("{replies} replies were requested; a key may have {max} at once");
            return Err(ApiError::invalid("n", message));
        }
        let mut live = self.lock();
        let of_model = live.replies(|live| live.model == model.name);
        if of_model.saturating_add(replies) > capacity {
            let message =
                format!("{of_model} replies run or wait, and the maximum is {capacity}; try again later");
            drop(live);
            return Err(ApiError::too_many(message).retry_after(self.models.expected_wait(&model.name)));
        }
        let of_tenant = live.replies(|live| live.tenant == caller.tenant);
        if let Some(max) = caller.max_replies
            && of_tenant.saturating_add(replies) > max
        {
            let message = format!(
                "{of_tenant} replies of this key run or wait, and the maximum is {max}; try again later"
            );
            return Err(ApiError::too_many(message));
        }
        let number = live.next;
        live.next += 1;
        let tenant = caller.tenant.clone();
        let generation = LiveGeneration { model: model.name.clone(), tenant, replies, handles: Vec::new() };
        live.by_number.insert(number, generation);
        Ok(Admission { state: Arc::clone(self), number })
    }

    /// Drops the generations whose replies were complete this long ago but were not read, and frees their
    /// places. Their clients get an error if they read on.
    pub fn drop_unread(&self, time: Duration) {
        let has_ended = |handle: &CancelHandle| handle.ended_for().is_some_and(|ended| ended >= time);
        let is_unread =
            |live: &LiveGeneration| !live.handles.is_empty() && live.handles.iter().all(has_ended);
        let unread = self.lock().by_number.extract_if(.., |_, live| is_unread(live)).collect::<Vec<_>>();
        unread.iter().flat_map(|(_, live)| &live.handles).for_each(CancelHandle::discard);
    }

    /// Cancels all replies in progress.
    pub fn cancel_all(&self) {
        let mut live = self.lock();
        live.is_cancelled = true;
        let handles = live.by_number.values().flat_map(|live| live.handles.iter().cloned());
        let handles: Vec<CancelHandle> = handles.collect();
        drop(live);
        handles.iter().for_each(CancelHandle::cancel);
    }

    fn lock(&self) -> MutexGuard<'_, LiveGenerations> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveGenerations {
    fn replies(&self, counts: impl Fn(&LiveGeneration) -> bool) -> u32 {
        let counted = self.by_number.values().filter(|live| counts(live));
        counted.fold(0, |sum, live| sum.saturating_add(live.replies))
    }
}

/// The places of a generation in the queue, which are free again when it is dropped.
pub struct Admission {
    state: Arc<ServerState>,
    number: u64,
}

impl Admission {
    /// Sets the handles by which the server ends the replies when it ends.
    pub fn set_handles(&self, handles: Vec<CancelHandle>) {
        let mut live = self.state.lock();
        if live.is_cancelled {
            drop(live);
            handles.iter().for_each(CancelHandle::cancel);
        } else if let Some(generation) = live.by_number.get_mut(&self.number) {
            generation.handles = handles;
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.state.lock().by_number.remove(&self.number);
    }
}
