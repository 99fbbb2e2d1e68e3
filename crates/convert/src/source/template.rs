//! Compares the chat template of a file with that of its source.

use girih_tensor::{Error, Result};
use girih_words::TextProcessor;
use girih_words::template::{Conversation, RenderRequest, Renderer};

use super::conversations::conversations;
use super::finding::{SourceFinding, SourcePart, SourceVerdict};

/// The time at which templates are rendered: 2026-01-01 in UTC.
const UNIX_SECONDS: i64 = 1_767_225_600;

/// The characters on each side of the first difference that a sentence shows.
const SHOWN: usize = 24;

/// Compares templates by what they make of conversations.
pub(super) fn compare(
    ours: &TextProcessor,
    theirs: &TextProcessor,
    renderer: &mut Renderer,
) -> SourceFinding {
    let finding =
        |verdict, detail: String| SourceFinding::new(SourcePart::ChatTemplate, "prompts", verdict, detail);
    let (one, other) = match (&ours.template, &theirs.template) {
        (None, None) => return finding(SourceVerdict::Agrees, "neither has one".to_owned()),
        (None, Some(_)) => return finding(SourceVerdict::Differs, "only the source has one".to_owned()),
        (Some(_), None) => {
            return finding(SourceVerdict::NotCompared, "only the file has one".to_owned());
        }
        (Some(one), Some(other)) => (one.source(None), other.source(None)),
    };
    let is_equal_text = matches!((one, other), (Ok(one), Ok(other)) if one == other);
    let (mut count, mut refused) = (0, 0);
    for (name, conversation) in conversations() {
        let [one, other] = [ours, theirs].map(|text| rendered(text, renderer, &conversation));
        match (one, other) {
            (Ok(one), Ok(other)) if one == other => count += 1,
            (Err(_), Err(_)) => refused += 1,
            (one, other) => return finding(SourceVerdict::Differs, difference(name, one, other)),
        }
    }
    let text = if is_equal_text { "equal text" } else { "another text, but equal prompts" };
    let refused = if refused == 0 { String::new() } else { format!("; both refuse {refused} more") };
    finding(SourceVerdict::Agrees, format!("{text}; {count} conversations have equal prompts{refused}"))
}

fn rendered(text: &TextProcessor, renderer: &mut Renderer, conversation: &Conversation) -> Result<String> {
    let template = text.template.as_ref().ok_or_else(|| Error::new("the model has no chat template"))?;
    let spans = renderer.render(&RenderRequest {
        template: template.source(conversation.tools.as_deref())?,
        variables: &template.variables,
        special_tokens: &text.special,
        conversation,
        has_typed_texts: false,
        unix_seconds: UNIX_SECONDS,
    })?;
    Ok(spans.iter().map(|span| span.text.as_str()).collect())
}

/// The first difference of two prompts, in words.
fn difference(name: &str, one: Result<String>, other: Result<String>) -> String {
    let (one, other) = match (one, other) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(error), _) => return format!("conversation '{name}': the file's fails: {error}"),
        (_, Err(error)) => return format!("conversation '{name}': the source's fails: {error}"),
    };
    let equal = one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    let around = |text: &str| -> String {
        let start = equal.saturating_sub(SHOWN);
        text.chars().skip(start).take(equal - start + SHOWN).collect()
    };
    let (one, other) = (around(&one), around(&other));
    format!(
        "conversation '{name}' differs at character {equal}: {one:?} in the file, {other:?} in the source"
    )
}
