//! Compares the weights of a file with those of its source, in bands of rows.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::thread;

use girih_graph::WeightSource;
use girih_model::arch::Arch;
use girih_model::arch::schema::Relayout;
use girih_model::{ModelFiles, ModelWeights};
use girih_tensor::{DType, Error, Result, Shape, View};

use super::allowed::{Allowed, RowTally};
use super::finding::{SourceFinding, SourcePart, SourceVerdict};
use crate::report::ConvertProgress;

/// The approximate number of weights of each model in memory at a time.
const BAND_WEIGHTS: usize = 1 << 20;

/// The weights of the head and of the embedding, which are one in a tied model.
const HEAD: &str = "head.weight";
const EMBEDDING: &str = "embed.table";

/// The prefix of the keys by which llama.cpp names the importance matrix of a file.
const IMPORTANCE_KEYS: &str = "quantize.imatrix.";

/// The rounding of a transform that girih and the file's writer compute each in their own way: a few
/// operations in single precision.
const TRANSFORMED: f64 = 1.0 / ((1u32 << 21) as f64);

/// The same, if the writer computed in half precision.
const TRANSFORMED_HALF: f64 = 1.0 / 1024.0;

/// The distance from 1 of a factor that counts as another one.
const FACTOR: f64 = 0.01;

/// Compares each weight.
///
/// # Errors
/// When a file cannot be read.
pub(super) fn compare(
    file: &ModelFiles,
    source: &ModelFiles,
    threads: NonZeroUsize,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<Vec<SourceFinding>> {
    let (ours, theirs) = (&file.weights, &source.weights);
    let names: BTreeSet<&str> = ours.names().chain(theirs.names()).collect();
    // What both compute follows from the facts.
    let names = names.into_iter().filter(|name| !(ours.is_computed(name) && theirs.is_computed(name)));
    let names: Vec<&str> = names.collect();
    let size = |name: &&str| ours.info(name).map_or(0, |(_, shape)| shape.elements() as u64);
    let total = names.iter().map(size).sum();
    let has_importance = ours.container().metadata().iter().any(|(key, _)| key.starts_with(IMPORTANCE_KEYS));
    let (mut done, mut findings) = (0, Vec::new());
    for name in &names {
        let mut step = |weights: usize| {
            done += weights as u64;
            progress(ConvertProgress { tensor: name, done, total });
        };
        let how = HowStored {
            has_importance,
            is_transformed: is_transformed(file.arch(), name) || is_transformed(source.arch(), name),
        };
        findings.push(weight(name, (ours, theirs), how, threads, &mut step)?);
    }
    ours.check_unchanged()?;
    theirs.check_unchanged()?;
    Ok(findings)
}

/// How the values of a weight came to be in the file, beside its format.
#[derive(Clone, Copy)]
struct HowStored {
    has_importance: bool,
    is_transformed: bool,
}

/// Whether girih computes the values of a weight from those of the container. A weight in another order is not computed.
fn is_transformed(arch: &Arch, name: &str) -> bool {
    let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next());
    let pattern = layer.map(|layer| name.replacen(layer, "{i}", 1));
    let weight = arch.weights.get(name).or_else(|| arch.weights.get(pattern.as_ref()?));
    let both = weight.into_iter().flat_map(|weight| [weight.hf_as, weight.gguf_as]).flatten();
    let is_reorder = |relayout: Relayout| {
        use Relayout::{Conv1d, Transposed, UnpermuteHeads, UnpermuteKvHeads};
        matches!(relayout, UnpermuteHeads | UnpermuteKvHeads | Transposed | Conv1d)
    };
    both.into_iter().any(|relayout| !is_reorder(relayout))
}

/// Compares one weight.
fn weight(
    name: &str,
    (ours, theirs): (&ModelWeights, &ModelWeights),
    how: HowStored,
    threads: NonZeroUsize,
    step: &mut dyn FnMut(usize),
) -> Result<SourceFinding> {
    let finding = |verdict, detail| SourceFinding::new(SourcePart::Weight, name, verdict, detail);
    // A tied model has one tensor for both, under either name.
    let held = |weights: &ModelWeights| match weights.info(name) {
        None if name == HEAD => weights.info(EMBEDDING).map(|info| (EMBEDDING, info)),
        info => info.map(|info| (name, info)),
    };
    let ((our_name, (dtype, shape)), (their_name, (from, their_shape))) = match (held(ours), held(theirs)) {
        (Some(ours), Some(theirs)) => (ours, theirs),
        (None, _) => return Ok(finding(SourceVerdict::Differs, "only the source has it".to_owned())),
        (_, None) => return Ok(finding(SourceVerdict::Differs, "only the file has it".to_owned())),
    };
    if shape != their_shape {
        let detail = format!("has the shape {shape} in the file and {their_shape} in the source");
        return Ok(finding(SourceVerdict::Differs, detail));
    }
    let is_half = theirs.stored(their_name).is_some_and(|(_, info)| info.dtype == DType::F16);
    let transform = if is_half { TRANSFORMED_HALF } else { TRANSFORMED };
    let allowed = Allowed {
        dtype,
        may_be_bf16_between: matches!(from, DType::F32 | DType::F16),
        transform: if how.is_transformed { transform } else { 0.0 },
        has_importance: how.has_importance,
    };
    let pair = Pair { ours: (ours, our_name), theirs: (theirs, their_name), from, shape, allowed };
    let found = pair.compare(threads, step).map_err(|error| error.of(name))?;
    Ok(SourceFinding {
        relative_error: Some(found.relative_error()),
        ..finding(found.verdict(), found.detail(&allowed))
    })
}

/// A weight of both models.
struct Pair<'a> {
    ours: (&'a ModelWeights, &'a str),
    theirs: (&'a ModelWeights, &'a str),
    /// The format in which the source is read.
    from: DType,
    shape: Shape,
    allowed: Allowed,
}

/// What was found in a weight.
#[derive(Default)]
struct WeightTally {
    values: usize,
    faults: usize,
    squared_error: f64,
    squared: f64,
    /// The first difference, in words.
    first: Option<String>,
}

/// Some rows of a weight, of both models.
struct ComparedRows {
    start: usize,
    columns: usize,
    bytes: Vec<u8>,
    stored: Vec<f32>,
    values: Vec<f32>,
}

impl Pair<'_> {
    fn compare(&self, threads: NonZeroUsize, step: &mut dyn FnMut(usize)) -> Result<WeightTally> {
        let (rows, columns) = (self.shape.rows(), self.shape.columns());
        if self.allowed.dtype.tile().0 != 1 || self.from.tile().0 != 1 {
            let (dtype, from) = (self.allowed.dtype, self.from);
            return Err(Error::new(format!(
                "{dtype} cannot be compared with {from}; use the original model"
            )));
        }
        let band = (BAND_WEIGHTS / columns.max(1)).max(1);
        let mut tally = WeightTally { values: rows * columns, ..WeightTally::default() };
        for start in (0..rows).step_by(band) {
            let band = self.read(start, band.min(rows - start))?;
            for (row, found) in band.rows(&self.allowed, threads).iter().enumerate() {
                tally.faults += found.faults;
                tally.squared_error += found.squared_error;
                tally.squared += found.squared;
                if let (None, Some(_)) = (&tally.first, found.first) {
                    tally.first = Some(band.sentence(row, found, &self.allowed));
                }
            }
            step(band.values.len());
        }
        Ok(tally)
    }

    fn read(&self, start: usize, rows: usize) -> Result<ComparedRows> {
        let columns = self.shape.columns();
        let read = |(weights, name): (&ModelWeights, &str), dtype: DType| -> Result<_> {
            let offset = dtype.matrix_bytes(start, columns)? as u64;
            let mut bytes = vec![0; dtype.matrix_bytes(rows, columns)?];
            weights.read(name, offset, &mut bytes)?;
            let mut values = vec![0.0; rows * columns];
            View::new(dtype, rows, columns, &bytes)?.unpack_rows(0..rows, &mut values);
            Ok((bytes, values))
        };
        let (bytes, stored) = read(self.ours, self.allowed.dtype)?;
        let (_, values) = read(self.theirs, self.from)?;
        Ok(ComparedRows { start, columns, bytes, stored, values })
    }
}

impl ComparedRows {
    /// The bytes of row `row` and its values, in the file and in the source.
    fn row(&self, row: usize) -> (&[u8], &[f32], &[f32]) {
        let bytes = self.bytes.len() / (self.values.len() / self.columns.max(1)).max(1);
        let values = row * self.columns..(row + 1) * self.columns;
        (&self.bytes[row * bytes..(row + 1) * bytes], &self.stored[values.clone()], &self.values[values])
    }

    fn height(&self) -> usize {
        self.values.len() / self.columns.max(1)
    }

    /// Compares each row.
    fn rows(&self, allowed: &Allowed, threads: NonZeroUsize) -> Vec<RowTally> {
        let compare = |rows: std::ops::Range<usize>| -> Vec<RowTally> {
            let rows = rows.map(|row| self.row(row));
            rows.map(|(bytes, stored, values)| allowed.row(bytes, stored, values)).collect()
        };
        let height = self.height();
        let part = height.div_ceil(threads.get()).max(1);
        if part >= height || self.values.len() < BAND_WEIGHTS / 8 {
            return compare(0..height);
        }
        let starts = (0..height).step_by(part);
        thread::scope(|scope| {
            let compare = &compare;
            let parts = starts.map(|start| {
                let rows = start..(start + part).min(height);
                let started = thread::Builder::new().spawn_scoped(scope, {
                    let rows = rows.clone();
                    move || compare(rows)
                });
                (rows, started)
            });
            let parts: Vec<_> = parts.collect();
            // What no thread could be started for is compared here.
            let done = parts.into_iter().flat_map(|(rows, started)| match started {
                Ok(worker) => worker.join().expect("comparing does not panic"),
                Err(_) => compare(rows),
            });
            done.collect()
        })
    }

    /// The first difference of a row, and what it looks like.
    fn sentence(&self, row: usize, found: &RowTally, allowed: &Allowed) -> String {
        let (_, stored, values) = self.row(row);
        let index = found.first.unwrap_or_default();
        let (ours, theirs) = (stored[index], values[index]);
        let first =
            format!("first at row {}, column {index}: {ours:?} instead of {theirs:?}", self.start + row);
        match self.explanation(row, found, allowed) {
            Some(explanation) => format!("{first}; {explanation}"),
            None => first,
        }
    }

    /// What the file may have instead of the source's row.
    fn explanation(&self, row: usize, found: &RowTally, allowed: &Allowed) -> Option<String> {
        let (bytes, stored, values) = self.row(row);
        let sides = [("file", stored), ("source", values)];
        if let Some((side, value)) = sides
            .iter()
            .find_map(|(side, values)| Some((side, values.iter().find(|value| !value.is_finite())?)))
        {
            return Some(format!("the {side} has {value} in this row"));
        }
        // A changed value is rounded once more.
        let near = Allowed { transform: allowed.transform + TRANSFORMED_HALF, ..*allowed };
        let fits = |values: &[f32]| near.row(bytes, stored, values).faults == 0;
        let changed =
            |change: &dyn Fn(f32) -> f32| values.iter().map(|value| change(*value)).collect::<Vec<_>>();
        if fits(&changed(&|value| value - 1.0)) {
            return Some("each value is less by 1: the norm's 1 + w is missing".to_owned());
        }
        if fits(&changed(&|value| value + 1.0)) {
            return Some("each value is more by 1, as if the norm's 1 + w were applied twice".to_owned());
        }
        let other = (0..self.height())
            .find(|other| *other != row && allowed.row(bytes, stored, self.row(*other).2).faults == 0);
        if let Some(other) = other {
            return Some(format!(
                "the row is the source's row {}: rows are in another order",
                self.start + other
            ));
        }
        let (dot, squared) = stored.iter().zip(values).fold((0.0, 0.0), |(dot, squared), (stored, value)| {
            let (stored, value) = (f64::from(*stored), f64::from(*value));
            (dot + stored * value, squared + value * value)
        });
        let factor = dot / squared;
        if (factor - 1.0).abs() > FACTOR && fits(&changed(&|value| (f64::from(value) * factor) as f32)) {
            return Some(format!("the row is the source's times {factor:.4}"));
        }
        let is_one_group = found.faults <= found.group.len() && self.allowed_outside(row, found, allowed);
        is_one_group.then(|| {
            format!("only columns {} to {} of the row differ", found.group.start, found.group.end - 1)
        })
    }

    /// Whether a row has no fault outside the group of its first one.
    fn allowed_outside(&self, row: usize, found: &RowTally, allowed: &Allowed) -> bool {
        let (bytes, stored, values) = self.row(row);
        let mut mended = values.to_vec();
        mended[found.group.clone()].copy_from_slice(&stored[found.group.clone()]);
        allowed.row(bytes, stored, &mended).faults == 0
    }
}

impl WeightTally {
    fn verdict(&self) -> SourceVerdict {
        if self.faults == 0 { SourceVerdict::Agrees } else { SourceVerdict::Differs }
    }

    fn relative_error(&self) -> f64 {
        if self.squared_error == 0.0 { 0.0 } else { (self.squared_error / self.squared).sqrt() }
    }

    fn detail(&self, allowed: &Allowed) -> String {
        let dtype = allowed.dtype;
        match &self.first {
            None if self.squared_error == 0.0 => format!("{dtype}, equal"),
            None => format!("{dtype}, within what it allows; relative error {:.2e}", self.relative_error()),
            Some(first) => {
                let (faults, values) = (self.faults, self.values);
                format!("{faults} of {values} values are not what {dtype} allows; {first}")
            }
        }
    }
}
