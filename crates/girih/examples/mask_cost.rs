//! What a JSON Schema costs while eight replies are generated at once:
//! `cargo run --release -p girih --features grammar --example mask_cost -- MODEL [TEMPERATURE] [ROUNDS]`.
//!
//! Each round generates eight replies without a schema, then with one, and counts the last reply's
//! steps after its first token: in these, all eight run. The speeds are medians over the rounds.

use std::time::Instant;

use girih::{Error, Event, Grammar, Model, Reply, Request, Result, RunOptions, Sampling, Session, Stop};

/// As people write them for tools, with texts that are not short.
const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "title": {"type": "string", "description": "One line."},
        "summary": {"type": "string", "description": "Two or three sentences."},
        "keywords": {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 20},
        "priority": {"enum": ["low", "normal", "high"]},
        "due": {"type": "string", "format": "date"},
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "minutes": {"type": "integer", "minimum": 1}},
                "required": ["text", "minutes"],
                "additionalProperties": false
            }
        }
    },
    "required": ["title", "summary", "keywords", "priority", "steps"],
    "additionalProperties": false
}"#;

const SEQUENCES: u32 = 8;
const TOKENS: u32 = 64;
/// The other replies begin before the last one, and must not end before it.
const MORE_TOKENS: u32 = 6;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = Model::open(&arguments.next().unwrap_or("stories260k".to_owned()))?;
    let mut number = |default: f32| match arguments.next() {
        Some(text) => text.parse().map_err(|_| Error::new(format!("'{text}' is not a number"))),
        None => Ok(default),
    };
    let (temperature, rounds) = (number(0.0)?, number(5.0)? as usize);
    let options = RunOptions { sequences: SEQUENCES, context: Some(256), ..RunOptions::default() };
    let session = model.plan(options)?.start(|_| {})?;
    for what in ["the vocabulary and the schema", "the schema"] {
        let started = Instant::now();
        let reply = session.generate(request(0, temperature).max_tokens(1).grammar(grammar()))?;
        println!("{what}: {:.1} ms to compile", started.elapsed().as_secs_f64() * 1e3);
        reply.text()?;
    }
    let mut speeds = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        for (has_schema, speeds) in [false, true].into_iter().zip(&mut speeds) {
            speeds.push(speed(&session, has_schema, temperature)?);
        }
        let [without, with] = speeds.each_ref().map(|speeds| speeds[round - 1]);
        println!("round {round}: {without:.2} tokens/s without, {with:.2} with: {:.4}", with / without);
    }
    let [without, with] = speeds.map(median);
    println!("medians: {without:.2} tokens/s without, {with:.2} with: {:.4}", with / without);
    Ok(())
}

fn grammar() -> Grammar {
    Grammar::JsonSchema(SCHEMA.to_owned())
}

fn request(index: u32, temperature: f32) -> Request {
    let sampling = Sampling { temperature, seed: u64::from(index), ..Sampling::default() };
    Request::new(format!("Plan number {index}:")).sampling(sampling)
}

/// The tokens per second of eight replies together.
fn speed(session: &Session, has_schema: bool, temperature: f32) -> Result<f64> {
    let ask = |index| {
        let more = if index + 1 < SEQUENCES { MORE_TOKENS } else { 0 };
        let request = request(index, temperature).max_tokens(TOKENS + more);
        session.generate(if has_schema { request.grammar(grammar()) } else { request })
    };
    let replies: Vec<Reply> = (0..SEQUENCES).map(ask).collect::<Result<_>>()?;
    let mut speed = 0.0;
    for reply in replies {
        let Some(Event::Finished { stop, stats, .. }) = reply.last().transpose()? else {
            return Err(Error::new("a reply has no end"));
        };
        if stop != Stop::Length {
            return Err(Error::new(format!("a reply ended early, with {stop:?}: use another model")));
        }
        speed = stats.decode.per_second() * f64::from(SEQUENCES);
    }
    Ok(speed)
}

/// The median; of an even number of values, the upper one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
