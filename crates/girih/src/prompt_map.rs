//! Where the parts of a conversation lie in its prompt, so that a position can be told in words.

use std::ops::Range;
use std::sync::Arc;

use girih_words::template::Conversation;
use girih_words::{TextSpan, Tokenizer};
use serde_json::Value;

/// The maximum number of characters by which the content of a message is found.
const MAX_NEEDLE: usize = 80;

/// The maximum number of messages that are looked for in vain, each of which costs a search of the prompt.
const MAX_MISSED: usize = 8;

/// A part of a prompt.
///
/// ```
/// use girih::PromptPart;
///
/// assert_ne!(PromptPart::Message { number: 1, role: "user".to_owned() }, PromptPart::System);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptPart {
    /// What the chat template writes before the first message.
    Start,
    /// The system prompt: a first message of the role `system`.
    System,
    /// The tools.
    Tools,
    /// A message after the system prompt.
    Message {
        /// Its number; the first one after the system prompt is 1.
        number: usize,
        /// Its role.
        role: String,
    },
}

/// The parts of a conversation's prompt, as far as its texts are found there.
///
/// ```
/// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions, PromptPart, Request};
///
/// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
/// let session = Model::open_with(BUILT_IN, &options)?.start()?;
/// let reply = session.generate(Request::new(Conversation::new().user("Once upon a time")))?;
/// let map = reply.prompt_map().expect("the prompt is a conversation");
/// assert_eq!(map.part_at(0), PromptPart::Start);
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PromptMap {
    /// Where each part begins, in bytes of the prompt's text, in order.
    parts: Vec<(usize, PromptPart)>,
    tokens: Vec<u32>,
    tokenizer: Arc<Tokenizer>,
}

impl PromptMap {
    /// The map of a conversation that a template wrote as `spans`, which are `tokens`.
    pub(crate) fn new(
        conversation: &Conversation,
        spans: &[TextSpan],
        tokens: &[u32],
        tokenizer: &Arc<Tokenizer>,
    ) -> PromptMap {
        let text: String = spans.iter().map(|span| span.text.as_str()).collect();
        PromptMap {
            parts: parts(conversation, &text),
            tokens: tokens.to_vec(),
            tokenizer: Arc::clone(tokenizer),
        }
    }

    /// The part in which the token at a position lies.
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions, PromptPart, Request};
    ///
    /// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
    /// let session = Model::open_with(BUILT_IN, &options)?.start()?;
    /// let reply = session.generate(Request::new(Conversation::new().user("Once upon a time")))?;
    /// let map = reply.prompt_map().expect("the prompt is a conversation");
    /// assert_eq!(map.part_at(2), PromptPart::Message { number: 1, role: "user".to_owned() });
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn part_at(&self, position: u32) -> PromptPart {
        let before = self.tokens.iter().take(position as usize);
        let offset: usize = before.map(|id| self.tokenizer.spelled_len(*id)).sum();
        let next = self.parts.partition_point(|(start, _)| *start <= offset);
        self.parts[..next].last().map_or(PromptPart::Start, |(_, part)| part.clone())
    }

    /// The text of `count` tokens from a position on.
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions, Request};
    ///
    /// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
    /// let session = Model::open_with(BUILT_IN, &options)?.start()?;
    /// let reply = session.generate(Request::new(Conversation::new().user("Once upon a time")))?;
    /// let map = reply.prompt_map().expect("the prompt is a conversation");
    /// assert!(map.text_at(1, 100).ends_with("upon a time"));
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn text_at(&self, position: u32, count: usize) -> String {
        let tokens = self.tokens.iter().skip(position as usize).take(count);
        let bytes: Vec<u8> = tokens.flat_map(|id| self.token_bytes(*id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        if self.tokenizer.is_special(id) {
            return self.tokenizer.token(id).unwrap_or_default().as_bytes().to_vec();
        }
        self.tokenizer.token_bytes(id)
    }
}

/// Where the parts of a conversation begin in its prompt.
fn parts(conversation: &Conversation, text: &str) -> Vec<(usize, PromptPart)> {
    let mut parts = Vec::new();
    let (mut end, mut missed, mut number) = (0, 0, 0);
    let mut system: Option<Range<usize>> = None;
    let mut first: Option<usize> = None;
    for (index, message) in conversation.messages.iter().enumerate() {
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        let is_system = index == 0 && role == "system";
        number += usize::from(!is_system);
        let Some(content) = content(message).filter(|_| missed < MAX_MISSED) else { continue };
        let needle: String = content.chars().take(MAX_NEEDLE).collect();
        let Some(found) = text[end..].find(&needle).map(|at| at + end) else {
            missed += 1;
            continue;
        };
        let length = if text[found..].starts_with(content) { content.len() } else { needle.len() };
        let part = match is_system {
            true => PromptPart::System,
            false => PromptPart::Message { number, role: role.to_owned() },
        };
        if is_system {
            system = Some(found..found + length);
            parts.push((0, part));
        } else {
            let begin = if first.is_none() && system.is_none() { found } else { end };
            first.get_or_insert(found);
            parts.push((begin, part));
        }
        end = found + length;
    }
    insert_tools(conversation, text, system, first.unwrap_or(text.len()), &mut parts);
    parts
}

/// The text by which a message is found.
fn content(message: &Value) -> Option<&str> {
    let text = message.get("content")?.as_str()?.trim();
    (!text.is_empty()).then_some(text)
}

/// Adds the part of the tools, which stand before or after the system prompt and before the first message.
fn insert_tools(
    conversation: &Conversation,
    text: &str,
    system: Option<Range<usize>>,
    first: usize,
    parts: &mut Vec<(usize, PromptPart)>,
) {
    let tools = conversation.tools.as_deref().unwrap_or_default();
    let name = |tool: &Value| tool["function"]["name"].as_str().unwrap_or_default().to_owned();
    let Some(first_name) = tools.first().map(name).filter(|name| !name.is_empty()) else { return };
    let places = match system {
        Some(system) => [Some(0..system.start), Some(system.end..first.max(system.end))],
        None => [Some(0..first), None],
    };
    for place in places.into_iter().flatten() {
        let Some(begin) = text[place.clone()].find(&first_name).map(|at| at + place.start) else { continue };
        let at = parts.partition_point(|(start, _)| *start <= begin);
        // What follows the first name is its schema and the other tools, up to the text of the next part.
        match parts[..at].last_mut() {
            None => parts.insert(at, (begin, PromptPart::Tools)),
            Some((_, PromptPart::System)) => {
                parts.insert(at, (begin, PromptPart::Tools));
                parts.insert(at + 1, (place.end, PromptPart::System));
            }
            Some((_, part)) => {
                let message = std::mem::replace(part, PromptPart::Tools);
                parts.insert(at, (place.end, message));
            }
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use girih_words::BosEos;
    use serde_json::json;

    use super::*;
    use crate::{BUILT_IN, Model, OpenOptions};

    /// Writes all of a conversation of an agent.
    const WHOLE: &str = "<s>{{ tools }}{% for message in messages %}<u>{{ message.content }}</u>{% endfor %}";

    /// The median of what `work` takes in nine runs.
    fn median(mut work: impl FnMut()) -> Duration {
        let mut times: Vec<Duration> = (0..9)
            .map(|_| {
                let begun = Instant::now();
                work();
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[4]
    }

    #[test]
    #[ignore = "a measurement: cargo test --release -p girih --lib -- --ignored --nocapture report_costs"]
    fn a_report_costs_less_than_a_hundredth_of_an_agents_request() {
        let options = OpenOptions { chat_template: Some(WHOLE.to_owned()), ..OpenOptions::default() };
        let model = Model::open_with(BUILT_IN, &options).unwrap();
        let tokenizer = &model.text_processor().unwrap().tokenizer;
        let words =
            ["Lily ", "saw ", "a big ", "dog ", "and ", "ran. ", "Tom ", "was ", "happy ", "to play. "];
        let text = |seed: usize, count: usize| -> String {
            (0..count).map(|at| words[(at * at + seed * 7 + at / 3) % words.len()]).collect()
        };
        let tool = |at: usize| json!({"type": "function", "function": {"name": format!("tool_{at}"), "description": text(at, 80)}});
        let mut conversation =
            Conversation { tools: Some((0..30).map(tool).collect()), ..Conversation::new() };
        conversation = conversation.system(text(1, 4500));
        for turn in 0..40 {
            conversation = conversation.user(text(turn, 40)).assistant(text(turn + 100, 90));
        }
        let spans = model.render(&conversation).unwrap();
        let tokens = tokenizer.encode_spans(&spans, BosEos::Omit).unwrap();
        // The least that a request takes before its first step: rendering and tokens. Steps take longer.
        let request = median(|| {
            let spans = model.render(&conversation).unwrap();
            tokenizer.encode_spans(&spans, BosEos::Omit).unwrap();
        });
        let map = PromptMap::new(&conversation, &spans, &tokens, tokenizer);
        let making = median(|| drop(PromptMap::new(&conversation, &spans, &tokens, tokenizer)));
        let position = tokens.len() as u32 - 10;
        let looking = median(|| drop(map.part_at(position)));
        println!(
            "{} tokens: rendering and tokens {request:?}; map {making:?}, position {looking:?}",
            tokens.len()
        );
        assert!(
            matches!(map.part_at(position), PromptPart::Message { number: 80, .. }),
            "{:?}",
            map.part_at(position)
        );
        assert!((making + looking) * 100 <= request, "more than a hundredth");
    }

    fn places(conversation: &Conversation, text: &str, needles: &[&str]) -> Vec<String> {
        let parts = parts(conversation, text);
        let part = |needle: &&str| {
            let offset = text.find(*needle).unwrap();
            let next = parts.partition_point(|(start, _)| *start <= offset);
            match parts[..next].last().map(|(_, part)| part) {
                None | Some(PromptPart::Start) => "start".to_owned(),
                Some(PromptPart::System) => "system".to_owned(),
                Some(PromptPart::Tools) => "tools".to_owned(),
                Some(PromptPart::Message { number, role }) => format!("{number} {role}"),
            }
        };
        needles.iter().map(part).collect()
    }

    #[test]
    fn positions_lie_in_the_system_prompt_the_tools_or_a_message() {
        let tool =
            json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}});
        let conversation = Conversation {
            tools: Some(vec![tool]),
            ..Conversation::new().system("Use look. ").user("Is it day?").assistant("I see.").user("So?")
        };
        let after = "<s>Use look.\n{look: object}<u>Is it day?</u><a>I see.</a><u>So?</u><a>";
        let found = places(&conversation, after, &["Use", "object", "Is it", "see", "So?", "</u><a>I"]);
        assert_eq!(found, ["system", "tools", "1 user", "2 assistant", "3 user", "2 assistant"]);
        let before = "<s>{look: object}\nUse look.<u>Is it day?</u><a>I see.</a><u>So?</u><a>";
        let found = places(&conversation, before, &["object", "Use", "Is it", "So?"]);
        assert_eq!(found, ["tools", "system", "1 user", "3 user"]);
        let plain = Conversation::new().user("Is it day?");
        assert_eq!(places(&plain, "<s>Is it day?", &["<s>", "day"]), ["start", "1 user"]);
        // A template that drops a message.
        assert_eq!(places(&conversation, "<s>So?", &["<s>", "So?"]), ["start", "3 user"]);
    }
}
