//! How the text of a reply is split into content, thinking and calls of tools.

use girih_graph::{Error, ErrorKind, Result};
use girih_words::reply::{
    CallGrammar, ReplyDetokenizer, ReplyParser, ReplyPart, ReplyStyle, ReplySyntax, Tool,
};
use girih_words::template::Conversation;
use girih_words::{TextOrigin, TextSpan};

use crate::mailbox::Event;
use crate::model::Model;

/// How the text of a reply is split into content, thinking and calls of tools. Requests with a
/// [`Conversation`] have one; for a prompt in tokens, [`Request::format`](crate::Request::format)
/// sets it.
///
/// ```
/// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, BosEos, Conversation, Model, OpenOptions, Request};
///
/// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
/// let model = Model::open_with(BUILT_IN, &options)?;
/// let conversation = Conversation::new().user("Once upon a time");
/// let prompt = model.render(&conversation)?;
/// let tokens = model.text_processor()?.tokenizer.encode_spans(&prompt, BosEos::Omit)?;
/// let format = model.reply_format(&conversation, &prompt)?;
/// let reply = model.start()?.generate(Request::new(tokens).format(format).max_tokens(8))?;
/// assert!(reply.message()?.thinking.is_empty());
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReplyFormat {
    syntax: ReplySyntax,
    /// Whether calls of tools are looked for.
    finds_calls: bool,
    /// The number of calls in the conversation so far.
    calls: u32,
    /// The end of the prompt, as far as the template wrote it.
    prompt: String,
    /// The beginning of the reply, if the prompt has it, as the parser takes it.
    begun: String,
    /// The content of the reply that the prompt ends with, if it is not blank.
    content: Option<String>,
    /// The conversation's tools.
    tools: Vec<serde_json::Value>,
}

impl Model {
    /// The style of thinking and calls: that of [`OpenOptions::reply_style`](crate::OpenOptions),
    /// else the one that the chat template for a conversation with these tools teaches.
    ///
    /// ```
    /// let model = girih::Model::open("stories260k")?;
    /// assert_eq!(model.reply_style(false)?.name(), "plain");
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no tokenizer, or no template of the right name.
    pub fn reply_style(&self, has_tools: bool) -> Result<ReplyStyle> {
        if let Some(style) = self.open_options().reply_style {
            return Ok(style);
        }
        Ok(ReplyStyle::of_template(self.template_source(has_tools)?))
    }

    fn template_source(&self, has_tools: bool) -> Result<&str> {
        let tools = has_tools.then_some(&[][..]);
        let template = self.text_processor()?.template.as_ref();
        Ok(template.map(|template| template.source(tools)).transpose()?.unwrap_or_default())
    }

    /// The format of replies to a conversation whose prompt was rendered as `prompt`. Calls of tools
    /// are looked for if the conversation has tools, or if the style was chosen by
    /// [`OpenOptions::reply_style`](crate::OpenOptions).
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions};
    ///
    /// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
    /// let model = Model::open_with(BUILT_IN, &options)?;
    /// let mut conversation = Conversation::new().user("Once upon a time");
    /// let format = model.reply_format(&conversation, &model.render(&conversation)?)?;
    /// conversation.tools = Some(vec!["a tool".into()]);
    /// let refused = model.reply_format(&conversation, &[]).unwrap_err();
    /// assert!(refused.to_string().contains("does not read tools"));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the conversation has tools, but the chat template does not read
    /// them, or teaches a style of calls that girih does not know.
    pub fn reply_format(&self, conversation: &Conversation, prompt: &[TextSpan]) -> Result<ReplyFormat> {
        let has_tools = conversation.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let style = self.reply_style(has_tools)?;
        let is_chosen = self.open_options().reply_style.is_some();
        let refused = |sentence: &str| Err(Error::with_kind(ErrorKind::Refused, sentence));
        if has_tools && !self.template_source(true)?.contains("tools") {
            return refused(
                "the chat template does not read tools; describe them in the system message, and choose the \
                 style of their calls",
            );
        }
        if has_tools && !is_chosen && !style.has_calls() {
            return refused(
                "the chat template teaches no style of calls that girih knows; choose a style, or plain to get \
                 calls as text",
            );
        }
        let calls = conversation.messages.iter().filter_map(|message| message.get("tool_calls")?.as_array());
        let last = prompt.last().filter(|span| span.origin == TextOrigin::Template);
        Ok(ReplyFormat {
            syntax: ReplySyntax::new(style, &self.text_processor()?.tokenizer),
            finds_calls: has_tools || is_chosen,
            calls: u32::try_from(calls.map(Vec::len).sum::<usize>()).unwrap_or(u32::MAX),
            prompt: last.map(|span| span.text.clone()).unwrap_or_default(),
            begun: String::new(),
            content: conversation.continued().filter(|text| !text.trim().is_empty()).map(str::to_owned),
            tools: conversation.tools.clone().unwrap_or_default(),
        })
    }
}

impl ReplyFormat {
    /// The grammar of a reply that is a call of the tool with this name, or of any tool.
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions, ReplyStyle, Tool};
    ///
    /// let options = OpenOptions {
    ///     chat_template: Some(BUILT_IN_TEMPLATE.into()),
    ///     reply_style: Some(ReplyStyle::named("hermes")?),
    ///     ..OpenOptions::default()
    /// };
    /// let model = Model::open_with(BUILT_IN, &options)?;
    /// let conversation = Conversation::new().user("Will it rain?");
    /// let format = model.reply_format(&conversation, &model.render(&conversation)?)?;
    /// let tool = r#"{"type": "function", "function": {"name": "get_weather"}}"#;
    /// let tools = Tool::list(&[serde_json::from_str(tool).expect("JSON")])?;
    /// let grammar = format.forced_call(&tools, Some("get_weather"))?;
    /// assert_eq!(grammar.calls[0].before[0], girih::CallPiece::Text("<tool_call>".to_owned()));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if there is no such tool, if the style's calls cannot be forced, or if the reply
    /// continues a message.
    pub fn forced_call(&self, tools: &[Tool], name: Option<&str>) -> Result<CallGrammar> {
        if self.content.is_some() {
            let sentence =
                "a reply that continues a message cannot be forced to be a call; end with another message";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        self.parser().forced_call(tools, name)
    }

    /// The tools of the conversation.
    ///
    /// # Errors
    /// When they do not have the form of OpenAI's API.
    #[cfg(feature = "grammar")]
    pub(crate) fn tools(&self) -> Result<Vec<Tool>> {
        Tool::list(&self.tools)
    }

    /// This format for a reply whose whole text is content.
    #[cfg(feature = "grammar")]
    pub(crate) fn content_only(self, model: &Model) -> Result<ReplyFormat> {
        let syntax = ReplySyntax::new(ReplyStyle::named("plain")?, &model.text_processor()?.tokenizer);
        let (prompt, begun, content) = (String::new(), String::new(), None);
        Ok(ReplyFormat { syntax, finds_calls: false, prompt, begun, content, ..self })
    }

    /// A detokenizer whose text the splitter reads.
    pub(crate) fn detokenizer(&self, model: &Model) -> Result<ReplyDetokenizer> {
        Ok(self.syntax.detokenizer(&model.text_processor()?.tokenizer))
    }

    /// A splitter for one reply.
    pub(crate) fn splitter(&self) -> ReplySplitter {
        ReplySplitter { syntax: self.syntax.clone(), parser: Some(self.parser()) }
    }

    /// The format of the rest of a reply whose first `tokens` the prompt ends with.
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, BosEos, Conversation, Model, OpenOptions, TextOrigin};
    ///
    /// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
    /// let model = Model::open_with(BUILT_IN, &options)?;
    /// let conversation = Conversation::new().user("Once upon a time");
    /// let prompt = model.render(&conversation)?;
    /// let begun = model.text_processor()?.tokenizer.encode(", there was", TextOrigin::User, BosEos::Omit)?;
    /// let format = model.reply_format(&conversation, &prompt)?.after_tokens(&model, &begun)?;
    /// assert_eq!(format.held_back(), "");
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the model has no tokenizer.
    pub fn after_tokens(self, model: &Model, tokens: &[u32]) -> Result<ReplyFormat> {
        let mut text = self.detokenizer(model)?;
        let more: String = tokens.iter().map(|id| text.push(*id)).collect();
        Ok(ReplyFormat { begun: self.begun + &more, ..self })
    }

    /// The text of content or thinking that the beginning of a reply ends with and that the rest of the
    /// reply repeats, as what follows decides whether it is a marker.
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, BosEos, Conversation, Model, OpenOptions, TextOrigin};
    ///
    /// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
    /// let model = Model::open_with(BUILT_IN, &options)?;
    /// let conversation = Conversation::new().user("Once upon a time");
    /// let prompt = model.render(&conversation)?;
    /// let begun = model.text_processor()?.tokenizer.encode(", there was", TextOrigin::User, BosEos::Omit)?;
    /// let format = model.reply_format(&conversation, &prompt)?.after_tokens(&model, &begun)?;
    /// assert_eq!(format.held_back(), "");
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn held_back(&self) -> String {
        let parts = self.parser().finish().into_iter();
        let text = parts.filter_map(|part| match part {
            ReplyPart::Content(text) | ReplyPart::Thinking(text) => Some(text),
            _ => None,
        });
        text.collect()
    }

    /// A parser of one reply.
    pub(crate) fn parser(&self) -> ReplyParser {
        let parser = self.syntax.parser(self.finds_calls).after_calls(self.calls).with_tools(&self.tools);
        let mut parser = match &self.content {
            Some(content) => parser.within(content),
            None => parser.after_prompt(&self.prompt),
        };
        // A caller who asks for the rest has these parts.
        drop(parser.push(&self.begun));
        parser
    }
}

/// Splits the text of one reply.
pub(crate) struct ReplySplitter {
    syntax: ReplySyntax,
    /// Present until the reply ends.
    parser: Option<ReplyParser>,
}

/// Adds the parts of its text to an event.
pub(crate) fn add_parts(splitter: Option<&mut ReplySplitter>, event: &mut Event) {
    let ends = matches!(event, Event::Finished { .. });
    let (Event::Token { text, parts, .. } | Event::Finished { text, parts, .. }) = event else { return };
    match splitter {
        Some(ReplySplitter { syntax, parser }) => {
            parts.extend(parser.as_mut().map(|parser| parser.push(text)).unwrap_or_default());
            if ends {
                parts.extend(parser.take().map(ReplyParser::finish).unwrap_or_default());
            }
            *text = syntax.visible(std::mem::take(text));
        }
        None if text.is_empty() => {}
        None => parts.push(ReplyPart::Content(text.clone())),
    }
}
