//! Generates a story: `cargo run --release -p girih --example generate`.

use girih::{Model, Request, Result};

fn main() -> Result<()> {
    let model = std::env::args().nth(1).unwrap_or("stories260k".to_owned());
    let session = Model::open(&model)?.start()?;
    for event in session.generate(Request::new("Once upon a time"))? {
        print!("{}", event?.text());
    }
    println!();
    Ok(())
}
