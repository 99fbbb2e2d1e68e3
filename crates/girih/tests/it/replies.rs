//! Replies are split into content, thinking and calls of tools.

use girih::{
    BUILT_IN, BosEos, Constraint, Conversation, ErrorKind, Event, Model, OpenOptions, ReplyMessage,
    ReplyStyle, Request, Result, Session, Stop, TextOrigin,
};
use serde_json::json;

/// Forces a reply.
struct Forced {
    ids: Vec<u32>,
    done: usize,
}

impl Constraint for Forced {
    fn mask(&mut self, allowed: &mut [bool]) -> Result<()> {
        let next = self.ids[self.done] as usize;
        allowed.iter_mut().enumerate().for_each(|(id, allowed)| *allowed &= id == next);
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        self.done += 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.done == self.ids.len()
    }
}

/// A session of the built-in model with a template.
fn session(template: &str, style: Option<&str>) -> Session {
    let options = OpenOptions {
        chat_template: Some(template.to_owned()),
        reply_style: style.map(|name| ReplyStyle::named(name).unwrap()),
        ..OpenOptions::default()
    };
    Model::open_with(BUILT_IN, &options).unwrap().start().unwrap()
}

/// A request whose reply is `text`.
fn forced(session: &Session, conversation: &Conversation, text: &str) -> Request {
    let tokenizer = &session.model().text_processor().unwrap().tokenizer;
    let ids = tokenizer.encode(text, TextOrigin::User, BosEos::Omit).unwrap();
    Request::new(conversation).max_tokens(400).constraint(Box::new(Forced { ids, done: 0 }))
}

/// A template that teaches the style `hermes`.
const TEMPLATE: &str = "<s>{{ tools }}{# <tool_call> #}{{ messages[0].content }}";

fn with_tools() -> Conversation {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    Conversation { tools: Some(vec![tool]), ..Conversation::new().user("Hi") }
}

const REPLY: &str =
    "<think>Hm.</think>\n\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

#[test]
fn a_reply_to_a_conversation_with_tools_has_its_parts_apart() -> Result<()> {
    let session = session(TEMPLATE, None);
    let request = || forced(&session, &with_tools(), REPLY);
    let message = session.generate(request())?.message()?;
    assert_eq!((message.thinking.as_str(), message.content.as_str()), ("Hm.", "I look."));
    assert_eq!(
        message.calls[0].json(),
        json!({"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}})
    );
    // The text is what the model wrote, and the parts come with the tokens that complete them.
    assert_eq!(session.generate(request())?.text()?.trim_start(), REPLY);
    let events: Vec<Event> = session.generate(request())?.collect::<Result<_>>()?;
    assert_eq!(events.iter().flat_map(Event::parts).collect::<ReplyMessage>(), message);
    assert!(events.iter().filter(|event| !event.parts().is_empty()).count() > 5);
    assert!(matches!(events.last(), Some(Event::Finished { stop: Stop::Complete, .. })));
    Ok(())
}

#[test]
fn without_tools_only_thinking_is_split_off() -> Result<()> {
    let session = session(TEMPLATE, None);
    let message = session.generate(forced(&session, &Conversation::new().user("Hi"), REPLY))?.message()?;
    let (_, rest) = REPLY.split_once("\n\n").expect("thinking, then content");
    assert_eq!((message.content.as_str(), message.calls.len()), (rest, 0));
    // A prompt that no template wrote has a reply that is content.
    let request = Request::new("Hi").max_tokens(400);
    let ids = session.model().text_processor()?.tokenizer.encode(REPLY, TextOrigin::User, BosEos::Omit)?;
    let reply = session.generate(request.constraint(Box::new(Forced { ids, done: 0 })))?;
    assert_eq!(reply.message()?.content.trim_start(), REPLY);
    Ok(())
}

#[test]
fn ids_of_calls_go_on_in_a_conversation() -> Result<()> {
    let session = session(TEMPLATE, None);
    let mut conversation = with_tools();
    conversation.messages.push(json!({"role": "assistant", "tool_calls": [{}, {}]}));
    let message = session.generate(forced(&session, &conversation, REPLY))?.message()?;
    assert_eq!(message.calls[0].id, "call00002");
    Ok(())
}

#[test]
fn tools_that_a_template_does_not_know_are_refused() -> Result<()> {
    let refusal = |template: &str| {
        let error = session(template, None).generate(Request::new(with_tools())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        error.to_string()
    };
    assert!(refusal("<s>{{ messages[0].content }}").contains("does not read tools"));
    assert!(refusal("<s>{{ tools }}").contains("teaches no style of calls"));
    // A chosen style finds the calls of tools that the system message describes.
    let session = session("<s>{{ messages[0].content }}", Some("pythonic"));
    let reply = session.generate(forced(&session, &Conversation::new().user("Hi"), "[f(a=1)]"))?;
    assert_eq!(reply.message()?.calls[0].name, "f");
    Ok(())
}
