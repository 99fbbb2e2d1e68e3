//! The weights of a model under girih's names: the tensor of the container behind
//! each one, and its transform.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use girih_file::{Container, ContainerKind, TensorInfo, quote, shorten};
use girih_graph::WeightSource;
use girih_graph::backend::RowSource;
use girih_tensor::{DType, Error, ErrorKind, Result, Shape};
use sha2::{Digest as _, Sha256};

use crate::arch::schema::{Arch, EXPERT, LatentPart, Relayout, TensorPart, pattern};
use crate::arch::{AttentionFacts, BlockPlace, Facts, ONE};
use crate::expert_rows::ExpertRows;
use crate::frame_rows::frame_rows;
use crate::latent_rows::{self, LatentRows};
use crate::made_weight::MadeWeight;
use crate::one_position::{self, OnePosition};
use crate::pixel_rows::{read_by_pixel, swapped};
use crate::quantized_weight::QuantizedWeight;
use crate::row_cut::RowCut;
use crate::rows_part::{FileRows, RowsPart, read_parts};
use crate::tensor_names::{NamePatterns, expand, prefixes, with_prefix};
use crate::tensor_rows::{interleaved_row, rows_of};
use crate::weight_bytes::{copy, decode, past_end};
use crate::weight_entry::{
    TensorOrder, WeightEntry, check_order, entry, has, next_frame, others_of, readable, stack, stored_as,
};

/// The maximum number of names that an error lists.
const LISTED: usize = 5;

/// The number of bytes that are compared at once.
const COMPARED: usize = 1 << 20;

/// The tables of embeddings per layer.
const PER_LAYER_TABLE: &str = "layers.{i}.input.table";

/// The version of the [`TensorOrder`]s. It is raised when the bytes of one
/// change, because packed weights are cached under the source's identity.
const ORDER_VERSION: u32 = 1;

/// All weights of a model, read from its container on demand.
#[derive(Debug)]
pub struct ModelWeights {
    container: Arc<Container>,
    entries: BTreeMap<String, WeightEntry>,
    /// The number of adapters beside the model.
    adapters: usize,
    /// The names of weights that layers share with the first layer of their block, each with that layer's name.
    shared: BTreeMap<String, String>,
}

/// What the tensors of a container are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tensors {
    /// Those of a model: the architecture describes all, and each weight has one.
    OfModel,
    /// Matrices with the rows of some of a model's.
    OfAdapter,
}

impl ModelWeights {
    /// Finds the tensor of every weight of `arch` in a model with layers of these kinds, whose blocks have these places.
    ///
    /// # Errors
    /// When a tensor is missing, or the container has one that the architecture
    /// does not describe.
    pub(crate) fn resolve(
        arch: &Arch,
        container: Container,
        kinds: &[&str],
        blocks: &[Option<BlockPlace>],
    ) -> Result<ModelWeights> {
        ModelWeights::resolve_as(Tensors::OfModel, arch, container, kinds, blocks)
    }

    /// The matrices of an adapter under the names of the weights that they change; each has the rows of that
    /// weight, in girih's order.
    ///
    /// # Errors
    /// When one belongs to no weight of the model, or to one that girih does not make of rows of a tensor.
    pub(crate) fn of_adapter(arch: &Arch, facts: &Facts, container: Container) -> Result<ModelWeights> {
        let kinds: Vec<&str> = facts.layers.iter().map(|layer| layer.kind.as_str()).collect();
        let mut weights = ModelWeights::resolve_as(Tensors::OfAdapter, arch, container, &kinds, &[])?;
        weights.rearrange(arch, facts)?;
        Ok(weights)
    }

    fn resolve_as(
        tensors_are: Tensors,
        arch: &Arch,
        container: Container,
        kinds: &[&str],
        blocks: &[Option<BlockPlace>],
    ) -> Result<ModelWeights> {
        let (mut entries, mut shared) = (BTreeMap::new(), BTreeMap::new());
        let mut missing = Vec::new();
        let unused = NamePatterns::unused(arch, &container, kinds.len())?;
        let mut known = BTreeSet::new();
        let prefixes = prefixes(arch, &container);
        for (pattern, weight) in &arch.weights {
            let (tensor, part) = stored_as(weight, container.kind());
            let layers = (0..kinds.len()).filter(|layer| weight.is_of(kinds[*layer]));
            let others = others_of(weight, container.kind(), part);
            for (name, tensor) in expand(pattern, tensor, layers) {
                let Some(tensor) = tensor.map(|tensor| with_prefix(&tensor, &prefixes)) else { continue };
                let of_layer = name.split('.').nth(1).unwrap_or_default();
                let layer: usize = of_layer.parse().unwrap_or_default();
                let place: Option<BlockPlace> = blocks.get(layer).copied().flatten();
                if let Some(place) = place.filter(|place| weight.is_of_block() && place.layer != layer) {
                    shared.insert(name.clone(), pattern.replace("{i}", &place.layer.to_string()));
                    continue;
                }
                let tensor = place.map_or_else(|| tensor.clone(), |place| place.name(&tensor));
                let mut choices = std::iter::once((tensor, part)).chain(others.iter().map(|other| {
                    (with_prefix(&other.hf.replace("{i}", of_layer), &prefixes), other.hf_part)
                }));
                let (first, first_part) = choices.next().expect("it begins with one");
                let is_there =
                    |name: &String| stack(&container, name).iter().any(|name| has(&container, name));
                let (tensor, part) = match is_there(&first) {
                    true => (first, first_part),
                    false => choices.find(|(name, _)| is_there(name)).unwrap_or((first, first_part)),
                };
                let part = part.map(|part: TensorPart| part.of_layer(layer, kinds.len()));
                let next = next_frame(weight, container.kind());
                let mut tensors = stack(&container, &tensor);
                tensors.extend(next.map(str::to_owned));
                let found = readable(&container, &tensors)?;
                if next.is_some() && found.len() < tensors.len() {
                    missing.extend(tensors.iter().filter(|tensor| !has(&container, tensor)).cloned());
                    known.extend(tensors);
                    continue;
                }
                if tensors_are == Tensors::OfAdapter
                    && !found.is_empty()
                    && !weight.is_of_rows(container.kind(), part)
                {
                    return Err(Error::with_kind(
                        ErrorKind::Refused,
                        format!("changes {}, which girih cannot adapt in this architecture", quote(&tensor)),
                    ));
                }
                if let (Some(TensorPart::Experts(part)), [(tensor, info)]) = (part, &found[..]) {
                    let (rows, scales) = ExpertRows::of(&container, tensor, info, part)?;
                    known.extend(scales);
                    entries.insert(name, WeightEntry::OfExperts(rows));
                } else if next.is_some() {
                    entries.insert(name, frame_rows(&found)?);
                } else if !found.is_empty() {
                    let is_stack = tensor.contains(EXPERT);
                    entries.insert(name, entry(&found, part, is_stack)?);
                } else if !weight.optional && tensors_are == Tensors::OfModel {
                    missing.push(tensor.clone());
                }
                known.extend(tensors);
            }
        }
        // An adapter of a part that girih does not use changes the model all the same.
        let is_known =
            |name: &String| known.contains(name) || tensors_are == Tensors::OfModel && unused.has(name);
        let names = container.tensors().keys().chain(container.unreadable().keys());
        let unknown: Vec<&String> = names.filter(|name| !is_known(name)).collect();
        refuse(arch, "needs tensors that the file lacks", &missing.iter().collect::<Vec<_>>())?;
        refuse(arch, "does not describe these tensors of the file", &unknown)?;
        Ok(ModelWeights { container: Arc::new(container), entries, shared, adapters: 0 })
    }

    /// Sets the transforms, which depend on the facts' heads, and adds the
    /// computed weights.
    pub(crate) fn complete(&mut self, arch: &Arch, facts: &Facts) -> Result<()> {
        self.rearrange(arch, facts)?;
        self.compute(facts)
    }

    /// Sets the transforms, which depend on the facts' heads.
    fn rearrange(&mut self, arch: &Arch, facts: &Facts) -> Result<()> {
        for (pattern, weight) in &arch.weights {
            let relayout = match self.container.kind() {
                ContainerKind::Safetensors | ContainerKind::Iebin => weight.hf_as,
                ContainerKind::Gguf => weight.gguf_as,
                // Its values and their order are girih's.
                ContainerKind::Q4nx => None,
            };
            let part = stored_as(weight, self.container.kind()).1;
            if let Some(TensorPart::Latent { latent }) = part {
                for (layer, facts) in facts.layers.iter().enumerate() {
                    let Some(attend) = facts.mixer.attention() else { continue };
                    self.split_latent(&pattern.replace("{i}", &layer.to_string()), latent, attend)?;
                }
                continue;
            }
            self.turn_experts(pattern, facts)?;
            let mut is_cut = false;
            for (layer, facts) in facts.layers.iter().enumerate() {
                let Some(cut) = part.and_then(|part| RowCut::of(part, &facts.mixer)) else { continue };
                let name = pattern.replace("{i}", &layer.to_string());
                self.split(&name, cut, relayout == Some(Relayout::Conv1d))?;
                is_cut = true;
            }
            // A cut of a transposed tensor is already in order.
            let Some(relayout) = relayout.filter(|relayout| !is_cut || *relayout != Relayout::Conv1d) else {
                continue;
            };
            // A tower without layers has weights beside them.
            let mut mixers: Vec<_> = facts.layers.iter().map(|layer| layer.mixer.attention()).collect();
            mixers.resize(mixers.len().max(1), None);
            for (layer, mixer) in mixers.into_iter().enumerate() {
                let name = pattern.replace("{i}", &layer.to_string());
                let order = match (relayout, mixer) {
                    (Relayout::AddOne, _) => TensorOrder::AddOne,
                    (Relayout::NegativeExp, _) => TensorOrder::NegativeExp,
                    (Relayout::Transposed, _) => TensorOrder::Transposed,
                    (Relayout::Conv1d, _) => TensorOrder::Conv1d { first: 0, count: usize::MAX },
                    (Relayout::UnpermuteHeads, Some(attend)) => {
                        TensorOrder::Interleaved { heads: attend.heads }
                    }
                    (Relayout::UnpermuteKvHeads, Some(attend)) => {
                        TensorOrder::Interleaved { heads: attend.kv_heads }
                    }
                    (Relayout::UnpermuteHeads | Relayout::UnpermuteKvHeads, None) => continue,
                    (Relayout::Flat | Relayout::FlatRows, _) => {
                        self.flatten(&name, relayout == Relayout::FlatRows);
                        continue;
                    }
                    (Relayout::ByPixel, _) => {
                        self.flatten(&name, true);
                        TensorOrder::ByPixel
                    }
                    (Relayout::SwapOuter, _) => {
                        self.swap_outer(&name)?;
                        continue;
                    }
                };
                self.reorder(&name, order)?;
            }
        }
        Ok(())
    }

    /// Has matrices of experts read by rows whose tensors have rows.
    fn turn_experts(&mut self, pattern: &str, facts: &Facts) -> Result<()> {
        for (layer, of_layer) in facts.layers.iter().enumerate() {
            let name = pattern.replace("{i}", &layer.to_string());
            let Some(experts) = of_layer.ffn.experts() else { continue };
            let Some(WeightEntry::OfExperts(found)) = self.entries.get(&name) else { continue };
            let (size, width) = (experts.size, facts.sizes.width);
            let need = if pattern.ends_with("down.weight") { [width, size] } else { [size, width] };
            if let Some(rows) = found.by_rows(&self.container, need)? {
                self.entries.insert(name, WeightEntry::OfExperts(rows));
            }
        }
        Ok(())
    }

    /// Adds the computed weights.
    fn compute(&mut self, facts: &Facts) -> Result<()> {
        self.lengthen_tables(facts)?;
        if facts.streams.is_some() {
            self.entries.insert(ONE.to_owned(), WeightEntry::Computed(vec![1.0]));
        }
        for attend in facts.layers.iter().filter_map(|layer| layer.mixer.attention()) {
            let Some(rope) = &attend.rope else { continue };
            if attend.values.of_model {
                let turn = OnePosition::of(rope, [attend.heads, attend.head_size])?;
                self.entries.insert(one_position::name(rope), WeightEntry::OnePosition(turn));
            }
            if let Some(axes) = &rope.axes {
                let frequencies = axes.frequencies(rope.base, &rope.factors, rope.rotated);
                let name = format!("{}.axes", rope.weight);
                self.entries.insert(name, WeightEntry::Computed(frequencies));
            }
            let frequencies = crate::arch::frequencies(rope.base, &rope.factors, rope.rotated);
            match self.entries.get(&rope.weight) {
                Some(WeightEntry::Computed(other)) if *other == frequencies => {}
                Some(_) => {
                    return Err(Error::new(format!("layers claim different weights '{}'", rope.weight)));
                }
                None => {
                    self.entries.insert(rope.weight.clone(), WeightEntry::Computed(frequencies));
                }
            }
        }
        Ok(())
    }

    /// Gives tables of embeddings per layer the rows that they lack: tokens beyond them have the first one.
    fn lengthen_tables(&mut self, facts: &Facts) -> Result<()> {
        for (layer, input) in
            facts.layers.iter().enumerate().filter_map(|(at, layer)| Some((at, layer.input?)))
        {
            let entry = self.entries.get_mut(&format!("layers.{layer}.input.table"));
            let Some(WeightEntry::Assembled { parts, shape, .. }) = entry else { continue };
            let Some(RowsPart { tensor, info, row, range }) = parts.first() else { continue };
            let first =
                TensorInfo { shape: info.shape.with_outermost(1), bytes: *row as u64, ..info.clone() };
            let first = RowsPart { tensor: tensor.clone(), info: first, row: *row, range: range.clone() };
            let missing = input.vocabulary.saturating_sub(shape.rows());
            *shape = Shape::new(&[shape.rows() + missing, shape.columns()])?;
            Arc::make_mut(parts).extend((0..missing).map(|_| first.clone()));
        }
        Ok(())
    }

    /// Makes a weight, so far a whole projection of latent attention, its part of that.
    fn split_latent(&mut self, name: &str, part: LatentPart, attend: &AttentionFacts) -> Result<()> {
        let Some(WeightEntry::Stored { tensor, info, .. }) = self.entries.get(name) else { return Ok(()) };
        let Some(latent) = &attend.latent else { return Ok(()) };
        let (entry, tensor) = (latent_rows::part(tensor, info, part, attend.heads, latent)?, tensor.clone());
        let entry = match entry {
            LatentRows::One(info) => WeightEntry::Stored { tensor, info, order: TensorOrder::AsStored },
            LatentRows::Heads(infos, shape) => {
                let part = |info: TensorInfo| {
                    let row = (info.bytes as usize).max(1);
                    RowsPart { tensor: tensor.clone(), info, row, range: 0..row }
                };
                let dtype = infos[0].dtype;
                let parts = Arc::new(infos.into_iter().map(part).collect());
                WeightEntry::Assembled { parts, dtype, shape }
            }
            LatentRows::Transposed(heads, shape) => WeightEntry::TransposedHeads { tensor, heads, shape },
        };
        self.entries.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Makes a weight, so far a whole tensor of several weights, its part of that tensor.
    fn split(&mut self, name: &str, cut: RowCut<'_>, is_transposed: bool) -> Result<()> {
        let Some(WeightEntry::Stored { tensor, info, .. }) = self.entries.get(name) else { return Ok(()) };
        let (tensor, info) = (tensor.clone(), info.clone());
        let is_matrix = info.shape.extents().len() == 2;
        let rows = if is_transposed && is_matrix { info.shape.columns() } else { info.shape.extents()[0] };
        let (need, of) = cut.need();
        // Before a list as long as the number of heads is made.
        if rows != need {
            return Err(Error::new(format!("tensor {} has {rows} rows; {of} need {need}", quote(&tensor))));
        }
        let ranges = cut.ranges();
        let entry = match &ranges[..] {
            [range] if is_transposed && is_matrix => {
                let order = TensorOrder::Conv1d { first: range.start, count: range.len() };
                check_order(&tensor, &info, order)?;
                WeightEntry::Stored { tensor, info, order }
            }
            _ if is_transposed && is_matrix => {
                return Err(Error::new(format!("tensor {} cannot be split by heads", quote(&tensor))));
            }
            [range] => {
                let info = rows_of(&tensor, &info, range.clone())?;
                WeightEntry::Stored { tensor, info, order: TensorOrder::AsStored }
            }
            _ => {
                let parts = ranges.iter().map(|range| {
                    let info = rows_of(&tensor, &info, range.clone())?;
                    let row = info.bytes as usize;
                    Ok(RowsPart { tensor: tensor.clone(), info, row, range: 0..row })
                });
                let parts = Arc::new(parts.collect::<Result<Vec<_>>>()?);
                let shape = info.shape.with_outermost(ranges.iter().map(Range::len).sum());
                WeightEntry::Assembled { parts, dtype: info.dtype, shape }
            }
        };
        self.entries.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Exchanges the two outermost dimensions of a weight, so far a whole tensor.
    fn swap_outer(&mut self, name: &str) -> Result<()> {
        let Some(WeightEntry::Stored { tensor, info, .. }) = self.entries.get(name) else { return Ok(()) };
        let entry = swapped(tensor, info)?;
        self.entries.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Makes a weight a vector, or a matrix with its outermost slices as rows. A vector stays one.
    fn flatten(&mut self, name: &str, has_rows: bool) {
        if let Some(WeightEntry::Stored { info, .. }) = self.entries.get_mut(name)
            && info.shape.extents().len() > 1
        {
            info.shape = match has_rows {
                true => Shape::matrix(info.shape.extents()[0], info.shape.stride()),
                false => Shape::vector(info.shape.elements()),
            };
        }
    }

    fn reorder(&mut self, name: &str, new: TensorOrder) -> Result<()> {
        let (tensor, info, order) = match self.entries.get_mut(name) {
            Some(WeightEntry::Stored { tensor, info, order }) => (tensor, info, order),
            Some(WeightEntry::Assembled { parts, .. }) => {
                let tensor = parts.first().map(|part| quote(&part.tensor)).unwrap_or_default();
                return Err(Error::new(format!(
                    "'{name}' is assembled of parts such as tensor {tensor}, which cannot be rearranged, too"
                )));
            }
            Some(
                WeightEntry::OfExperts(ExpertRows { tensor, .. })
                | WeightEntry::TransposedHeads { tensor, .. },
            ) => {
                let tensor = quote(tensor);
                return Err(Error::new(format!(
                    "'{name}' is a part of tensor {tensor}, which cannot be rearranged, too"
                )));
            }
            Some(
                WeightEntry::Computed(_)
                | WeightEntry::OnePosition(_)
                | WeightEntry::Quantized(_)
                | WeightEntry::Made(_),
            )
            | None => return Ok(()),
        };
        check_order(tensor, info, new)?;
        *order = match new {
            TensorOrder::Conv1d { first, count } => {
                TensorOrder::Conv1d { first, count: count.min(info.shape.columns()) }
            }
            new => new,
        };
        Ok(())
    }

    /// The name of the weight that layers share under this name.
    pub(crate) fn shared(&self, name: &str) -> Option<&str> {
        self.shared.get(name).map(String::as_str)
    }

    /// Whether layers share weights.
    pub(crate) fn shares_weights(&self) -> bool {
        !self.shared.is_empty()
    }

    /// The source of a weight, which may be another layer's that this one shares.
    fn entry(&self, name: &str) -> Option<&WeightEntry> {
        self.entries.get(self.shared(name).unwrap_or(name))
    }

    /// The container.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// The rows of a table, which may stay in its file while a model runs that reads one row of it for each token. `None`
    /// for weights that are rearranged or computed, and for models in memory. Rows of a quantized table are quantized at each
    /// read.
    pub fn rows(&self, name: &str) -> Option<Arc<dyn RowSource>> {
        self.container.identity()?;
        let parts = match self.entry(name)? {
            WeightEntry::Assembled { parts, .. } => Arc::clone(parts),
            WeightEntry::Stored { tensor, info, order: TensorOrder::AsStored } => {
                let row = info.bytes as usize / info.shape.rows().max(1);
                Arc::new(vec![RowsPart { tensor: tensor.clone(), info: info.clone(), row, range: 0..row }])
            }
            WeightEntry::Quantized(quantized) => return quantized.table(),
            WeightEntry::Stored { .. }
            | WeightEntry::OfExperts(_)
            | WeightEntry::TransposedHeads { .. }
            | WeightEntry::Computed(_)
            | WeightEntry::OnePosition(_)
            | WeightEntry::Made(_) => return None,
        };
        let (container, row) = (Arc::clone(&self.container), parts.first()?.range.len());
        Some(Arc::new(FileRows { container, parts, row }))
    }

    /// Whether a weight of this name is a table of embeddings per layer.
    pub fn is_per_layer_table(name: &str) -> bool {
        pattern(name) == PER_LAYER_TABLE
    }

    /// The names of all weights.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The format in which a weight is read, and its shape.
    pub fn info(&self, name: &str) -> Option<(DType, Shape)> {
        match self.entry(name)? {
            WeightEntry::Stored { info, order: TensorOrder::AddOne | TensorOrder::NegativeExp, .. } => {
                Some((DType::F32, info.shape))
            }
            WeightEntry::Stored { info, order: TensorOrder::Transposed, .. } => {
                Some((DType::F32, Shape::matrix(info.shape.columns(), info.shape.rows())))
            }
            WeightEntry::Stored { info, order: TensorOrder::Conv1d { count, .. }, .. } => {
                Some((info.dtype, Shape::matrix(*count, info.shape.rows())))
            }
            WeightEntry::Stored { info, .. } => Some((info.dtype, info.shape)),
            WeightEntry::Assembled { dtype, shape, .. } => Some((*dtype, *shape)),
            WeightEntry::OfExperts(rows) => Some((rows.dtype, rows.shape)),
            WeightEntry::TransposedHeads { heads, shape, .. } => Some((heads.first()?.dtype, *shape)),
            WeightEntry::Computed(numbers) => Some((DType::F32, Shape::vector(numbers.len()))),
            WeightEntry::OnePosition(turn) => Some((DType::F32, turn.shape)),
            WeightEntry::Quantized(quantized) => Some((quantized.dtype, quantized.shape)),
            WeightEntry::Made(made) => Some(made.info()),
        }
    }

    /// Adds the matrices of this number of adapters, which are weights of their own.
    pub(crate) fn add(&mut self, made: Vec<(String, Box<dyn MadeWeight>)>, adapters: usize) {
        self.adapters = adapters;
        self.entries.extend(made.into_iter().map(|(name, made)| (name, WeightEntry::Made(made))));
    }

    /// Takes the matrices of adapters away again. Returns what they left: each of
    /// these weights as the only one of its own.
    pub(crate) fn take_adapters(&mut self, made: &[String], names: &[String]) -> Vec<(String, ModelWeights)> {
        self.adapters = 0;
        made.iter().for_each(|name| drop(self.entries.remove(name)));
        names.iter().filter_map(|name| Some((name.clone(), self.take(name)?))).collect()
    }

    /// Takes a weight away, as the only one of its own.
    pub(crate) fn take(&mut self, name: &str) -> Option<ModelWeights> {
        let entries = BTreeMap::from([(name.to_owned(), self.entries.remove(name)?)]);
        let container = Arc::clone(&self.container);
        Some(ModelWeights { container, entries, adapters: 0, shared: BTreeMap::new() })
    }

    /// Replaces the source of a weight.
    pub(crate) fn replace(&mut self, name: &str, entry: WeightEntry) {
        self.entries.insert(name.to_owned(), entry);
    }

    /// Adds a weight that is quantized while it is read.
    pub(crate) fn add_quantized(&mut self, name: &str, quantized: QuantizedWeight) {
        self.entries.insert(name.to_owned(), WeightEntry::Quantized(Arc::new(quantized)));
    }

    /// The matrices that are quantized while they are read, by name.
    pub(crate) fn quantized(&self) -> impl Iterator<Item = (&str, &QuantizedWeight)> {
        self.entries.iter().filter_map(|(name, entry)| {
            if let WeightEntry::Quantized(weight) = entry { Some((name.as_str(), &**weight)) } else { None }
        })
    }

    /// The number of adapters beside the model.
    pub(crate) fn adapter_count(&self) -> usize {
        self.adapters
    }

    /// The name of the container's tensor that holds a weight, alone or among others.
    pub(crate) fn tensor_of(&self, name: &str) -> Option<&str> {
        match self.entries.get(name)? {
            WeightEntry::Stored { tensor, .. } | WeightEntry::TransposedHeads { tensor, .. } => Some(tensor),
            WeightEntry::Assembled { parts, .. } => Some(&parts.first()?.tensor),
            WeightEntry::OfExperts(rows) => Some(&rows.tensor),
            WeightEntry::Quantized(quantized) => quantized.stored.tensor_name(),
            WeightEntry::Computed(_) | WeightEntry::OnePosition(_) | WeightEntry::Made(_) => None,
        }
    }

    /// All values of a weight, row by row.
    ///
    /// # Errors
    /// When the weight does not exist, or its file cannot be read.
    pub fn numbers(&self, name: &str) -> Result<Vec<f32>> {
        let (dtype, shape) = self.info(name).ok_or_else(|| absent(name))?;
        let mut bytes = vec![0; dtype.bytes(&shape)?];
        self.fill(name, 0, &mut bytes)?;
        decode(dtype, &shape, &bytes)
    }

    /// The values of a weight within this range, counted row by row.
    ///
    /// # Errors
    /// When the weight does not exist, its values are stored in blocks, or its file cannot be read.
    pub fn numbers_within(&self, name: &str, range: Range<usize>) -> Result<Vec<f32>> {
        let (dtype, _) = self.info(name).ok_or_else(|| absent(name))?;
        if dtype.tile() != (1, 1) {
            return Err(Error::new(format!(
                "'{name}' is stored as {dtype}; numbers without blocks are needed"
            )));
        }
        let shape = Shape::vector(range.len());
        let mut bytes = vec![0; dtype.bytes(&shape)?];
        let size = dtype.bytes(&Shape::vector(1))?;
        self.fill(name, (range.start * size) as u64, &mut bytes)?;
        decode(dtype, &shape, &bytes)
    }

    /// The container's tensor behind a weight; `None` if the weight is computed or assembled.
    pub fn stored(&self, name: &str) -> Option<(&str, &TensorInfo)> {
        match self.entry(name)? {
            WeightEntry::Stored { tensor, info, .. } => Some((tensor, info)),
            WeightEntry::Quantized(quantized) => quantized.stored.tensor(),
            WeightEntry::Assembled { .. }
            | WeightEntry::OfExperts(_)
            | WeightEntry::TransposedHeads { .. }
            | WeightEntry::Computed(_)
            | WeightEntry::OnePosition(_)
            | WeightEntry::Made(_) => None,
        }
    }

    /// Whether girih computes a weight from the facts instead of reading it.
    pub fn is_computed(&self, name: &str) -> bool {
        matches!(self.entry(name), Some(WeightEntry::Computed(_) | WeightEntry::OnePosition(_)))
    }

    /// Fills `into` with the bytes of a weight from `offset` on, in the format of
    /// [`ModelWeights::info`].
    ///
    /// # Errors
    /// When the weight does not exist, or its file cannot be read.
    fn fill(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        match self.entry(name).ok_or_else(|| absent(name))? {
            WeightEntry::Stored { info, order: TensorOrder::AsStored, .. } => {
                self.container.read(info, offset, into)
            }
            WeightEntry::Stored { info, order: TensorOrder::AddOne, .. } => {
                let mut numbers = self.decoded(info)?;
                numbers.iter_mut().for_each(|number| *number += 1.0);
                copy(&numbers, offset, into)
            }
            WeightEntry::Stored { info, order: TensorOrder::NegativeExp, .. } => {
                let mut numbers = self.decoded(info)?;
                numbers.iter_mut().for_each(|number| *number = -f64::from(*number).exp() as f32);
                copy(&numbers, offset, into)
            }
            WeightEntry::Stored { info, order: TensorOrder::Transposed, .. } => {
                let (numbers, columns) = (self.decoded(info)?, info.shape.columns());
                let column = |column: usize| numbers[column..].iter().step_by(columns).copied();
                copy(&(0..columns).flat_map(column).collect::<Vec<f32>>(), offset, into)
            }
            WeightEntry::Stored { info, order: TensorOrder::Conv1d { first, count }, .. } => {
                self.read_columns(info, *first..*first + *count, offset, into)
            }
            WeightEntry::Stored { info, order: TensorOrder::Interleaved { heads }, .. } => {
                self.read_interleaved(info, *heads, offset, into)
            }
            WeightEntry::Stored { info, order: TensorOrder::ByPixel, .. } => {
                read_by_pixel(&self.container, info, offset, into)
            }
            WeightEntry::Assembled { parts, .. } => read_parts(&self.container, parts, offset, into),
            WeightEntry::TransposedHeads { heads, .. } => {
                let (mut skipped, mut rest) = (offset, into);
                for info in heads {
                    let length = info.bytes.saturating_sub(skipped).min(rest.len() as u64) as usize;
                    let (now, later) = rest.split_at_mut(length);
                    if length > 0 {
                        self.read_columns(info, 0..info.shape.columns(), skipped, now)?;
                    }
                    (skipped, rest) = (skipped.saturating_sub(info.bytes), later);
                }
                if rest.is_empty() { Ok(()) } else { Err(past_end()) }
            }
            WeightEntry::OfExperts(rows) => rows.read(&self.container, offset, into),
            WeightEntry::Computed(numbers) => copy(numbers, offset, into),
            WeightEntry::OnePosition(turn) => turn.fill(offset, into),
            WeightEntry::Quantized(quantized) => quantized.read(offset, into),
            WeightEntry::Made(made) => made.read(offset, into),
        }
    }

    /// Reads columns as rows, from column `first` on: of each stored row the values that `into` touches.
    fn read_columns(&self, info: &TensorInfo, of: Range<usize>, offset: u64, into: &mut [u8]) -> Result<()> {
        let (rows, columns) = (info.shape.rows(), info.shape.columns());
        let value = info.bytes as usize / (rows * columns);
        let (start, end) = (offset as usize, offset as usize + into.len());
        let made_row = rows * value;
        let touched = start / made_row..end.div_ceil(made_row);
        if touched.end > of.len() || of.end > columns {
            return Err(past_end());
        }
        let mut strip = vec![0; touched.len() * value];
        for row in 0..rows {
            self.container.read(
                info,
                ((row * columns + of.start + touched.start) * value) as u64,
                &mut strip,
            )?;
            for (column, bytes) in touched.clone().zip(strip.chunks_exact(value)) {
                for (at, byte) in (column * made_row + row * value..).zip(bytes) {
                    if (start..end).contains(&at) {
                        into[at - start] = *byte;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads like [`WeightSource::read`], but returns the container's bytes in
    /// its own order.
    pub fn fill_stored(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        let (_, info) = self.stored(name).ok_or_else(|| absent(name))?;
        self.container.read(info, offset, into)
    }

    fn decoded(&self, info: &TensorInfo) -> Result<Vec<f32>> {
        let mut bytes = vec![0; info.bytes as usize];
        self.container.read(info, 0, &mut bytes)?;
        decode(info.dtype, &info.shape, &bytes)
    }

    /// Reads row by row: row `i` of half `s` of a head is stored at `2i + s`.
    fn read_interleaved(&self, info: &TensorInfo, heads: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        let rows = info.shape.extents()[0];
        let row_bytes = info.bytes as usize / rows;
        let mut at = offset as usize;
        let mut rest = into;
        while !rest.is_empty() {
            let (row, within) = (at / row_bytes, at % row_bytes);
            let length = (row_bytes - within).min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            let stored = interleaved_row(row, rows / heads);
            self.container.read(info, (stored * row_bytes + within) as u64, now)?;
            (at, rest) = (at + length, later);
        }
        Ok(())
    }
}

impl WeightSource for ModelWeights {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        self.fill(name, offset, into)
    }

    /// The identity of the files and the transforms: another description may read
    /// the same files in another order.
    fn identity(&self) -> Option<[u8; 32]> {
        let mut digest = Sha256::new();
        digest.update(format!("{ORDER_VERSION}\n{}\n", self.container.identity()?));
        for (name, entry) in &self.entries {
            digest.update(format!("{name:?} {entry:?}\n"));
        }
        Some(digest.finalize().into())
    }

    fn check_unchanged(&self) -> Result<()> {
        self.container.check_unchanged()?;
        // All are of the same adapters.
        let made = self
            .entries
            .values()
            .find_map(|entry| if let WeightEntry::Made(made) = entry { Some(made) } else { None });
        made.map_or(Ok(()), |made| made.check_unchanged())
    }
}

impl crate::arch::Stored for ModelWeights {
    fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    fn rows(&self, name: &str) -> Result<usize> {
        self.info(name).map(|(_, shape)| shape.extents()[0]).ok_or_else(|| absent(name))
    }

    fn values(&self, name: &str) -> Result<Vec<f32>> {
        ModelWeights::numbers(self, name)
    }

    fn same(&self, a: &str, b: &str) -> Result<bool> {
        let (Some((dtype, shape)), other) = (self.info(a), self.info(b)) else { return Ok(false) };
        if other != Some((dtype, shape)) {
            return Ok(false);
        }
        let (total, mut offset) = (dtype.bytes(&shape)?, 0);
        let mut slices = [vec![0; COMPARED.min(total)], vec![0; COMPARED.min(total)]];
        while offset < total {
            let length = COMPARED.min(total - offset);
            for (name, slice) in [a, b].into_iter().zip(&mut slices) {
                self.fill(name, offset as u64, &mut slice[..length])?;
            }
            if slices[0][..length] != slices[1][..length] {
                return Ok(false);
            }
            offset += length;
        }
        Ok(true)
    }

    fn numbers(&self, tensor: &str) -> Result<Option<Vec<f32>>> {
        self.container.tensors().get(tensor).map(|info| self.decoded(info)).transpose()
    }
}

fn absent(name: &str) -> Error {
    Error::new(format!("the model has no weight '{name}'"))
}

/// Fails with a list of `tensors`, if there are any.
fn refuse(arch: &Arch, why: &str, tensors: &[&String]) -> Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    let listed: Vec<String> = tensors.iter().take(LISTED).map(|name| quote(name)).collect();
    let more = tensors.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (name, list) = (&arch.name, listed.join(", "));
    Err(Error::new(format!("architecture {name} {why}: {}{more}", shorten(list))))
}
