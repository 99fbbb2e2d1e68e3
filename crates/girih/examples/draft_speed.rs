//! What prompt lookup gains while eight replies are generated at once:
//! `cargo run --release -p girih --example draft_speed -- MODEL [CHOICES] [TEMPERATURE] [ROUNDS]`.
//!
//! A bias restricts the replies to CHOICES tokens, among which the model chooses: 1 is a reply that
//! repeats itself. Each round generates eight replies without drafts, then with them. The speeds are
//! medians over the rounds: all tokens of the replies by the time from the first request to the last
//! end, short prompts included.

use std::time::Instant;

use girih::{Drafts, Error, Event, Model, Reply, Request, Result, RunOptions, Sampling, Session};

const SEQUENCES: u32 = 8;
const TOKENS: u32 = 96;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = Model::open(&arguments.next().unwrap_or("stories260k".to_owned()))?;
    let mut number = |default: f32| match arguments.next() {
        Some(text) => text.parse().map_err(|_| Error::new(format!("'{text}' is not a number"))),
        None => Ok(default),
    };
    let (choices, temperature, rounds) = (number(1.0)? as u32, number(0.0)?, number(3.0)? as usize);
    // The vocabulary may have any size from 512 on.
    let bias = (0..choices).map(|index| (5 + index * 31, 1000.0)).collect();
    let sampling = Sampling { temperature, bias, ..Sampling::default() };
    let options = RunOptions { sequences: SEQUENCES, context: Some(256), ..RunOptions::default() };
    let options = RunOptions { drafts: Drafts::PromptLookup, ..options };
    let session = model.plan(options)?.start(|_| {})?;
    let mut speeds = [Vec::new(), Vec::new()];
    let mut counts = (0, 0);
    for _ in 0..rounds {
        speeds[0].push(speed(&session, &sampling, 0)?.0);
        let (speed, drafted, accepted) = speed(&session, &sampling, 15)?;
        speeds[1].push(speed);
        counts = (counts.0 + drafted, counts.1 + accepted);
    }
    let [off, lookup] = speeds.map(median);
    println!(
        "{choices} tokens, temperature {temperature}: {off:.1} tokens/s without drafts, {lookup:.1} with"
    );
    println!("{:.3} times; {} of {} drafted tokens were accepted", lookup / off, counts.1, counts.0);
    Ok(())
}

/// The tokens per second of eight replies together with drafts of at most `draft_max` tokens, and how
/// many tokens were drafted and accepted.
fn speed(session: &Session, sampling: &Sampling, draft_max: u32) -> Result<(f64, u32, u32)> {
    let ask = |index: u32| {
        let sampling = Sampling { seed: u64::from(index), ..sampling.clone() };
        let request = Request::new(format!("Plan number {index}:")).sampling(sampling);
        session.generate(request.max_tokens(TOKENS).draft_max(draft_max))
    };
    let begun = Instant::now();
    let replies: Vec<Reply> = (0..SEQUENCES).map(ask).collect::<Result<_>>()?;
    let (mut tokens, mut drafted, mut accepted) = (0, 0, 0);
    for reply in replies {
        let Some(Event::Finished { stats, .. }) = reply.last().transpose()? else {
            return Err(Error::new("a reply has no end"));
        };
        tokens += stats.decode.tokens + 1;
        drafted += stats.drafted;
        accepted += stats.accepted;
    }
    Ok((f64::from(tokens) / begun.elapsed().as_secs_f64(), drafted, accepted))
}

/// The median; of an even number of values, the upper one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
