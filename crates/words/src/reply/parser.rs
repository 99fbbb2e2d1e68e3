//! Splits the text of a reply into its parts, character by character, so that the parts do not
//! depend on how the text is split into pieces.

use super::call::CallReader;
use super::harmony::{self, HarmonyMessage, MAX_HEADER_BYTES};
use super::part::{Parts, ReplyPart};
use super::style::{Form, HarmonyToken, MarkerRole, Messages, Style};
use super::syntax::ReplySyntax;
use super::tagged::{self, TextParameters};
use super::value::{Fault, ReadStep};

/// The maximum bytes of white space that wait for what follows.
const MAX_SPACE_BYTES: usize = 256;

/// Where in a reply the next character is.
#[derive(Debug)]
enum ReplyState {
    /// Before any content, or after a call: thinking and bare calls may begin.
    Opening,
    Content,
    /// In the thinking that this pair of markers encloses; harmony has no such pair.
    Thinking(Option<usize>),
    /// In calls that this pair of markers encloses.
    Call(Box<CallReader>, Option<usize>),
    /// In the rest of a call with a fault.
    Failed(Fault, Option<usize>),
    /// Between a call and its closing marker.
    AfterCall(usize),
    /// In the header of a message of harmony.
    Header(String),
}

/// Splits the text of one reply into parts. It keeps at most some 64 KiB: text that may begin a
/// marker, and a call whose name and arguments have not both begun.
///
/// - **White space next to a marker** belongs to the marker, as templates write it again.
/// - **Thinking** begins only before any content. A marker within content is content.
/// - **Text that is no call** is given back as content, with its markers. So is a call that the
///   reply ends before its name and arguments have begun.
/// - **A call with a fault** in its arguments ends with that fault ([`ReplyPart::CallEnd`]). Its
///   arguments are then all text up to the closing marker, or else to the end of the reply.
#[derive(Debug)]
pub struct ReplyParser {
    syntax: ReplySyntax,
    tools: bool,
    text_parameters: TextParameters,
    state: ReplyState,
    /// Whether a tag opened the answer.
    is_answer: bool,
    /// White space that belongs to a marker if one follows.
    spaces: String,
    /// Whether white space is dropped, as a marker came before.
    trims: bool,
    /// Text that may begin a marker.
    held: String,
    parts: Parts,
    /// Whether thinking or content has been passed on, for the paragraph between two messages.
    has_thought: bool,
    has_content: bool,
    /// Whether a blank line comes before the next text.
    begins_paragraph: bool,
}

impl ReplySyntax {
    /// A parser of one reply. If it does not look for `tools`, their calls are content.
    pub fn parser(&self, tools: bool) -> ReplyParser {
        ReplyParser::new(self.clone(), tools)
    }
}

impl ReplyParser {
    fn new(syntax: ReplySyntax, tools: bool) -> ReplyParser {
        let state = match syntax.style().0.messages {
            Messages::One => ReplyState::Opening,
            Messages::Harmony | Messages::Recipients => ReplyState::Header(String::new()),
        };
        ReplyParser {
            syntax,
            tools,
            text_parameters: TextParameters::default(),
            state,
            is_answer: false,
            spaces: String::new(),
            trims: false,
            held: String::new(),
            parts: Parts::default(),
            has_thought: false,
            has_content: false,
            begins_paragraph: false,
        }
    }

    /// Sets the number of calls in the conversation so far, with which the ids begin that the
    /// parser makes.
    #[must_use]
    pub fn after_calls(mut self, count: u32) -> ReplyParser {
        self.parts.calls = count;
        self
    }

    /// Sets the tools of the conversation, in the form of OpenAI's API. Where a style does not say
    /// which arguments are strings, their schemas do.
    #[must_use]
    pub fn with_tools(mut self, tools: &[serde_json::Value]) -> ReplyParser {
        self.text_parameters = tagged::text_parameters(tools);
        self
    }

    /// Begins where the end of a prompt leaves off: a template may open the thinking, or a channel.
    #[must_use]
    pub fn after_prompt(mut self, prompt: &str) -> ReplyParser {
        let Style { thinking, messages, .. } = self.syntax.style().0;
        if *messages != Messages::One {
            if let Some((_, header)) = prompt.rsplit_once(harmony::spelling(HarmonyToken::Start)) {
                let header = self.syntax.with_marks(header);
                self.push(&header);
            }
            return self;
        }
        let end = prompt.trim_end();
        if let Some(pair) = thinking.iter().position(|(open, _)| end.ends_with(open)) {
            self.state = ReplyState::Thinking(Some(pair));
            self.trims = true;
        }
        self
    }

    /// Begins within a reply whose content so far, which the prompt ends with, is not blank: the rest is content, or
    /// thinking if the content opened it.
    #[must_use]
    pub fn within(mut self, content: &str) -> ReplyParser {
        let begun = content.trim();
        let opens = |(open, close): &(&str, &str)| begun.starts_with(open) && !begun.contains(close);
        let pair = self.syntax.style().0.thinking.iter().position(opens);
        self.trims = pair.is_some_and(|pair| self.syntax.style().0.thinking[pair].0 == begun);
        self.state = pair.map_or(ReplyState::Content, |pair| ReplyState::Thinking(Some(pair)));
        self
    }

    pub(super) fn syntax(&self) -> &ReplySyntax {
        &self.syntax
    }

    /// The marker that closes the thinking in which the reply is.
    pub(super) fn thinking_close(&self) -> Option<&'static str> {
        match self.state {
            ReplyState::Thinking(Some(pair)) => Some(self.syntax.style().0.thinking[pair].1),
            _ => None,
        }
    }

    /// If the reply is in its thinking: what ends that and begins the answer, with special tokens spelled. `None` also
    /// where the style has no such text.
    pub fn thinking_end(&self) -> Option<&'static str> {
        match (&self.state, self.syntax.style().0.messages) {
            (ReplyState::Thinking(None), Messages::Harmony) => Some(harmony::ANSWER),
            (ReplyState::Thinking(None), Messages::Recipients) => Some(harmony::ANSWER_TO_USER),
            _ => self.thinking_close(),
        }
    }

    /// Takes a piece of the reply, and returns the parts that it completes.
    pub fn push(&mut self, text: &str) -> Vec<ReplyPart> {
        text.chars().for_each(|c| self.step(c));
        self.parts.take()
    }

    /// Ends the reply: returns what was held back.
    pub fn finish(mut self) -> Vec<ReplyPart> {
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.take_text(c));
        match std::mem::replace(&mut self.state, ReplyState::Content) {
            ReplyState::Call(reader, _) if reader.has_begun() => {
                self.parts.end(Some("the reply ended within the arguments"));
            }
            ReplyState::Call(reader, _) => self.give_back(&reader.into_uncertain()),
            ReplyState::Failed(fault, _) => self.parts.end(Some(fault)),
            ReplyState::Header(header) => self.give_back_header(&header),
            ReplyState::Thinking(pair) => {
                self.state = ReplyState::Thinking(pair);
                self.flush_spaces();
            }
            ReplyState::Opening | ReplyState::Content | ReplyState::AfterCall(_) => self.flush_spaces(),
        }
        self.parts.take()
    }

    fn step(&mut self, c: char) {
        if let ReplyState::Call(..) = self.state
            && self.syntax.style().0.messages == Messages::One
        {
            self.step_call(c);
            return;
        }
        if self.held.is_empty() && matches!(self.state, ReplyState::Opening) && self.begins_bare_call(c) {
            self.begin_call(self.syntax.style().0.bare, None, "");
            self.step_call(c);
            return;
        }
        self.held.push(c);
        while !self.held.is_empty() {
            let held = self.held.as_str();
            let mut is_beginning = false;
            let mut found = None;
            for needle in self.syntax.needles().iter().filter(|needle| self.is_active(needle.role)) {
                is_beginning |= needle.text.starts_with(held);
                if needle.text == held {
                    found = Some((needle.role, needle.spelling));
                }
            }
            match found {
                Some((role, spelling)) => {
                    self.held.clear();
                    self.marker(role, spelling);
                }
                None if is_beginning => return,
                None => {
                    let first = self.held.remove(0);
                    self.take_text(first);
                }
            }
        }
    }

    /// Whether a marker has a meaning in this state.
    fn is_active(&self, role: MarkerRole) -> bool {
        match (&self.state, role) {
            (_, MarkerRole::Harmony(_)) => true,
            (ReplyState::Opening, MarkerRole::ThinkingOpen(_)) => true,
            (ReplyState::Opening | ReplyState::Content, MarkerRole::CallOpen(_)) => self.tools,
            (ReplyState::Thinking(pair), MarkerRole::ThinkingClose(close)) => *pair == Some(close),
            (ReplyState::Failed(_, pair), MarkerRole::CallClose(close)) => *pair == Some(close),
            (ReplyState::Failed(_, pair), MarkerRole::CallOpen(_)) => pair.is_none(),
            (ReplyState::AfterCall(pair), MarkerRole::CallClose(close)) => *pair == close,
            (ReplyState::Opening, MarkerRole::AnswerOpen) => !self.is_answer && self.has_thought,
            (ReplyState::Opening | ReplyState::Content, MarkerRole::AnswerClose) => self.is_answer,
            _ => false,
        }
    }

    /// Acts on a marker.
    fn marker(&mut self, role: MarkerRole, spelling: &'static str) {
        match role {
            MarkerRole::ThinkingOpen(pair) => self.enter(ReplyState::Thinking(Some(pair))),
            MarkerRole::ThinkingClose(_) => self.enter(ReplyState::Opening),
            MarkerRole::CallOpen(pair) => {
                if let ReplyState::Failed(fault, _) = self.state {
                    self.parts.end(Some(fault));
                }
                let forms = self.syntax.style().0.calls[pair].forms;
                let has_close = self.syntax.style().0.calls[pair].close.is_some();
                self.begin_call(forms, has_close.then_some(pair), spelling);
            }
            MarkerRole::CallClose(_) => {
                if let ReplyState::Failed(fault, _) = self.state {
                    self.parts.end(Some(fault));
                }
                self.enter(ReplyState::Opening);
            }
            MarkerRole::CallId | MarkerRole::Arguments | MarkerRole::Tag => {}
            MarkerRole::AnswerOpen | MarkerRole::AnswerClose => {
                self.is_answer = role == MarkerRole::AnswerOpen;
                self.enter(ReplyState::Opening);
            }
            MarkerRole::Harmony(token) => self.harmony_marker(token, spelling),
        }
    }

    /// Goes on behind a marker.
    fn enter(&mut self, state: ReplyState) {
        self.state = state;
        self.spaces.clear();
        self.trims = true;
    }

    fn begins_bare_call(&self, c: char) -> bool {
        let bare = self.syntax.style().0.bare;
        let form = match c {
            '{' => Form::Object,
            '[' => Form::PythonList,
            _ => return false,
        };
        self.tools && bare.contains(&form)
    }

    fn begin_call(&mut self, forms: &'static [Form], pair: Option<usize>, marker: &str) {
        let before = std::mem::take(&mut self.spaces) + marker;
        self.state =
            ReplyState::Call(Box::new(CallReader::new(forms, before, self.text_parameters.clone())), pair);
    }

    fn step_call(&mut self, c: char) {
        let ReplyState::Call(reader, pair) = &mut self.state else { return };
        let pair = *pair;
        match reader.step(c, &self.syntax, &mut self.parts) {
            Ok(ReadStep::More) => {}
            Ok(ReadStep::Ended) => self.after_call(pair),
            Ok(ReadStep::EndedBefore) => {
                self.after_call(pair);
                self.step(c);
            }
            Err(fault) => {
                self.fail_call(fault, pair);
                // Characters of harmony have been compared with its markers before.
                match self.syntax.style().0.messages {
                    Messages::One => self.step(c),
                    _ => self.take_text(c),
                }
            }
        }
    }

    fn after_call(&mut self, pair: Option<usize>) {
        self.enter(pair.map_or(ReplyState::Opening, ReplyState::AfterCall));
    }

    /// Goes on after a fault: in the rest of a call that has begun, else in content.
    fn fail_call(&mut self, fault: Fault, pair: Option<usize>) {
        match std::mem::replace(&mut self.state, ReplyState::Content) {
            ReplyState::Call(reader, _) if reader.has_begun() => {
                self.state = ReplyState::Failed(fault, pair);
                self.trims = false;
            }
            ReplyState::Call(reader, _) => self.give_back(&reader.into_uncertain()),
            _ => {}
        }
    }

    /// Passes text on as content that was thought to be markup.
    fn give_back(&mut self, text: &str) {
        self.state = ReplyState::Content;
        self.trims = false;
        text.chars().for_each(|c| self.take_text(c));
        self.flush_spaces();
    }

    /// Passes the header of no message on as content, unless it is blank.
    fn give_back_header(&mut self, header: &str) {
        if !header.trim().is_empty() {
            self.give_back(header);
        }
    }

    /// Takes a character that is no part of a marker.
    fn take_text(&mut self, c: char) {
        match &mut self.state {
            ReplyState::Call(..) => return self.step_call(c),
            ReplyState::Header(header) if header.len() < MAX_HEADER_BYTES => return header.push(c),
            ReplyState::Header(_) => {
                let ReplyState::Header(header) = std::mem::replace(&mut self.state, ReplyState::Content)
                else {
                    return;
                };
                self.give_back(&header);
            }
            ReplyState::Failed(..) => return self.emit(c),
            ReplyState::AfterCall(_) if !c.is_ascii_whitespace() => self.state = ReplyState::Content,
            // Llama 3.1 separates calls by semicolons.
            ReplyState::Opening if c == ';' && self.trims && !self.syntax.style().0.bare.is_empty() => {
                self.trims = false;
                self.spaces.push(c);
                return;
            }
            ReplyState::Opening if !c.is_ascii_whitespace() => self.state = ReplyState::Content,
            _ => {}
        }
        if !c.is_ascii_whitespace() {
            self.flush_spaces();
            self.trims = false;
            self.emit(c);
        } else if !self.trims && !self.may_precede_marker() {
            self.emit(c);
        } else if !self.trims {
            if self.spaces.len() >= MAX_SPACE_BYTES {
                self.flush_spaces();
            }
            self.spaces.push(c);
        }
    }

    /// Whether a marker may follow the white space of the present state.
    fn may_precede_marker(&self) -> bool {
        let style = self.syntax.style().0;
        let has_markers =
            style.messages != Messages::One || self.is_answer || self.tools && !style.calls.is_empty();
        has_markers || !matches!(self.state, ReplyState::Content)
    }

    fn flush_spaces(&mut self) {
        let spaces = std::mem::take(&mut self.spaces);
        spaces.chars().for_each(|c| self.emit(c));
    }

    /// Passes a character on as the text of the present state.
    fn emit(&mut self, c: char) {
        let mut buffer = [0; 4];
        let text = self.syntax.spelling(c).unwrap_or_else(|| c.encode_utf8(&mut buffer));
        match self.state {
            ReplyState::Failed(..) => self.parts.arguments(text),
            ReplyState::Thinking(_) => {
                if self.begins_paragraph && self.has_thought {
                    self.parts.thinking("\n\n");
                }
                (self.begins_paragraph, self.has_thought) = (false, true);
                self.parts.thinking(text);
            }
            _ => {
                if self.begins_paragraph && self.has_content {
                    self.parts.content("\n\n");
                }
                (self.begins_paragraph, self.has_content) = (false, true);
                self.parts.content(text);
            }
        }
    }

    /// Acts on a marker of harmony.
    fn harmony_marker(&mut self, token: HarmonyToken, spelling: &'static str) {
        match (&mut self.state, token) {
            (ReplyState::Header(header), HarmonyToken::Channel | HarmonyToken::Constrain) => {
                header.push_str(spelling);
                return;
            }
            (ReplyState::Header(header), HarmonyToken::Message) => {
                let header = std::mem::take(header);
                return self.begin_message(&header, spelling);
            }
            (ReplyState::Header(header), HarmonyToken::Start | HarmonyToken::End) => {
                let header = std::mem::take(header);
                self.give_back_header(&header);
            }
            (ReplyState::Call(reader, _), _) if reader.has_begun() => {
                self.parts.end(Some("the message ended within the arguments"));
            }
            (ReplyState::Failed(fault, _), _) => {
                let fault = *fault;
                self.parts.end(Some(fault));
            }
            (_, HarmonyToken::Constrain | HarmonyToken::Message) => {
                spelling.chars().for_each(|c| self.take_text(c));
                return;
            }
            _ => {}
        }
        self.enter(match token {
            HarmonyToken::Start => ReplyState::Header(String::new()),
            HarmonyToken::Channel => ReplyState::Header(spelling.to_owned()),
            // Text after the end of a message has no header.
            _ => ReplyState::Content,
        });
        self.begins_paragraph = true;
    }

    fn begin_message(&mut self, header: &str, spelling: &'static str) {
        let message = match self.syntax.style().0.messages {
            Messages::Recipients => harmony::message_to(header),
            _ => harmony::message(header),
        };
        let state = match message {
            HarmonyMessage::Content => ReplyState::Content,
            HarmonyMessage::Thinking => ReplyState::Thinking(None),
            HarmonyMessage::Call(name) if self.tools => {
                self.parts.begin(name, None);
                ReplyState::Call(Box::new(CallReader::of_arguments()), None)
            }
            HarmonyMessage::Call(_) | HarmonyMessage::Unknown => {
                self.give_back(header);
                self.give_back(spelling);
                return;
            }
        };
        self.enter(state);
    }
}
