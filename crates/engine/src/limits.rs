//! The check of limits against the loaded programs.

use girih_graph::{BLOCK_POSITIONS, OutputKind, Runner};

use crate::{EngineLimits, Error, ErrorKind, Result};

/// Returns an error if limits exceed the loaded programs or their state.
pub(crate) fn check(runner: &dyn Runner, limits: &EngineLimits) -> Result<()> {
    let max_key = runner.max_key();
    if max_key.output != OutputKind::Logits || max_key.output_rows == 0 || max_key.sequences == 0 {
        return Err(refused("the loaded programs do not map tokens to logits; load programs that do"));
    }
    let positions = runner.groups().iter().zip(runner.blocks()).map(|(group, &have)| {
        let need = group.kind.worst_case(std::iter::once(max_key.context), limits.chunk);
        if u64::from(have) >= need { u64::MAX } else { u64::from(have) * BLOCK_POSITIONS as u64 }
    });
    let context = positions.fold(max_key.context.into(), u64::min);
    for (what, asked, max) in
        [("context", limits.context, context), ("prefill chunk", limits.chunk, max_key.rows.into())]
    {
        if asked == 0 || u64::from(asked) > max {
            return Err(refused(format!(
                "a {what} of {asked} was requested; the loaded programs and their state support 1 to {max}"
            )));
        }
    }
    let (sequences, chunk) = (limits.sequences, limits.chunk);
    let together = max_key.sequences.min(max_key.output_rows).min(chunk);
    if sequences == 0 || sequences > together {
        return Err(refused(format!(
            "{sequences} concurrent sequences were requested; the loaded programs support 1 to {together} \
             in steps of {chunk} rows"
        )));
    }
    if limits.waiting == 0 || limits.tenant_waiting == 0 {
        return Err(refused("a queue for 0 waiting requests was asked for; it needs at least 1"));
    }
    Ok(())
}

fn refused(sentence: impl Into<String>) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}
