//! The logits that follow the last token of a file, most likely first:
//! `cargo run --release -p girih --example logits -- FILE [MODEL]`.

use std::cmp::Reverse;

use girih::{Error, Model, Result};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or_else(|| Error::new("no file was given; name one with text"))?;
    let model = Model::open(&arguments.next().unwrap_or("stories260k".to_owned()))?;
    let text = std::fs::read_to_string(&file).map_err(|error| Error::new(error.to_string()).of(&file))?;
    let tokens = model.tokenize(text.trim_end())?;
    let session = model.start()?;
    // Keeps the last tokens of a file that exceeds the context.
    let start = tokens.len().saturating_sub(session.limits().context as usize);
    let logits = session.logits(&tokens[start..])?;
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by_key(|id| Reverse(ordered(logits[*id as usize])));
    for id in ids.into_iter().take(10) {
        println!("{:>8.3}  {id:>6}  {:?}", logits[id as usize], model.detokenize(&[id])?);
    }
    Ok(())
}

/// A number that is ordered as the float is.
fn ordered(x: f32) -> i64 {
    let bits = i64::from(x.to_bits() as i32);
    if bits < 0 { -(bits & 0x7FFF_FFFF) } else { bits }
}
