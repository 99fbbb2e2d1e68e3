//! Prompts as the model reads them, without replies: what a router needs to find where a prompt is cached.

use std::sync::Arc;

use girih::RenderedPrompt;

use crate::background::in_background;
use crate::caller::ApiCaller;
use crate::error::ApiError;
use crate::generation::{GenerationRequest, PromptContext, PromptRequest, model_of, of_template, turns};
use crate::ready_session::ready_session;
use crate::state::ServerState;

/// The prompts of a request as its model reads them. The request is checked as by [`begin`](crate::generation::begin), but takes no place.
///
/// # Errors
/// As [`begin`](crate::generation::begin), but for those of places.
pub async fn render(
    state: &Arc<ServerState>,
    caller: &ApiCaller,
    mut request: GenerationRequest,
) -> Result<Vec<RenderedPrompt>, ApiError> {
    let model = &*model_of(state, &mut request).await?;
    let session = ready_session(state, model).await?;
    let turns = turns(state, caller, model, &mut request).await?;
    let client = Arc::new(());
    let there = Arc::downgrade(&client);
    let (hook, tenant) = (state.request_hook.clone(), caller.tenant.clone());
    let rendered = in_background(move || {
        let _turns = turns;
        let prompts = std::mem::take(&mut request.prompts);
        let sampling = request.checked_sampling(session.model())?;
        let context = PromptContext {
            model: session.model(),
            sampling,
            tenant: &tenant,
            hook: hook.as_ref(),
            client: &there,
        };
        let mut tokens = 0_u32;
        let rendered = prompts.into_iter().map(|prompt| {
            let PromptRequest { request: of_prompt, varied, .. } =
                request.of_prompt(prompt, true, &context)?;
            let rendered = session.render(of_prompt);
            let rendered = rendered.map_err(|error| of_template(error, context.model, varied.as_ref()))?;
            tokens = tokens.saturating_add(u32::try_from(rendered.tokens.len()).unwrap_or(u32::MAX));
            request.check_prompt_logprobs(tokens)?;
            Ok(rendered)
        });
        rendered.collect()
    })
    .await;
    drop(client);
    rendered
}
