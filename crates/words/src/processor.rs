//! Opens a model's tokenizer, special tokens and chat template together.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use girih_file::{Container, ContainerKind, Metadata};
use girih_tensor::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

use super::gguf_vocab::GgufVocab;
use super::template::{ChatTemplate, Conversation, RenderRequest, Renderer, SpecialTokens};
use super::tokenizer::Tokenizer;
use crate::limits::TextLimits;
use crate::span::TextSpan;

/// A model's tokenizer, special tokens and chat template.
#[derive(Debug)]
pub struct TextProcessor {
    /// Converts text to token ids and back. Detokenizers share it.
    pub tokenizer: Arc<Tokenizer>,
    /// Converts conversations to text; `None` if the model has no template.
    pub template: Option<ChatTemplate>,
    /// The texts of special tokens, which are marked in a user's text.
    pub special: SpecialTokens,
    /// Whether the template knows texts only as parts, without tools and with them; found out when it is first needed.
    wants_parts: [OnceLock<bool>; 2],
}

impl TextProcessor {
    /// Opens the model at `path`: a folder with a `tokenizer.json`, or a GGUF
    /// file. Neither has to contain weights.
    ///
    /// # Errors
    /// When the files are malformed, or there is no tokenizer.
    pub fn open(path: &Path, limits: &TextLimits) -> Result<TextProcessor> {
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let is_gguf = path.extension().is_some_and(|extension| extension == "gguf");
        if !is_gguf && folder.join("tokenizer.json").exists() {
            let tokenizer = Tokenizer::from_folder(folder, limits)?;
            return Ok(TextProcessor::new(tokenizer, ChatTemplate::read(folder, limits)?));
        }
        let container = Container::open(path, &limits.file)?;
        match container.kind() {
            ContainerKind::Gguf => TextProcessor::of_gguf(container.metadata(), limits),
            ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => {
                Ok(TextProcessor::new(Tokenizer::from_folder(folder, limits)?, None))
            }
        }
    }

    /// Reads the tokenizer and the template of a GGUF header.
    ///
    /// # Errors
    /// When the vocabulary is missing or not supported.
    pub fn of_gguf(metadata: &Metadata, limits: &TextLimits) -> Result<TextProcessor> {
        let tokenizer = GgufVocab::of(metadata)?.tokenizer(limits)?;
        let template = metadata.get::<&str>("tokenizer.chat_template")?;
        let template = template.map(|source| ChatTemplate::new(source, token_variables(&tokenizer)));
        Ok(TextProcessor::new(tokenizer, template))
    }

    /// Combines a tokenizer and a template.
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> TextProcessor {
        let ids = (0..tokenizer.vocab_size()).filter(|&id| tokenizer.is_special(id));
        let spellings: Vec<String> = ids.filter_map(|id| tokenizer.token(id)).map(str::to_owned).collect();
        let special = SpecialTokens::new(&spellings);
        TextProcessor { special, tokenizer: Arc::new(tokenizer), template, wants_parts: Default::default() }
    }

    /// The same tokenizer with another chat template. The variables of the named tokens stay.
    #[must_use]
    pub fn with_template(mut self, source: &str) -> TextProcessor {
        let own = self.template.take().map(|template| template.variables);
        let variables = own.unwrap_or_else(|| token_variables(&self.tokenizer));
        let template = Some(ChatTemplate::new(source, variables));
        TextProcessor { template, wants_parts: Default::default(), ..self }
    }

    /// Applies the model's chat template to a conversation, at the current time (UTC); returns
    /// the prompt's text, split by who wrote it.
    ///
    /// # Errors
    /// When the model has no template, or rendering fails.
    pub fn render(&self, renderer: &mut Renderer, conversation: &Conversation) -> Result<Vec<TextSpan>> {
        let template = self.template.as_ref().ok_or_else(|| {
            let sentence = "the model has no chat template; give one with --chat-template, or continue a text with \
                            `girih run MODEL TEXT` or /v1/completions";
            Error::with_kind(ErrorKind::Refused, sentence)
        })?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let request = RenderRequest {
            template: template.source(conversation.tools.as_deref())?,
            variables: &template.variables,
            special_tokens: &self.special,
            conversation,
            has_typed_texts: false,
            unix_seconds: i64::try_from(now).unwrap_or(i64::MAX),
        };
        let has_typed_texts = *self.wants_parts[usize::from(conversation.tools.is_some())]
            .get_or_init(|| wants_parts(renderer, &request));
        renderer.render(&RenderRequest { has_typed_texts, ..request })
    }
}

/// Whether a template knows texts only as lists of parts, as some of models that read images do: it drops a message that is
/// a text, or fails, and has the same text as a part.
fn wants_parts(renderer: &mut Renderer, request: &RenderRequest<'_>) -> bool {
    /// What no template has of its own.
    const PROBE: &str = "q7zk4vx9w";
    let conversation =
        Conversation { tools: request.conversation.tools.clone(), ..Conversation::new().user(PROBE) };
    let mut has_probe = |has_typed_texts| {
        let probe = RenderRequest { conversation: &conversation, has_typed_texts, ..*request };
        let spans = renderer.render(&probe).unwrap_or_default();
        spans.iter().any(|span| span.text.contains(PROBE))
    };
    request.template.contains("type") && !has_probe(false) && has_probe(true)
}

/// The named tokens as variables of a template.
fn token_variables(tokenizer: &Tokenizer) -> Map<String, Value> {
    let named = tokenizer.named();
    let ids = [
        ("bos_token", named.bos),
        ("eos_token", named.eos),
        ("unk_token", named.unk),
        ("pad_token", named.pad),
    ];
    let spelled = ids.into_iter().filter_map(|(name, id)| Some((name, tokenizer.token(id?)?)));
    spelled.map(|(name, token)| (name.to_owned(), Value::from(token))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Detokenizer;
    use crate::template::RenderLimits;

    fn rendered(template: &str, conversation: &Conversation) -> Result<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama32_tied");
        let processor = TextProcessor::open(&folder, &TextLimits::DEFAULT)?.with_template(template);
        let spans = processor.render(&mut Renderer::in_process(RenderLimits::default()), conversation)?;
        Ok(spans.into_iter().map(|span| span.text).collect())
    }

    /// The bug: a template of SmolVLM dropped every text, and the model answered an empty question.
    #[test]
    fn a_template_that_knows_only_parts_gets_texts_as_parts() {
        let parts = "{% for message in messages %}{{ message.role }}: {% for part in message.content %}\
            {% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}{% endfor %}|{% endfor %}";
        let short = Conversation::new().system("Be brief.").user("s");
        assert_eq!(rendered(parts, &short).unwrap(), "system: Be brief.|user: s|");
        let mut chat = Conversation::new().system("Be brief.").user("Hi <b>");
        assert_eq!(rendered(parts, &chat).unwrap(), "system: Be brief.|user: Hi <b>|");
        chat.messages[1]["content"] = serde_json::json!([{"type": "image"}, {"type": "text", "text": "Hi"}]);
        assert_eq!(rendered(parts, &chat).unwrap(), "system: Be brief.|user: <image>Hi|");
        let mut continued = Conversation::new().user("Hi").assistant("You are");
        (continued.continues_last, continued.add_generation_prompt) = (true, false);
        assert_eq!(rendered(parts, &continued).unwrap(), "user: Hi|assistant: You are");
        // What both ways lack is the template's choice.
        let users =
            "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}type";
        assert_eq!(rendered(users, &Conversation::new().system("Be brief.").user("Hi")).unwrap(), "Hitype");
        let raised = "{{ raise_exception('no type of message') }}";
        let error = rendered(raised, &Conversation::new().user("Hi")).unwrap_err().to_string();
        assert!(error.contains("refuses the conversation: no type of message"), "{error}");
    }

    #[test]
    fn text_types_are_owned_and_may_be_shared_by_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Tokenizer>();
        check::<Detokenizer>();
        check::<ChatTemplate>();
        check::<TextProcessor>();
    }
}
