//! Several requests at once, with the log-probabilities of their tokens:
//! `cargo run --release -p girih --example batch`.

use girih::{Event, Model, Reply, Request, Result, RunOptions};

fn main() -> Result<()> {
    let plan = Model::open("stories260k")?.plan(RunOptions { sequences: 4, ..RunOptions::default() })?;
    eprintln!("{}: {} bytes", plan.description(), plan.memory().total());
    let session = plan.start(|_| {})?;
    let prompts = ["Lily", "The dog", "One day", "Tom and Sam"];
    // All run together; a reply that is not read yet does not stop the others.
    let request = |prompt| session.generate(Request::new(prompt).max_tokens(8).logprobs(3));
    let replies: Vec<Reply> = prompts.into_iter().map(request).collect::<Result<_>>()?;
    for (prompt, reply) in prompts.into_iter().zip(replies) {
        println!("{prompt}");
        for event in reply {
            if let Event::Token { text, logprobs: Some(logprobs), .. } = event? {
                let others: Vec<String> = logprobs
                    .top
                    .iter()
                    .map(|other| {
                        Ok(format!("{:?} {:.3}", session.model().detokenize(&[other.id])?, other.value))
                    })
                    .collect::<Result<_>>()?;
                println!("  {text:>12?} {:>8.3}   {}", logprobs.chosen.value, others.join(", "));
            }
        }
    }
    Ok(())
}
