//! What drafts tokens for a session's requests, and the check that a draft model fits.

use girih_graph::{Error, ErrorKind, Result};

use crate::model::Model;

/// What drafts tokens for the requests of a session. The model checks several drafted tokens in one
/// step, which changes the speed of a reply, not its tokens (except on the `npu` backend).
///
/// ```
/// use girih::{Drafts, Model, Request, RunOptions};
///
/// let model = Model::open("stories260k")?;
/// let options = RunOptions { drafts: Drafts::PromptLookup, ..RunOptions::default() };
/// let session = model.plan(options)?.start(|_| {})?;
/// let request = || Request::new("Lily and Tom. Lily and Tom. Lily").max_tokens(60);
/// assert_eq!(session.generate(request())?.text()?, model.start()?.generate(request())?.text()?);
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Drafts {
    /// Nothing, except for requests with a drafter of their own.
    #[default]
    Off,
    /// Prompt lookup: what followed the last tokens when they occurred before, in the prompt or in
    /// the reply. It takes no memory, and is fast where a reply repeats parts of its prompt.
    PromptLookup,
    /// A smaller model with the same vocabulary, which runs on the same backend; or an assistant, which reads the hidden
    /// states, keys and values of the model that it was made for.
    Model(Model),
    /// The model's own layer that predicts the token after the next one (multi-token prediction), which reads its hidden
    /// states. Models without one are refused. It has a copy of the head in memory.
    Mtp,
}

/// Checks that `draft` can draft for `model`: the same ids must stand for the same bytes. Ids that
/// only one of the models has are allowed.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`] when they differ, or when one has no tokenizer; then the sizes
/// of the vocabularies are compared if the other one has none either.
pub(crate) fn check_draft_model(model: &Model, draft: &Model) -> Result<()> {
    let refused = |reason: String| {
        let (name, other) = (draft.name(), model.name());
        let sentence =
            format!("{name} cannot draft for {other}: {reason}; choose a model of the same family");
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    };
    let are_known = draft.text_processor().is_ok() && model.text_processor().is_ok();
    if draft.files().facts.assistant.is_some() && !are_known {
        // It reads the model's embedding, so that its ids are the model's; its vocabulary has as many rows.
        return Ok(());
    }
    if draft.files().facts.is_encoder() {
        return refused("it is an encoder, which generates no text".to_owned());
    }
    let (own, other) = match (draft.text_processor(), model.text_processor()) {
        (Ok(own), Ok(other)) => (&own.tokenizer, &other.tokenizer),
        (Err(_), Err(_)) => {
            let [own, other] = [draft, model].map(|model| model.files().facts.sizes.vocabulary);
            return match own == other {
                true => Ok(()),
                false => refused(format!("its vocabulary has {own} tokens instead of {other}")),
            };
        }
        (Err(error), Ok(_)) => return refused(format!("its vocabulary is not known ({error})")),
        (Ok(_), Err(error)) => {
            return refused(format!("the vocabulary of the latter is not known ({error})"));
        }
    };
    let Some(id) = own.first_difference(other) else { return Ok(()) };
    let quoted = |token: Option<&str>| girih_file::quote(token.unwrap_or_default());
    refused(format!("token {id} is {} instead of {}", quoted(own.token(id)), quoted(other.token(id))))
}
