//! Whether a reply must be a call of a tool.

use girih_grammar::Grammar;
use girih_graph::{Error, ErrorKind, Result};

use crate::reply_format::ReplyFormat;

/// Whether a reply must be a call of a tool, in the words of OpenAI's API.
///
/// ```
/// use girih::ToolChoice;
///
/// assert_eq!(ToolChoice::from("required"), ToolChoice::Required);
/// assert_eq!(ToolChoice::from("get_weather"), ToolChoice::Tool("get_weather".to_owned()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides; `auto`.
    #[default]
    Auto,
    /// The reply is a call of one of the tools; `required`.
    Required,
    /// The reply is a call of the tool of this name.
    Tool(String),
}

impl From<&str> for ToolChoice {
    fn from(text: &str) -> ToolChoice {
        match text {
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            name => ToolChoice::Tool(name.to_owned()),
        }
    }
}

impl ToolChoice {
    /// The grammar of the reply; `None` if the model decides.
    ///
    /// # Errors
    /// When there are no tools or not this one, or the style's calls cannot be forced.
    pub(crate) fn grammar(&self, format: Option<&ReplyFormat>) -> Result<Option<Grammar>> {
        let name = match self {
            ToolChoice::Auto => return Ok(None),
            ToolChoice::Required => None,
            ToolChoice::Tool(name) => Some(name.as_str()),
        };
        let format = format.ok_or_else(|| {
            let sentence =
                "a call of a tool was asked for, but the prompt is no conversation with tools: give one";
            Error::with_kind(ErrorKind::Refused, sentence)
        })?;
        Ok(Some(Grammar::Call(format.forced_call(&format.tools()?, name)?)))
    }
}
