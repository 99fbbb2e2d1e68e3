//! The options of a chat template and of the replies that it leads to.

use std::path::PathBuf;

use clap::Args;
use girih::ReplyStyle;
use girih_file::quote;

use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};

/// Which chat template a model gets, and how its replies are read.
#[derive(Clone, Debug, Default, Args)]
pub struct TemplateArgs {
    /// File with a chat template (Jinja) that is used instead of the model's own.
    #[arg(long, value_name = "FILE", alias = "chat-template-file")]
    chat_template: Option<PathBuf>,
    /// Style of thinking and tool calls in replies: muse-glimmer, gpt-oss, mistral, seed-oss, minimax, qwen3-coder, glm, phi4, granite, nemotron, hunyuan, lfm2, hermes, pythonic, llama3, gemma or plain [default: detected from the chat template].
    #[arg(long, value_name = "NAME", value_parser = style)]
    pub reply_style: Option<ReplyStyle>,
}

impl TemplateArgs {
    /// Whether the model's own template is replaced.
    pub fn has_template(&self) -> bool {
        self.chat_template.is_some()
    }

    /// The file of the template that is used instead of the model's own.
    pub fn file(&self) -> Option<&PathBuf> {
        self.chat_template.as_ref()
    }

    /// The source of the template that is used instead of the model's own.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn source(&self) -> Result<Option<String>> {
        let Some(file) = &self.chat_template else { return Ok(None) };
        if !file.exists() {
            let name = file.display().to_string();
            return Err(Error::call(format!(
                "--chat-template takes a file with a Jinja template; there is no file {}",
                quote(&name)
            )));
        }
        text_file(file, DESCRIPTION_BYTES).map(Some)
    }
}

/// Parses the name of a style.
fn style(name: &str) -> std::result::Result<ReplyStyle, String> {
    ReplyStyle::named(name).map_err(|error| error.to_string())
}
