//! The options of a conversation: what its chat template gets besides the messages.

use clap::Args;
use girih::Model;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::template_args::TemplateArgs;
use crate::typed_options::TypedOptions;

/// The variable that switches thinking off in the templates of models that think.
const THINKING_VARIABLE: &str = "enable_thinking";

/// Options of a conversation.
#[derive(Clone, Debug, Args)]
pub struct ConversationArgs {
    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Answer without thinking, if the chat template can, and show none.
    #[arg(long)]
    pub no_think: bool,
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Neither read nor store the lines that are typed in a chat.
    #[arg(long)]
    pub no_history: bool,
}

impl ConversationArgs {
    /// The options that have no effect without a chat template.
    pub const OF_TEMPLATES: [&'static str; 5] =
        ["system", "no-think", "chat-template", "reply-style", "tools"];

    /// The variables of the chat template. If --no-think is `typed`, it is an error that the
    /// template knows no thinking.
    ///
    /// # Errors
    /// When the model has no tokenizer, or as above.
    pub fn variables(&self, model: &Model, typed: &TypedOptions) -> Result<Map<String, Value>> {
        let mut variables = Map::new();
        if !self.no_think {
            return Ok(variables);
        }
        let template = model.text_processor()?.template.as_ref();
        let source = template.map(|template| template.source(None)).transpose()?.unwrap_or_default();
        if source.contains(THINKING_VARIABLE) {
            variables.insert(THINKING_VARIABLE.to_owned(), json!(false));
        } else if typed.has("no-think") && !model.reply_style(false)?.has_thinking(source) {
            return Err(Error::call(format!(
                "--no-think: the model's chat template does not read {THINKING_VARIABLE} and has no thinking to \
                 hide; omit --no-think"
            )));
        }
        Ok(variables)
    }
}
