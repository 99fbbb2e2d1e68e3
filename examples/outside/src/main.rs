//! Runs the built-in model through the library and checks what it says.
#![forbid(unsafe_code)]

use girih::{Model, Request, Result, Sampling};

fn main() -> Result<()> {
    let session = Model::open("stories260k")?.start()?;
    let request = Request::new("Once upon a time").sampling(Sampling::greedy()).max_tokens(24);
    let story = session.generate(request)?.text()?;
    println!("Once upon a time{story}");
    assert!(story.starts_with(", there was a little girl named Lily. She loved to play outside"), "{story:?}");
    Ok(())
}
