//! The shapes of the matrices of a `model.q4nx`, whose file states only the number of their tiles.

use std::cell::RefCell;
use std::collections::BTreeMap;

use girih_file::{Container, ContainerKind, OWN_Q4NX_FAMILY, TensorInfo, quote};
use girih_graph::{Key, OutputKind};
use girih_tensor::{DType, Error, ErrorKind, Result, Shape};

use crate::arch::Facts;
use crate::arch::schema::Arch;
use crate::assemble::{self, WeightTypes};
use crate::rows_part::RowsPart;
use crate::weight_entry::{TensorOrder, WeightEntry};
use crate::weights::ModelWeights;

/// The relative error of a number that is rounded to bf16 twice.
const TWICE_ROUNDED: f32 = 1.0 / 128.0;

/// Refuses a file of an architecture whose files girih does not know, unless girih wrote it.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`].
pub(crate) fn check_family(arch: &Arch, container: &Container) -> Result<()> {
    if container.kind() != ContainerKind::Q4nx || arch.q4nx.is_some() {
        return Ok(());
    }
    if container.metadata().get::<&str>(OWN_Q4NX_FAMILY)?.is_some_and(|name| name == arch.name) {
        return Ok(());
    }
    let sentence = format!(
        "what FastFlowLM's model.q4nx has of architecture {} is not described; use the model's safetensors or GGUF",
        arch.name
    );
    Err(Error::with_kind(ErrorKind::Refused, sentence))
}

/// Changes the facts to what the file's tensors are.
///
/// # Errors
/// When the file's factors of rotary frequencies differ from those of `config.json`, or its table is scaled and it has no head.
pub(crate) fn adjust_facts(arch: &Arch, facts: &mut Facts, weights: &ModelWeights) -> Result<()> {
    if weights.container().kind() != ContainerKind::Q4nx {
        return Ok(());
    }
    if arch.q4nx.as_ref().is_some_and(|q4nx| q4nx.scaled_embeddings) {
        if facts.head.as_ref().is_some_and(|head| head.tied) {
            return Err(Error::new(
                "model.q4nx has no head of its own, and its table of embeddings is scaled, so it is no head; convert the model again",
            ));
        }
        facts.embed.scale = None;
    }
    for rope in facts.layers.iter().filter_map(|layer| layer.mixer.attention()?.rope.as_ref()) {
        let named = arch.rope.values().filter_map(|rope| rope.scaling.as_ref()?.factors.as_deref());
        for name in named {
            let Some(stored) = crate::arch::Stored::numbers(weights, name)? else { continue };
            let is_same = stored.len() == rope.factors.len()
                && stored.iter().zip(&rope.factors).all(|(a, b)| (a - b).abs() <= TWICE_ROUNDED * b.abs());
            if !is_same {
                return Err(Error::new(format!(
                    "tensor {} has other factors than config.json's 'rope_scaling'; correct that",
                    quote(name)
                )));
            }
        }
    }
    Ok(())
}

/// Gives the matrices of tiles the shapes that the model needs.
///
/// # Errors
/// When one has another number of tiles.
pub(crate) fn give_shapes(arch: &Arch, facts: &Facts, weights: &mut ModelWeights) -> Result<()> {
    if weights.container().kind() != ContainerKind::Q4nx {
        return Ok(());
    }
    let output = if facts.head.is_some() { OutputKind::Logits } else { OutputKind::Hidden };
    let smallest = Key { rows: 1, sequences: 1, context: 1, output_rows: 1, output };
    let needs = {
        let needed = NeededShapes { weights, shapes: RefCell::default() };
        assemble::graph(facts, &needed, smallest, DType::F32.into())?;
        needed.shapes.into_inner()
    };
    let multiple = arch.q4nx.as_ref().map_or(1, |q4nx| q4nx.ffn_multiple.get());
    for (name, need) in needs {
        let Some((tensor, info)) = weights.stored(&name) else { continue };
        if info.dtype != DType::Q4NX {
            continue;
        }
        let entry = shaped(tensor, info, need, padded_in_q4nx(&name, need, multiple)?)?;
        weights.replace(&name, entry);
    }
    Ok(())
}

/// The rows and columns of the weight `name` in a `model.q4nx`, which pads the size of the feed-forward part to a multiple.
///
/// # Errors
/// When they exceed the address space.
pub fn padded_in_q4nx(name: &str, [rows, columns]: [usize; 2], multiple: usize) -> Result<[usize; 2]> {
    let next = |size: usize| {
        size.checked_next_multiple_of(multiple)
            .ok_or_else(|| Error::new(format!("'{name}' of {rows} x {columns} exceeds the address space")))
    };
    match name.split_once(".ffn.").map(|(_, part)| part) {
        Some("gate.weight" | "up.weight") => Ok([next(rows)?, columns]),
        Some("down.weight") => Ok([rows, next(columns)?]),
        _ => Ok([rows, columns]),
    }
}

/// The rows and columns of tiles of a matrix.
fn tiles_of([rows, columns]: [usize; 2]) -> [usize; 2] {
    let (height, width) = DType::Q4NX.tile();
    [rows.div_ceil(height), columns.div_ceil(width)]
}

/// A column of tiles as a matrix of the shape `need`, which is padded to the shape `padded` in the file.
fn shaped(tensor: &str, info: &TensorInfo, need: [usize; 2], padded: [usize; 2]) -> Result<WeightEntry> {
    let (tensor, mut info) = (tensor.to_owned(), info.clone());
    let tile = DType::Q4NX.block_bytes();
    let ([rows, columns], [padded_rows, padded_columns]) = (tiles_of(need), tiles_of(padded));
    let found = info.shape.rows() / DType::Q4NX.tile().0;
    if padded_rows.checked_mul(padded_columns) != Some(found) {
        return Err(Error::new(format!(
            "tensor {} has {found} tiles, but {} x {} values take {padded_rows} x {padded_columns}",
            quote(&tensor),
            need[0],
            need[1]
        )));
    }
    let shape = Shape::new(&need)?;
    if columns == padded_columns {
        (info.shape, info.bytes) = (shape, DType::Q4NX.bytes(&shape)? as u64);
        return Ok(WeightEntry::Stored { tensor, info, order: TensorOrder::AsStored });
    }
    // Of each row of tiles, the first ones.
    let (row, kept) = (padded_columns * tile, columns * tile);
    info.bytes = (rows * row) as u64;
    let parts = vec![RowsPart { tensor, info, row, range: 0..kept }];
    Ok(WeightEntry::Assembled { parts: parts.into(), dtype: DType::Q4NX, shape })
}

/// Notes the shapes of matrices that a graph needs, whatever the file says of them.
struct NeededShapes<'a> {
    weights: &'a ModelWeights,
    shapes: RefCell<BTreeMap<String, [usize; 2]>>,
}

impl WeightTypes for NeededShapes<'_> {
    fn stored_type(&self, name: &str, need: &[usize]) -> Result<DType> {
        let info = self.weights.info(name);
        let (dtype, _) = info.ok_or_else(|| Error::new(format!("the model has no weight '{name}'")))?;
        if let [rows, columns] = *need {
            self.shapes.borrow_mut().insert(name.to_owned(), [rows, columns]);
        }
        Ok(dtype)
    }

    fn shared_name(&self, name: &str) -> Option<String> {
        self.weights.shared(name).map(str::to_owned)
    }
}
