//! The arguments of the worker.

use clap::{Parser, value_parser};
use dynamo_backend_common::{CommonArgs, DisaggregationMode, DynamoError, WorkerConfig};
use girih::RunOptions;

use crate::error::refuse;

/// The maximum number of rows of a step: running replies wait for the rows of prompts beside them.
const CHUNK: u32 = 128;

/// Serves a model to the frontend of NVIDIA Dynamo.
#[derive(Clone, Debug, Parser)]
#[command(name = "girih-dynamo")]
pub struct WorkerArgs {
    /// Folder with weights, config.json and tokenizer.json
    pub model: String,
    /// Name of the model in requests (default: MODEL)
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Maximum number of tokens of a prompt with its reply (default: the model's, at most 4096)
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Maximum number of requests that run at once; others wait
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = value_parser!(u32).range(1..))]
    pub sequences: u32,
    /// Number of threads (does not affect results)
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// What all workers of Dynamo have.
    #[command(flatten)]
    pub common: CommonArgs,
}

impl WorkerArgs {
    /// The name of the model in requests.
    pub(crate) fn served_name(&self) -> &str {
        self.served_model_name.as_deref().unwrap_or(&self.model)
    }

    /// How the model is run.
    pub(crate) fn run_options(&self) -> RunOptions {
        let default = RunOptions::default();
        let threads = self.threads.map(|threads| threads as usize);
        RunOptions {
            backend: default.backend.with_threads(threads),
            context: self.context,
            sequences: self.sequences,
            chunk: CHUNK,
            ..default
        }
    }

    /// What Dynamo registers of the worker.
    ///
    /// # Errors
    /// When the worker is to run a part of a request.
    pub(crate) fn worker_config(&self) -> Result<WorkerConfig, DynamoError> {
        let common = self.common.clone();
        refuse(
            "a disaggregation mode but agg",
            common.disaggregation_mode != DisaggregationMode::Aggregated,
        )?;
        refuse("an encoder before it", common.route_to_encoder)?;
        Ok(WorkerConfig {
            namespace: common.namespace,
            component: common.component,
            endpoint: common.endpoint,
            model_name: self.model.clone(),
            served_model_name: Some(self.served_name().to_owned()),
            endpoint_types: common.endpoint_types,
            custom_jinja_template: common.custom_jinja_template,
            tool_call_parser: common.dyn_tool_call_parser,
            reasoning_parser: common.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
            enable_rl: common.enable_rl,
            runtime: common.runtime,
            ..WorkerConfig::default()
        })
    }
}
