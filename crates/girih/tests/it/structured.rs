//! Replies that are held to a form, on the built-in model.

use girih::{
    BUILT_IN, Conversation, DraftQuery, Drafter, ErrorKind, Event, Grammar, Model, OpenOptions, Request,
    Result, RunOptions, Sampling, Stop,
};

use crate::sessions::{session, stop};

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 3, "maximum": 12},
        "friends": {"type": "array", "items": {"enum": ["Lily", "Tom"]}, "minItems": 1, "maxItems": 2}
    },
    "required": ["name", "age", "friends"],
    "additionalProperties": false
}"#;

fn request(seed: u64) -> Request {
    let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
    Request::new("Once upon a time").sampling(sampling).grammar(Grammar::JsonSchema(SCHEMA.to_owned()))
}

#[test]
fn several_replies_share_the_work_of_a_grammar_and_a_full_queue_does_none() -> Result<()> {
    let options = RunOptions { sequences: 2, waiting: 1, unread_events: 1, ..RunOptions::default() };
    let session = session(options);
    let replies = session.generate_several(request(5), 3)?;
    // A grammar that is wrong is not looked at while no place is free.
    let wrong = || Request::new("Once").grammar(Grammar::JsonSchema("{".to_owned()));
    assert_eq!(session.generate(wrong()).unwrap_err().kind(), ErrorKind::QueueFull);
    let texts: Vec<String> = replies.into_iter().map(|reply| reply.text()).collect::<Result<_>>()?;
    assert_eq!(session.generate(wrong()).unwrap_err().kind(), ErrorKind::Refused);
    for (seed, text) in (5..).zip(texts) {
        assert_eq!(session.generate(request(seed))?.text()?, text, "seed {seed}");
    }
    Ok(())
}

/// Proposes the tokens of a reply, with an error at times.
struct Guess(Vec<u32>);

impl Drafter for Guess {
    fn draft(&mut self, DraftQuery { tokens, max, .. }: DraftQuery<'_>) -> Vec<u32> {
        let next = self.0.iter().enumerate().skip(tokens.len()).take(max as usize);
        next.map(|(at, id)| if at % 4 == 0 { (id + 1) % 512 } else { *id }).collect()
    }
}

#[test]
fn a_reply_has_its_form_with_drafts_and_neighbours() -> Result<()> {
    let session = session(RunOptions { sequences: 8, output_rows: 16, ..RunOptions::default() });
    let alone: Vec<String> =
        (0..8).map(|seed| session.generate(request(seed))?.text()).collect::<Result<_>>()?;
    for text in &alone {
        assert!(text.starts_with('{') && text.ends_with('}') && text.contains("\"age\""), "{text}");
    }
    assert!(alone.iter().any(|text| *text != alone[0]), "seeds differ");
    let together: Vec<_> = (0..8).map(|seed| session.generate(request(seed))).collect::<Result<_>>()?;
    for (reply, alone) in together.into_iter().zip(&alone) {
        assert_eq!(reply.text()?, *alone);
    }
    let prompt = session.model().tokenize("Once upon a time")?;
    let ids = session.generate(request(3))?.tokens()?;
    let drafter = Guess([prompt, ids].concat());
    let mut drafted = String::new();
    let mut accepted = 0;
    for event in session.generate(request(3).drafter(Box::new(drafter)))? {
        let event = event?;
        drafted += event.text();
        if let Event::Finished { stop, stats, .. } = event {
            assert_eq!(stop, Stop::Complete);
            accepted = stats.accepted;
        }
    }
    assert_eq!(drafted, alone[3]);
    assert!(accepted > 0);
    Ok(())
}

#[test]
fn what_is_cut_says_length_and_other_forms_end() -> Result<()> {
    let session = session(RunOptions::default());
    assert_eq!(stop(session.generate(request(1).max_tokens(5))?), Stop::Length);
    assert_eq!(stop(session.generate(request(1))?), Stop::Complete);
    let form = |grammar| Request::new("Once upon a time").grammar(grammar);
    let text = session.generate(form(Grammar::Regex("(Tom|Lily) (ran|sat)\\.".to_owned())))?.text()?;
    assert!(["Tom ran.", "Tom sat.", "Lily ran.", "Lily sat."].contains(&text.as_str()), "{text}");
    let lark = "start: \"so \" WORD (\" and \" WORD)*\nWORD: \"big\" | \"red\"";
    let text = session.generate(form(Grammar::Lark(lark.to_owned())).max_tokens(30))?.text()?;
    assert!(text.starts_with("so big") || text.starts_with("so red"), "{text}");
    let events: Vec<Event> =
        session.generate(form(Grammar::JsonObject).max_tokens(2))?.collect::<Result<_>>()?;
    assert!(matches!(events.last(), Some(Event::Finished { stop: Stop::Length, .. })), "{events:?}");
    Ok(())
}

#[test]
fn forms_are_refused_by_name_and_leave_other_requests_alone() -> Result<()> {
    let session = session(RunOptions { sequences: 2, ..RunOptions::default() });
    let beside = session.generate(Request::new("Lily").max_tokens(60))?;
    let schema = |text: &str| Request::new("x").grammar(Grammar::JsonSchema(text.to_owned()));
    let cases = [
        (schema(r#"{"type": "string", "nullable": true}"#), "'nullable'"),
        (schema("{"), "not JSON"),
        (request(1).stop_token(5), "stop tokens"),
    ];
    for (request, reason) in cases {
        let error = session.generate(request).map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Refused && error.to_string().contains(reason), "{error}");
    }
    assert_eq!(beside.tokens()?.len(), 60);
    Ok(())
}

#[test]
fn a_reply_with_a_grammar_is_content_even_if_the_prompt_opens_thinking() -> Result<()> {
    let options = OpenOptions {
        chat_template: Some("{{ messages[0].content }}{# <tool_call> #}<think>\n".to_owned()),
        ..OpenOptions::default()
    };
    let session = Model::open_with(BUILT_IN, &options)?.start()?;
    let conversation = Conversation::new().user("Once upon a time");
    let asked = || Request::new(&conversation).sampling(Sampling::greedy());
    let message = session.generate(asked().max_tokens(20))?.message()?;
    assert!(message.content.is_empty() && !message.thinking.is_empty(), "{message:?}");
    let message = session.generate(asked().grammar(Grammar::JsonSchema(SCHEMA.to_owned())))?.message()?;
    assert!(message.content.ends_with('}') && message.thinking.is_empty(), "{message:?}");
    Ok(())
}
