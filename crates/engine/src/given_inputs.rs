//! Checks what a request brings beside tokens against the inputs of the loaded programs.

use girih_graph::{InputKind, InputSpec};

use crate::{EmbeddedRows, Error, ErrorKind, Result, TokenRequest};

/// Checks that the programs take a request's given rows and its adapter.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`] when they do not.
pub(crate) fn check(request: &TokenRequest, inputs: &[InputSpec]) -> Result<()> {
    check_given(&request.given, inputs)?;
    check_adapter(request.adapter, inputs)
}

/// Checks that an adapter is one of those beside the loaded model.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`] when it is not.
pub(crate) fn check_adapter(adapter: Option<u32>, inputs: &[InputSpec]) -> Result<()> {
    let Some(adapter) = adapter else { return Ok(()) };
    match adapters(inputs) {
        count if adapter < count => Ok(()),
        count => Err(refused(format!(
            "the request uses adapter {adapter}, counted from 0, but the model was loaded with {count}"
        ))),
    }
}

/// The number of adapters that the programs have.
pub(crate) fn adapters(inputs: &[InputSpec]) -> u32 {
    let count = inputs.iter().find_map(|input| match input.kind {
        InputKind::Rows { width } if input.name == InputSpec::ADAPTERS => Some(width as u32),
        _ => None,
    });
    count.unwrap_or(0)
}

/// Checks that the programs take given rows of these widths.
fn check_given(given: &[EmbeddedRows], inputs: &[InputSpec]) -> Result<()> {
    let width = inputs.iter().find_map(|input| match input.kind {
        InputKind::Given { width } => Some(width),
        _ => None,
    });
    if given.is_empty() {
        return Ok(());
    }
    let width = width.ok_or_else(|| {
        refused("the request gives rows, but the loaded programs take tokens only; build the graph with given rows")
    })?;
    let need = |rows: &EmbeddedRows| (rows.rows as usize).checked_mul(width);
    check_places(given, inputs, width)?;
    match given.iter().find(|rows| need(rows) != Some(rows.values.len())) {
        None => Ok(()),
        Some(wrong) => {
            let (have, count) = (wrong.values.len(), wrong.rows);
            Err(refused(format!("{have} values were given for {count} rows; a row has {width}")))
        }
    }
}

/// Checks that rows of an image fill whole lines, and that the programs take what they add to the outputs of layers.
fn check_places(given: &[EmbeddedRows], inputs: &[InputSpec], width: usize) -> Result<()> {
    let layers = inputs.iter().filter(|input| input.added().is_some()).count();
    for (index, rows) in given.iter().enumerate() {
        let (count, first) = (rows.rows, rows.first);
        check_time(index.checked_sub(1).map(|before| &given[before]), rows)?;
        if let Some(columns) = rows.columns
            && (columns == 0 || !count.is_multiple_of(columns))
        {
            return Err(refused(format!(
                "the {count} given rows at position {first} have {columns} columns; a divisor is needed"
            )));
        }
        let need = (count as usize).checked_mul(width);
        let is_whole = |values: &std::sync::Arc<[f32]>| Some(values.len()) == need;
        if rows.added.len() > layers || !rows.added.iter().all(is_whole) {
            let have = rows.added.len();
            return Err(refused(format!(
                "the given rows at position {first} add {have} times to outputs of layers; the programs take {layers} times \
                 as many values as there are"
            )));
        }
    }
    Ok(())
}

/// Checks that a later group of frames follows the one before it.
fn check_time(before: Option<&EmbeddedRows>, rows: &EmbeddedRows) -> Result<()> {
    let Some(time) = rows.time else { return Ok(()) };
    let first = rows.first;
    let most = EmbeddedRows::MAX_TIME;
    if time > most {
        return Err(refused(format!(
            "the frames at position {first} are {time} positions behind the first ones; the maximum is {most}"
        )));
    }
    let follows = |before: &&EmbeddedRows| {
        before.first.checked_add(before.rows) == Some(first)
            && (before.rows, before.columns) == (rows.rows, rows.columns)
            && before.time.is_none_or(|earlier| earlier <= time)
    };
    match before.filter(follows) {
        Some(_) if rows.columns.is_some() => Ok(()),
        _ => Err(refused(format!(
            "the frames at position {first} do not follow earlier ones of the same size in the prompt"
        ))),
    }
}

fn refused(sentence: impl Into<String>) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}
