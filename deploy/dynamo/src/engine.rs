//! The engine that Dynamo starts, asks and ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use dynamo_backend_common::engine::GenerateContext;
use dynamo_backend_common::{
    BackendError, DynamoError, EngineConfig, KvEventSource, LLMEngine, LLMEngineOutput, LlmRegistration,
    PreprocessedRequest, WorkerConfig,
};
use futures::stream::BoxStream;
use girih::{BLOCK_POSITIONS, Model, OpenOptions, RunOptions, Session};
use tokio::sync::watch;

use crate::args::WorkerArgs;
use crate::error::{dynamo_error, engine_error};
use crate::kv_events::KvEventFeed;
use crate::live_reply::LiveReply;
use crate::request::girih_request;

/// A model of girih as an engine of Dynamo.
pub struct GirihEngine {
    args: WorkerArgs,
    options: OpenOptions,
    feed: Arc<KvEventFeed>,
    /// Present from the start to the end.
    running: Mutex<Option<RunningModel>>,
    /// Whether it was ended.
    ended: watch::Sender<bool>,
}

/// A model that runs, and the tokens that end its replies.
#[derive(Clone)]
struct RunningModel {
    session: Session,
    ends: Vec<u32>,
}

impl GirihEngine {
    /// An engine that has not started, and what Dynamo registers of its worker. `options` has what the environment says.
    ///
    /// # Errors
    /// When the worker is to run a part of a request.
    pub fn new(args: WorkerArgs, options: OpenOptions) -> Result<(GirihEngine, WorkerConfig), DynamoError> {
        let config = args.worker_config()?;
        let feed = Arc::default();
        let engine =
            GirihEngine { args, options, feed, running: Mutex::new(None), ended: watch::Sender::new(false) };
        Ok((engine, config))
    }

    fn running(&self) -> MutexGuard<'_, Option<RunningModel>> {
        // No code panics while it holds the lock.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs work that takes long or waits on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DynamoError> + Send + 'static,
) -> Result<T, DynamoError> {
    let panicked = |_| Err(engine_error(BackendError::Unknown, "girih's worker panicked"));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(panicked)
}

#[async_trait]
impl LLMEngine for GirihEngine {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let (name, options) = (self.args.model.clone(), self.options.clone());
        let observer = Some(self.feed.observer(self.args.served_name()));
        let run = RunOptions { cache_observer: observer, ..self.args.run_options() };
        let open = move || {
            let model = Model::open_with(&name, &options)?;
            let ends = model.stop_tokens()?;
            Ok((model.plan(run)?.start(|_| {})?, ends))
        };
        let (session, ends) = blocking(move || open().map_err(dynamo_error)).await?;
        let limits = session.limits();
        let blocks = u64::from(limits.context).div_ceil(BLOCK_POSITIONS as u64);
        let registration = LlmRegistration {
            context_length: Some(limits.context),
            kv_cache_block_size: Some(BLOCK_POSITIONS as u32),
            total_kv_blocks: Some(u64::from(limits.sequences) * blocks),
            max_num_seqs: Some(limits.sequences.into()),
            max_num_batched_tokens: Some(limits.chunk.into()),
            ..LlmRegistration::default()
        };
        *self.running() = Some(RunningModel { session, ends });
        Ok(EngineConfig {
            model: self.args.model.clone(),
            served_model_name: Some(self.args.served_name().to_owned()),
            llm: Some(registration),
            ..EngineConfig::default()
        })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        context: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let Some(RunningModel { session, ends }) = self.running().clone() else {
            return Err(engine_error(BackendError::EngineShutdown, "the engine does not run: it was ended"));
        };
        let ended = self.ended.subscribe();
        let reply = blocking(move || {
            let request = girih_request(request, session.model(), &ends)?;
            session.generate(request).map_err(dynamo_error)
        });
        Ok(LiveReply::new(reply.await?, context, ended).into_stream())
    }

    /// Ends running replies as cancelled, and waits for the engine's thread. `abort` is not needed: each stream notices when its client leaves.
    async fn cleanup(&self) -> Result<(), DynamoError> {
        self.ended.send_replace(true);
        let running = self.running().take();
        blocking(move || {
            drop(running);
            Ok(())
        })
        .await
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        Ok(vec![self.feed.source()])
    }
}
