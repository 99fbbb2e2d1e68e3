//! Pass 1, from graph to groups: what the array computes and what the host,
//! and which operations share a program. How programs are cut is a policy.

use girih_graph::{BLOCK_POSITIONS, Extent, Graph, Op, Role, Span, ValueId};
use girih_tensor::{Error, Result};
use serde::Serialize;

use super::Mapping;
use crate::Target;
use crate::form::groups::{Groups, Kernel, Program, Step, Task, Tensor, TensorKind, chunk_bytes};
use crate::form::schedule::{Argument, ArgumentRole};

/// How a graph is cut: what shares a program, and where attention runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// What shares a program.
    pub grouping: Grouping,
    /// Where attention runs.
    pub attention: Attention,
}

/// What shares a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// Nothing: one program for each operation.
    Unstitched,
    /// What lies between the norm before attention and attention, what lies
    /// from after attention to the end of the layer, and the head in parts:
    /// the six programs of the Llama mapping by AMD's mlir-air.
    Stitched,
    /// As stitched, but a layer's end shares a program with what follows it up
    /// to the next attention.
    Joined,
}

impl Grouping {
    /// Every grouping, by name.
    pub const ALL: &'static [(&'static str, Grouping)] = &[
        ("unstitched", Grouping::Unstitched),
        ("stitched", Grouping::Stitched),
        ("joined", Grouping::Joined),
    ];

    /// The name in mappings.
    pub fn name(self) -> &'static str {
        Grouping::ALL.iter().find(|(_, grouping)| *grouping == self).map_or("unnamed", |(name, _)| name)
    }
}

/// Where attention runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attention {
    /// On the host.
    Host,
    /// On the array in steps of several rows, on the host for single rows, as
    /// in the Llama mapping by AMD's mlir-air.
    Prefill,
    /// On the array.
    Array,
}

impl Attention {
    /// Every place for attention, by name.
    pub const ALL: &'static [(&'static str, Attention)] =
        &[("host", Attention::Host), ("prefill", Attention::Prefill), ("array", Attention::Array)];

    /// The name in mappings.
    pub fn name(self) -> &'static str {
        Attention::ALL.iter().find(|(_, attention)| *attention == self).map_or("unnamed", |(name, _)| name)
    }
}

impl Policy {
    /// The mapping of Llama-3.2-1B by AMD's mlir-air.
    pub const MLIR_AIR: Policy = Policy { grouping: Grouping::Stitched, attention: Attention::Prefill };

    /// Every policy, by name.
    pub const ALL: &'static [(&'static str, Policy)] = &[
        ("mlir-air", Policy::MLIR_AIR),
        ("mlir-air-host-attention", Policy { attention: Attention::Host, ..Policy::MLIR_AIR }),
        ("mlir-air-array-attention", Policy { attention: Attention::Array, ..Policy::MLIR_AIR }),
        ("unstitched", Policy { grouping: Grouping::Unstitched, ..Policy::MLIR_AIR }),
        ("unstitched-host-attention", Policy { grouping: Grouping::Unstitched, attention: Attention::Host }),
    ];

    /// The name in flags and printed groups.
    pub fn name(self) -> &'static str {
        Policy::ALL.iter().find(|(_, policy)| *policy == self).map_or("unnamed", |(name, _)| name)
    }
}

/// The most values of a product that one launch computes; a head with more is
/// cut into launches of one program (eight for Llama's vocabulary).
const HEAD_VALUES: u32 = 16384;

/// The most values of a tensor, with its padding: four gigabytes, as sizes of
/// tiles and strides, in words and bytes, are numbers of 32 bits.
const MOST_VALUES: u64 = (1 << 31) - 1;

/// The most values of a head whose keys and values can be laid out in chunks.
const MOST_HEAD: u32 = 1 << 16;

/// Where a node is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// On the host.
    Host,
    /// On the array, all rows at once.
    Array,
    /// On the array, one output row after another.
    EachOutputRow,
    /// Nowhere: another view of the same numbers.
    View,
}

/// Cuts `graph`.
///
/// # Errors
/// When a node is of a kind that neither host nor array computes.
pub fn partition(graph: &Graph, target: &Target, mapping: &Mapping) -> Result<Groups> {
    let policy = mapping.policy;
    let mut cut = Cut {
        graph,
        target,
        mapping,
        groups: Groups {
            policy: mapping.name.clone(),
            tensors: Vec::new(),
            programs: Vec::new(),
            steps: Vec::new(),
        },
        tensor_of: vec![None; graph.values.len()],
    };
    let mut segment: Vec<usize> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let site = site(graph, target, policy, index);
        if let Some(reason) = refusal(graph, target, policy, index) {
            return Err(Error::new(format!("'{}': {reason}", graph.value(node.output).name)));
        }
        let attends = matches!(node.op, Op::Attend { .. });
        let begins = match policy.grouping {
            Grouping::Unstitched => true,
            Grouping::Stitched => attends || enters_attention(graph, index),
            Grouping::Joined => attends,
        };
        if site != Site::View && (site != Site::Array || begins) {
            cut.close(&mut segment, false)?;
        }
        match site {
            Site::View => {}
            Site::Host => cut.groups.steps.push(Step::Host { node: index as u32 }),
            Site::Array => {
                segment.push(index);
                if attends {
                    cut.close(&mut segment, false)?;
                }
            }
            Site::EachOutputRow => cut.close(&mut vec![index], true)?,
        }
    }
    cut.close(&mut segment, false)?;
    Ok(cut.groups)
}

/// Why a node cannot be run, if it cannot.
pub fn refusal(graph: &Graph, target: &Target, policy: Policy, index: usize) -> Option<String> {
    let node = &graph.nodes[index];
    let x = node.inputs.first().map(|&x| graph.value(x));
    // Padding is whole heads, which are computed along and never looked at.
    let heads_break = |inner: &[usize]| {
        let flat: usize = inner.iter().product();
        let all = flat.next_multiple_of(column_granule(target) as usize);
        inner.len() > 1 && !inner.last().is_some_and(|&size| all.is_multiple_of(size))
    };
    match node.op {
        Op::Norm { .. } | Op::Rope { .. }
            if site(graph, target, policy, index) == Site::Array && heads_break(&x?.shape.extents()[1..]) =>
        {
            let granule = column_granule(target);
            Some(format!(
                "heads of {:?} values, padded to a multiple of {granule}, are no whole heads",
                &x?.shape.extents()[1..]
            ))
        }
        Op::Scale { .. } | Op::Softcap { .. } if site(graph, target, policy, index) == Site::Array => {
            Some(format!("{} of rows of the step has no kernel on the array yet", node.op.name()))
        }
        _ => None,
    }
}

/// Where a node is computed.
fn site(graph: &Graph, target: &Target, policy: Policy, index: usize) -> Site {
    let node = &graph.nodes[index];
    let output_rows = graph.value(node.output).outermost == Extent::OutputRows;
    let embeds = |value: ValueId| graph.nodes.iter().any(|node| node.output == value && node.op == Op::Embed);
    match node.op {
        Op::Reshape => Site::View,
        Op::Embed | Op::Gather | Op::Write => Site::Host,
        Op::Attend { .. } if attends(graph, target, policy, index) => Site::Array,
        Op::Attend { .. } => Site::Host,
        Op::Linear if output_rows => Site::EachOutputRow,
        Op::Scale { .. } if embeds(node.inputs[0]) => Site::Host,
        _ if output_rows => Site::Host,
        _ => Site::Array,
    }
}

/// Whether the array attends: the policy says so, all rows are of one
/// sequence, scores have no cap, and padding would not reach into the heads.
fn attends(graph: &Graph, target: &Target, policy: Policy, index: usize) -> bool {
    attention_stays(graph, target, policy, index).is_none()
}

/// Why an attention stays on the host, if it does.
fn attention_stays(graph: &Graph, target: &Target, policy: Policy, index: usize) -> Option<String> {
    let node = &graph.nodes[index];
    let Op::Attend { softcap, .. } = node.op else { return None };
    let (q, keys) = (graph.value(node.inputs[0]), graph.value(node.inputs[1]));
    let (values, width, granule) =
        (graph.value(node.inputs[2]), q.shape.stride(), column_granule(target) as usize);
    if policy.attention == Attention::Host {
        Some("the policy leaves attention to the host".to_owned())
    } else if policy.attention == Attention::Prefill && graph.key.rows == 1 {
        Some("the policy leaves attention of single rows to the host".to_owned())
    } else if let Some(cap) = softcap {
        Some(format!("scores have a cap of {cap}, which the attention of the array does not know"))
    } else if graph.key.sequences > 1 {
        Some(format!("a step may have rows of {} sequences; the array attends for one", graph.key.sequences))
    } else if !width.is_multiple_of(granule) {
        Some(format!("{width} values of all heads are no multiple of {granule}: padding would be a head"))
    } else if keys.shape != values.shape {
        Some(format!("keys of {} and values of {} differ in shape", keys.shape, values.shape))
    } else {
        None
    }
}

/// Work of one kind that stays on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stays {
    /// What the results are called, without what tells layers apart.
    pub name: String,
    /// The op.
    pub op: &'static str,
    /// How many nodes of the graph there are of it.
    pub count: usize,
    /// Why it is not on the array.
    pub reason: String,
}

/// All that stays on the host, in the graph's order.
pub fn stays(graph: &Graph, target: &Target, policy: Policy) -> Vec<Stays> {
    let mut all: Vec<Stays> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if site(graph, target, policy, index) != Site::Host {
            continue;
        }
        let reason = match node.op {
            Op::Attend { .. } => attention_stays(graph, target, policy, index).unwrap_or_default(),
            Op::Embed => "rows are looked up where tokens are known".to_owned(),
            Op::Write => "the KV cache is the host's".to_owned(),
            Op::Gather => "which rows are output rows is known to the host alone".to_owned(),
            _ if graph.value(node.output).outermost == Extent::OutputRows => {
                "it is of the output rows, which the host has taken".to_owned()
            }
            _ => "it is of what the host has just looked up".to_owned(),
        };
        let name = label(&graph.value(node.output).name);
        let alike = |known: &&mut Stays| known.name == name && known.reason == reason;
        match all.iter_mut().find(alike) {
            Some(known) => known.count += 1,
            None => all.push(Stays { name: name.to_owned(), op: node.op.name(), count: 1, reason }),
        }
    }
    all
}

/// Whether a node is the norm that attention begins with: its result reaches a
/// write of state or an attention without passing a sum.
fn enters_attention(graph: &Graph, index: usize) -> bool {
    let Op::Norm { .. } = graph.nodes[index].op else { return false };
    if graph.value(graph.nodes[index].output).shape.extents().len() > 2 {
        return false; // a norm of heads lies within
    }
    let mut reached = vec![false; graph.values.len()];
    reached[graph.nodes[index].output.0 as usize] = true;
    for node in &graph.nodes[index + 1..] {
        if !node.inputs.iter().any(|input| reached[input.0 as usize]) {
            continue;
        }
        match node.op {
            Op::Write | Op::Attend { .. } => return true,
            Op::Add => {}
            _ => reached[node.output.0 as usize] = true,
        }
    }
    false
}

/// The multiple that columns of tensors are padded to: every row of cores has
/// a block of the matrix instruction, twice.
fn column_granule(target: &Target) -> u32 {
    16 * target.array.compute_rows
}

/// The multiple that the rows of a step are padded to: every column of cores
/// has two blocks of four rows.
fn row_granule(target: &Target) -> u32 {
    8 * target.array.columns
}

/// A graph being cut.
struct Cut<'a> {
    graph: &'a Graph,
    target: &'a Target,
    mapping: &'a Mapping,
    groups: Groups,
    tensor_of: Vec<Option<u32>>,
}

/// A program in the making: which tensors are its arguments.
#[derive(Default)]
struct Draft {
    tensors: Vec<u32>,
    written: Vec<bool>,
    launches: Vec<Task>,
}

impl Draft {
    /// The number of the argument that is this tensor.
    fn argument(&mut self, tensor: u32) -> u32 {
        let known = self.tensors.iter().position(|&known| known == tensor);
        known.unwrap_or_else(|| {
            self.tensors.push(tensor);
            self.written.push(false);
            self.tensors.len() - 1
        }) as u32
    }
}

impl Cut<'_> {
    /// Ends a segment: its nodes become one program and one step.
    fn close(&mut self, segment: &mut Vec<usize>, each_output_row: bool) -> Result<()> {
        if segment.is_empty() {
            return Ok(());
        }
        let mut draft = Draft::default();
        for &index in segment.iter() {
            self.launch(index, &mut draft)?;
        }
        let mut arguments = Vec::new();
        let mut inputs = 0;
        for (&number, &written) in draft.tensors.iter().zip(&draft.written) {
            let tensor = &self.groups.tensors[number as usize];
            let role = self.role(tensor, written, segment);
            let name = match role {
                ArgumentRole::Input => {
                    inputs += 1;
                    format!("in.{}", inputs - 1)
                }
                _ => label(&tensor.name).to_owned(),
            };
            let bytes = if each_output_row && role != ArgumentRole::Static {
                tensor.row_bytes()
            } else {
                tensor.bytes()
            };
            arguments.push(Argument { name, role, bytes });
        }
        segment.clear();
        let program = self.program(arguments, draft.launches, each_output_row);
        self.groups.steps.push(Step::Array { program, tensors: draft.tensors, each_output_row });
        Ok(())
    }

    /// What a tensor is to the program of a segment.
    fn role(&self, tensor: &Tensor, written: bool, segment: &[usize]) -> ArgumentRole {
        if tensor.kind == TensorKind::Static {
            return ArgumentRole::Static;
        }
        if !written {
            return ArgumentRole::Input;
        }
        let last = *segment.last().expect("a segment that is closed has nodes");
        let views = |value: &ValueId| self.graph.value(self.root(*value)).name == tensor.name;
        let read_later = self.graph.nodes[last + 1..].iter().any(|node| node.inputs.iter().any(views));
        let leaves = self.graph.output().is_some_and(|output| views(&output));
        if read_later || leaves { ArgumentRole::Output } else { ArgumentRole::Intermediate }
    }

    /// The program of this content, made if there is none yet.
    fn program(&mut self, arguments: Vec<Argument>, launches: Vec<Task>, head: bool) -> u32 {
        let equal = |program: &Program| program.arguments == arguments && program.launches == launches;
        if let Some(known) = self.groups.programs.iter().position(equal) {
            return known as u32;
        }
        let base = if head { "lm_head_gemv".to_owned() } else { name_of(&launches) };
        let taken = |name: &str| self.groups.programs.iter().any(|program| program.name == name);
        let numbered = (2..).map(|number| format!("{base}.{number}"));
        let name = std::iter::once(base.clone()).chain(numbered).find(|name| !taken(name));
        let name = name.expect("there are more numbers than programs");
        self.groups.programs.push(Program { name, arguments, launches });
        self.groups.programs.len() as u32 - 1
    }

    /// Adds the launch that computes a node.
    fn launch(&mut self, index: usize, draft: &mut Draft) -> Result<()> {
        let node = &self.graph.nodes[index];
        let mut tensors = Vec::new();
        let inputs = match node.op {
            Op::Attend { .. } => {
                tensors.push(self.tensor(node.inputs[0])?);
                tensors.push(self.chunks(node.inputs[1], node.inputs[2])?);
                &[]
            }
            // A bias is added by a launch of its own.
            Op::Linear => &node.inputs[..2],
            _ => &node.inputs[..],
        };
        for &input in inputs {
            let turns = matches!(node.op, Op::Rope { .. }) && self.graph.value(input).role == Role::Weight;
            tensors.push(if turns { self.turns(input)? } else { self.tensor(input)? });
        }
        tensors.push(self.tensor(node.output)?);
        let kernel = self.kernel(index, &tensors)?;
        let arguments: Vec<u32> = tensors.iter().map(|&tensor| draft.argument(tensor)).collect();
        draft.written[arguments[arguments.len() - 1] as usize] = true;
        let name = label(&self.graph.value(node.output).name).to_owned();
        let parts = self.parts(index, kernel);
        for (part, kernel) in parts.iter().enumerate() {
            let name = if parts.len() > 1 { format!("{name}.{part}") } else { name.clone() };
            let tiling = self.mapping.tiling(kernel);
            draft.launches.push(Task { name, kernel: *kernel, arguments: arguments.clone(), tiling });
        }
        if let (Op::Linear, Some(&bias)) = (node.op, node.inputs.get(2)) {
            let (sum, bias) = (tensors[tensors.len() - 1], self.tensor(bias)?);
            let [rows, n] = self.groups.tensors[sum as usize].padded;
            let rows = if self.site(index) == Site::EachOutputRow { 1 } else { rows };
            let [sum, bias] = [sum, bias].map(|tensor| draft.argument(tensor));
            let (kernel, arguments) = (Kernel::Bias { rows, n }, vec![sum, bias, sum]);
            let (name, tiling) = (format!("{name}.bias"), self.mapping.tiling(&kernel));
            draft.launches.push(Task { name, kernel, arguments, tiling });
        }
        Ok(())
    }

    /// The launches of a kernel: one, or several for a large head.
    fn parts(&self, index: usize, kernel: Kernel) -> Vec<Kernel> {
        match kernel {
            Kernel::Gemv { n, k, .. } if n > HEAD_VALUES && self.site(index) == Site::EachOutputRow => {
                let granule = 16 * self.target.array.columns;
                let least = n.div_ceil(HEAD_VALUES);
                let count = (least..=n / granule)
                    .find(|count| n.is_multiple_of(count * 2 * self.target.array.columns));
                let count = count.unwrap_or(1);
                (0..count).map(|part| Kernel::Gemv { first: part * (n / count), n: n / count, k }).collect()
            }
            _ => vec![kernel],
        }
    }

    fn site(&self, index: usize) -> Site {
        site(self.graph, self.target, self.mapping.policy, index)
    }

    /// The tensor of the chunks of keys and values.
    fn chunks(&mut self, keys: ValueId, values: ValueId) -> Result<u32> {
        let (keys, values) = (self.graph.value(keys), self.graph.value(values));
        let name = format!("{}|{}", keys.name, values.name);
        let size = size(keys.shape.columns())?;
        if size > MOST_HEAD {
            let most = MOST_HEAD;
            return Err(Error::new(format!("'{name}' has heads of {size} values; they may have {most}")));
        }
        let heads = self::size(keys.shape.stride())? / size;
        let all = self.positions()? / BLOCK_POSITIONS as u32;
        let rows = heads.checked_mul(all);
        let rows =
            rows.ok_or_else(|| Error::new(format!("{heads} heads of {all} blocks are more than 2^32")))?;
        let (kind, padded) = (TensorKind::Chunks, [rows, chunk_bytes(size) / 2]);
        self.add(Tensor { name, kind, extent: [heads, size], padded })
    }

    /// The number of a new tensor, if it is not too large.
    fn add(&mut self, tensor: Tensor) -> Result<u32> {
        let [rows, columns] = tensor.padded;
        if u64::from(rows) * u64::from(columns) > MOST_VALUES {
            let name = &tensor.name;
            return Err(Error::new(format!(
                "'{name}' has {rows}x{columns} values with its padding; the array takes {MOST_VALUES}"
            )));
        }
        self.groups.tensors.push(tensor);
        Ok(self.groups.tensors.len() as u32 - 1)
    }

    /// Positions of the context, padded so that each row of cores has as many
    /// blocks.
    fn positions(&self) -> Result<u32> {
        padded(self.graph.key.context as usize, BLOCK_POSITIONS as u32 * self.target.array.compute_rows)
    }

    fn kernel(&self, index: usize, tensors: &[u32]) -> Result<Kernel> {
        let node = &self.graph.nodes[index];
        let padded = |operand: usize| self.groups.tensors[tensors[operand] as usize].padded;
        let [rows, columns] = padded(0);
        let inner = &self.graph.value(node.inputs[0]).shape.extents()[1..];
        let all = rows.checked_mul(columns);
        let all = all.ok_or_else(|| Error::new(format!("{rows}x{columns} values are more than 2^32")));
        Ok(match node.op {
            Op::Linear if rows == 1 || self.site(index) == Site::EachOutputRow => {
                Kernel::Gemv { first: 0, n: padded(1)[0], k: columns }
            }
            Op::Linear => Kernel::Gemm { m: rows, n: padded(1)[0], k: columns },
            Op::Norm { epsilon } => match *inner {
                [width] => Kernel::RmsNorm { rows, n: columns, width: width as u32, epsilon },
                [_, size] => {
                    let n = size as u32;
                    Kernel::RmsNorm { rows: all? / n, n, width: n, epsilon }
                }
                _ => return Err(Error::new("a norm of values of more than three dimensions has no kernel")),
            },
            Op::Rope { pairing } => match *inner {
                [_, size] => {
                    let size = size as u32;
                    Kernel::Rope { rows, heads: columns / size, size, pairing }
                }
                _ => return Err(Error::new("a rotation of values that are no heads has no kernel")),
            },
            Op::Gate { act } => Kernel::Gate { n: all?, act },
            Op::Add => Kernel::Add { n: all? },
            Op::Attend { scale, span, .. } => {
                let [kv_heads, size] = self.groups.tensors[tensors[1] as usize].extent;
                let window = match span {
                    Span::Full => 0,
                    Span::Window(length) => length,
                };
                let keys = self.positions()?;
                Kernel::Attend { rows, heads: columns / size, kv_heads, size, keys, window, scale }
            }
            op => return Err(Error::new(format!("{} has no kernel on the array", op.name()))),
        })
    }

    /// The value whose numbers a value shows.
    fn root(&self, value: ValueId) -> ValueId {
        root(self.graph, value)
    }

    /// The tensor of a value, made when first asked for.
    fn tensor(&mut self, value: ValueId) -> Result<u32> {
        let root = self.root(value);
        if let Some(known) = self.tensor_of[root.0 as usize] {
            return Ok(known);
        }
        let value = self.graph.value(root);
        let (kind, extent, padded) = if value.role == Role::Weight {
            let padded = match *value.shape.extents() {
                [n] => {
                    // Norm weights of heads are as wide as a head; others as the rows they scale.
                    let user = self.graph.nodes.iter().find(|node| node.inputs.contains(&root));
                    let heads =
                        user.is_some_and(|node| self.graph.value(node.inputs[0]).shape.extents().len() > 2);
                    [1, if heads { n as u32 } else { self.wide(n)? }]
                }
                _ => [self.wide(value.shape.rows())?, self.wide(value.shape.columns())?],
            };
            (TensorKind::Static, [value.shape.rows(), value.shape.columns()], padded)
        } else {
            let (rows, columns) = (value.shape.extents()[0], value.shape.stride());
            let granule = row_granule(self.target);
            let single = rows == 1 || value.outermost == Extent::OutputRows;
            let all = if single { rows as u32 } else { padded(rows, granule)? };
            (TensorKind::Scratch, [rows, columns], [all, self.wide(columns)?])
        };
        let extent = [size(extent[0])?, size(extent[1])?];
        let name = value.name.clone();
        let number = self.add(Tensor { name, kind, extent, padded })?;
        self.tensor_of[root.0 as usize] = Some(number);
        Ok(number)
    }

    /// The tensor of the cosines and sines that come of a weight.
    fn turns(&mut self, frequencies: ValueId) -> Result<u32> {
        if let Some(known) = self.tensor_of[frequencies.0 as usize] {
            return Ok(known);
        }
        let value = self.graph.value(frequencies);
        let (rows, size) = (self.graph.key.rows, 2 * size(value.shape.columns())?);
        let all = if rows == 1 { 1 } else { padded(rows as usize, row_granule(self.target))? };
        let (kind, extent, padded) = (TensorKind::Turns, [rows, size], [all, size]);
        let number = self.add(Tensor { name: value.name.clone(), kind, extent, padded })?;
        self.tensor_of[frequencies.0 as usize] = Some(number);
        Ok(number)
    }

    fn wide(&self, columns: usize) -> Result<u32> {
        padded(columns, column_granule(self.target))
    }
}

/// The value whose numbers a value shows: reshapes change nothing.
pub fn root(graph: &Graph, value: ValueId) -> ValueId {
    let mut root = value;
    // Inputs come before their users, so walking back over the nodes once is enough.
    for node in graph.nodes.iter().rev() {
        if node.op == Op::Reshape && node.output == root {
            root = node.inputs[0];
        }
    }
    root
}

fn size(extent: usize) -> Result<u32> {
    u32::try_from(extent)
        .map_err(|_| Error::new(format!("an extent of {extent} is more than the array counts")))
}

fn padded(extent: usize, granule: u32) -> Result<u32> {
    let whole = size(extent)?.div_ceil(granule).checked_mul(granule);
    whole.ok_or_else(|| Error::new(format!("an extent of {extent} is more than the array counts")))
}

/// A value's name without what tells layers apart: what follows its last
/// number.
fn label(name: &str) -> &str {
    let mut rest = name;
    let mut label = name;
    while let Some((head, tail)) = rest.split_once('.') {
        if head.bytes().all(|byte| byte.is_ascii_digit()) {
            label = tail;
        }
        rest = tail;
    }
    label
}

/// A program's name, after what it does.
fn name_of(launches: &[Task]) -> String {
    let has = |name: &str| launches.iter().any(|task| task.kernel.name() == name);
    let starts = |name: &str| launches.first().is_some_and(|task| task.kernel.name() == name);
    match launches {
        [task] if task.kernel.name() == "attend" => "flash_attn".to_owned(),
        [task] => {
            let sizes = task.kernel.to_string().replace([' ', '='], "_");
            sizes.split("_epsilon").next().unwrap_or(&sizes).to_owned()
        }
        _ if starts("gemm") && has("gate") && has("rope") => "o_ffn_rms_gemms_rope".to_owned(),
        _ if starts("gemv") && has("gate") && has("rope") => "o_gemv_ffn_rms_gemv_rope".to_owned(),
        _ if starts("rms_norm") && has("rope") && has("gemm") => "rms_gemms_rope".to_owned(),
        _ if starts("rms_norm") && has("rope") && has("gemv") => "rms_gemv_rope".to_owned(),
        _ if starts("gemm") && has("gate") => "o_ffn".to_owned(),
        _ if starts("gemv") && has("gate") => "o_gemv_ffn".to_owned(),
        _ => format!("group_of_{}", launches.len()),
    }
}
