//! Pass 1, from graph to groups: which nodes run on the array and which on the
//! host, and which of them share a program, as the policy determines.

use girih_graph::split::{Site, Split, name_in_layer, split};
use girih_graph::{Act, BLOCK_POSITIONS, Extent, Graph, Op, Role, Span, ValueId};
use girih_tensor::{Error, Result};

use super::mapping::ArrayMapping;
use super::policy::{AttentionPlacement, Grouping, Policy};
use crate::form::groups::{
    ArrayProgram, ArrayTensor, Groups, Kernel, KernelLaunch, StepAction, TensorKind, chunk_bytes,
};
use crate::form::schedule::{Argument, ArgumentRole};
use crate::target::Target;

/// The maximum number of results of one launch of the head. A larger head is split
/// into launches of one program (eight for Llama's vocabulary).
const MAX_LAUNCH_VALUES: u32 = 16384;

/// The maximum number of values of a tensor, with padding: four gigabytes, because
/// sizes and strides of tiles, in words and bytes, have 32 bits.
const MAX_TENSOR_VALUES: u64 = (1 << 31) - 1;

/// The maximum head size of keys and values in chunks.
const MAX_HEAD_SIZE: u32 = 1 << 16;

/// Where a node is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeSite {
    /// On the host, for this reason.
    Host(String),
    /// On the array, all rows at once.
    Array,
    /// On the array, one output row at a time.
    EachOutputRow,
    /// Not computed: the result is a view of the input.
    View,
    /// Not computed: neither the array nor the host has code for the op.
    Unknown,
}

/// Whether the array or the host has code for an op with this number of operands.
pub fn knows(op: Op, operands: usize) -> bool {
    match op {
        Op::Reshape | Op::Write | Op::Scale { .. } | Op::Softcap { .. } | Op::Gather => operands == 1,
        Op::Embed
        | Op::Norm { .. }
        | Op::Rope { .. }
        | Op::Gate { act: Act::Silu | Act::GeluTanh }
        | Op::Add => operands == 2,
        Op::Linear => operands == 2 || operands == 3,
        Op::Attend { span: Span::Full | Span::Window(_), .. } => operands == 3,
        _ => false,
    }
}

/// Partitions `graph`.
///
/// # Errors
/// When neither the host nor the array can compute a node.
pub fn partition(graph: &Graph, target: &Target, mapping: &ArrayMapping) -> Result<Groups> {
    let policy = mapping.policy;
    let mut partitioner = Partitioner {
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
        if site != NodeSite::View && (site != NodeSite::Array || begins) {
            partitioner.close(&mut segment, false)?;
        }
        match site {
            NodeSite::Unknown => unreachable!("refused above"),
            NodeSite::View => {}
            NodeSite::Host(_) => partitioner.groups.steps.push(StepAction::Host { node: index as u32 }),
            NodeSite::Array => {
                segment.push(index);
                if attends {
                    partitioner.close(&mut segment, false)?;
                }
            }
            NodeSite::EachOutputRow => partitioner.close(&mut vec![index], true)?,
        }
    }
    partitioner.close(&mut segment, false)?;
    Ok(partitioner.groups)
}

/// Returns why a node cannot be computed, if it cannot.
pub fn refusal(graph: &Graph, target: &Target, policy: Policy, index: usize) -> Option<String> {
    let node = &graph.nodes[index];
    let x = node.inputs.first().map(|&x| graph.value(x));
    // Padding must be whole heads: they are computed too, and their results are
    // ignored.
    let heads_break = |inner: &[usize]| {
        let flat: usize = inner.iter().product();
        let all = flat.next_multiple_of(column_granule(target) as usize);
        inner.len() > 1 && !inner.last().is_some_and(|&size| all.is_multiple_of(size))
    };
    match node.op {
        Op::Norm { .. } | Op::Rope { .. }
            if site(graph, target, policy, index) == NodeSite::Array
                && heads_break(&x?.shape.extents()[1..]) =>
        {
            let granule = column_granule(target);
            Some(format!(
                "heads of {:?} values do not divide rows that are padded to a multiple of {granule}",
                &x?.shape.extents()[1..]
            ))
        }
        Op::Scale { .. } | Op::Softcap { .. } if site(graph, target, policy, index) == NodeSite::Array => {
            Some(format!("{} of rows of the step has no kernel on the array yet", node.op.name()))
        }
        op if site(graph, target, policy, index) == NodeSite::Unknown => {
            Some(format!("it has no code for the op '{}'", op.name()))
        }
        _ => None,
    }
}

/// Where a node is computed.
fn site(graph: &Graph, target: &Target, policy: Policy, index: usize) -> NodeSite {
    let node = &graph.nodes[index];
    let output_rows = graph.value(node.output).outermost == Extent::OutputRows;
    let embeds = |value: ValueId| graph.nodes.iter().any(|node| node.output == value && node.op == Op::Embed);
    let host = |reason: &str| NodeSite::Host(reason.to_owned());
    match node.op {
        op if !knows(op, node.inputs.len()) => NodeSite::Unknown,
        Op::Reshape => NodeSite::View,
        Op::Embed => host("the host looks up the rows of tokens"),
        Op::Write => host("the KV cache is in host memory"),
        Op::Gather => host("only the host has the list of output rows"),
        Op::Attend { .. } => {
            attention_fallback(graph, target, policy, index).map_or(NodeSite::Array, NodeSite::Host)
        }
        Op::Linear if output_rows => NodeSite::EachOutputRow,
        _ if output_rows => host("its rows are output rows, which the host has gathered"),
        Op::Scale { .. } if embeds(node.inputs[0]) => {
            host("its rows are embeddings, which the host has looked up")
        }
        Op::Linear
        | Op::Norm { .. }
        | Op::Rope { .. }
        | Op::Gate { .. }
        | Op::Add
        | Op::Scale { .. }
        | Op::Softcap { .. } => NodeSite::Array,
        _ => NodeSite::Unknown,
    }
}

/// Returns why attention runs on the host, if it does. It runs on the array when the policy
/// allows it, all rows are of one sequence, scores have no softcap, and padding does not split
/// heads.
fn attention_fallback(graph: &Graph, target: &Target, policy: Policy, index: usize) -> Option<String> {
    let node = &graph.nodes[index];
    let Op::Attend { softcap, .. } = node.op else { return None };
    let (q, keys) = (graph.value(node.inputs[0]), graph.value(node.inputs[1]));
    let (values, width, granule) =
        (graph.value(node.inputs[2]), q.shape.stride(), column_granule(target) as usize);
    if policy.attention == AttentionPlacement::Host {
        Some("the policy runs attention on the host".to_owned())
    } else if policy.attention == AttentionPlacement::Prefill && graph.key.rows == 1 {
        Some("the policy runs attention of single rows on the host".to_owned())
    } else if let Some(cap) = softcap {
        Some(format!("the array's attention has no softcap; this one needs {cap}"))
    } else if graph.key.sequences > 1 {
        Some(format!(
            "a step may have rows of {} sequences; the array's attention supports one",
            graph.key.sequences
        ))
    } else if !width.is_multiple_of(granule) {
        Some(format!(
            "the {width} values of all heads are not a multiple of {granule}: padding would be a head"
        ))
    } else if keys.shape != values.shape {
        Some(format!("keys of {} and values of {} differ in shape", keys.shape, values.shape))
    } else {
        None
    }
}

/// Divides a graph between the array and the host.
pub fn array_split(graph: &Graph, target: &Target, policy: Policy) -> Split {
    split(graph, |graph, index| match site(graph, target, policy, index) {
        NodeSite::Host(reason) => Site::Host(reason),
        NodeSite::Array | NodeSite::EachOutputRow | NodeSite::View | NodeSite::Unknown => Site::Device,
    })
}

/// Whether a node is the norm before attention: its result reaches a write of
/// state or an attention without passing a sum.
fn enters_attention(graph: &Graph, index: usize) -> bool {
    let Op::Norm { .. } = graph.nodes[index].op else { return false };
    if graph.value(graph.nodes[index].output).shape.extents().len() > 2 {
        return false; // a norm of heads is within attention
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

/// The multiple to which columns of tensors are padded: two blocks of the matrix
/// instruction for every row of cores.
fn column_granule(target: &Target) -> u32 {
    16 * target.array.compute_rows
}

/// The multiple to which the rows of a step are padded: two blocks of four rows
/// for every column of cores.
fn row_granule(target: &Target) -> u32 {
    8 * target.array.columns
}

/// The state of the pass.
struct Partitioner<'a> {
    graph: &'a Graph,
    target: &'a Target,
    mapping: &'a ArrayMapping,
    groups: Groups,
    tensor_of: Vec<Option<u32>>,
}

/// A program under construction.
#[derive(Default)]
struct ProgramDraft {
    tensors: Vec<u32>,
    written: Vec<bool>,
    launches: Vec<KernelLaunch>,
}

impl ProgramDraft {
    /// Returns the number of a tensor's argument, added if it is new.
    fn argument(&mut self, tensor: u32) -> u32 {
        let known = self.tensors.iter().position(|&known| known == tensor);
        known.unwrap_or_else(|| {
            self.tensors.push(tensor);
            self.written.push(false);
            self.tensors.len() - 1
        }) as u32
    }
}

impl Partitioner<'_> {
    /// Ends a segment: its nodes become one program and one action.
    fn close(&mut self, segment: &mut Vec<usize>, each_output_row: bool) -> Result<()> {
        if segment.is_empty() {
            return Ok(());
        }
        let mut draft = ProgramDraft::default();
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
                _ => name_in_layer(&tensor.name).to_owned(),
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
        self.groups.steps.push(StepAction::Array { program, tensors: draft.tensors, each_output_row });
        Ok(())
    }

    /// Returns the role of a tensor in the program of a segment.
    fn role(&self, tensor: &ArrayTensor, written: bool, segment: &[usize]) -> ArgumentRole {
        if tensor.kind == TensorKind::Static {
            return ArgumentRole::Static;
        }
        if !written {
            return ArgumentRole::Input;
        }
        let last = *segment.last().expect("a closed segment has nodes");
        let views = |value: &ValueId| self.graph.value(self.root(*value)).name == tensor.name;
        let read_later = self.graph.nodes[last + 1..].iter().any(|node| node.inputs.iter().any(views));
        let leaves = self.graph.output().is_some_and(|output| views(&output));
        if read_later || leaves { ArgumentRole::Output } else { ArgumentRole::Intermediate }
    }

    /// Returns the program with this content, added if it is new.
    fn program(&mut self, arguments: Vec<Argument>, launches: Vec<KernelLaunch>, head: bool) -> u32 {
        let equal = |program: &ArrayProgram| program.arguments == arguments && program.launches == launches;
        if let Some(known) = self.groups.programs.iter().position(equal) {
            return known as u32;
        }
        let base = if head { "lm_head_gemv".to_owned() } else { name_of(&launches) };
        let taken = |name: &str| self.groups.programs.iter().any(|program| program.name == name);
        let numbered = (2..).map(|number| format!("{base}.{number}"));
        let name = std::iter::once(base.clone()).chain(numbered).find(|name| !taken(name));
        let name = name.expect("there are more numbers than programs");
        self.groups.programs.push(ArrayProgram { name, arguments, launches });
        self.groups.programs.len() as u32 - 1
    }

    /// Adds the launches that compute a node.
    fn launch(&mut self, index: usize, draft: &mut ProgramDraft) -> Result<()> {
        let node = &self.graph.nodes[index];
        let mut tensors = Vec::new();
        let inputs = match node.op {
            Op::Attend { .. } => {
                tensors.push(self.tensor(node.inputs[0])?);
                tensors.push(self.chunks(node.inputs[1], node.inputs[2])?);
                &[]
            }
            // The bias is added in a separate launch.
            Op::Linear => &node.inputs[..2],
            _ => &node.inputs[..],
        };
        for &input in inputs {
            let frequencies =
                matches!(node.op, Op::Rope { .. }) && self.graph.value(input).role == Role::Weight;
            tensors.push(if frequencies { self.cos_sin(input)? } else { self.tensor(input)? });
        }
        tensors.push(self.tensor(node.output)?);
        let kernel = self.kernel(index, &tensors)?;
        let arguments: Vec<u32> = tensors.iter().map(|&tensor| draft.argument(tensor)).collect();
        draft.written[arguments[arguments.len() - 1] as usize] = true;
        let name = name_in_layer(&self.graph.value(node.output).name).to_owned();
        let parts = self.parts(index, kernel);
        for (part, kernel) in parts.iter().enumerate() {
            let name = if parts.len() > 1 { format!("{name}.{part}") } else { name.clone() };
            let tiling = self.mapping.tiling(kernel);
            draft.launches.push(KernelLaunch { name, kernel: *kernel, arguments: arguments.clone(), tiling });
        }
        if let (Op::Linear, Some(&bias)) = (node.op, node.inputs.get(2)) {
            let (sum, bias) = (tensors[tensors.len() - 1], self.tensor(bias)?);
            let [rows, n] = self.groups.tensors[sum as usize].padded;
            let rows = if self.site(index) == NodeSite::EachOutputRow { 1 } else { rows };
            let [sum, bias] = [sum, bias].map(|tensor| draft.argument(tensor));
            let (kernel, arguments) = (Kernel::Bias { rows, n }, vec![sum, bias, sum]);
            let (name, tiling) = (format!("{name}.bias"), self.mapping.tiling(&kernel));
            draft.launches.push(KernelLaunch { name, kernel, arguments, tiling });
        }
        Ok(())
    }

    /// Splits the kernel of a large head; returns other kernels unchanged.
    fn parts(&self, index: usize, kernel: Kernel) -> Vec<Kernel> {
        match kernel {
            Kernel::Gemv { n, k, .. }
                if n > MAX_LAUNCH_VALUES && self.site(index) == NodeSite::EachOutputRow =>
            {
                let granule = 16 * self.target.array.columns;
                let least = n.div_ceil(MAX_LAUNCH_VALUES);
                let count = (least..=n / granule)
                    .find(|count| n.is_multiple_of(count * 2 * self.target.array.columns));
                let count = count.unwrap_or(1);
                (0..count).map(|part| Kernel::Gemv { first: part * (n / count), n: n / count, k }).collect()
            }
            _ => vec![kernel],
        }
    }

    fn site(&self, index: usize) -> NodeSite {
        site(self.graph, self.target, self.mapping.policy, index)
    }

    /// Adds the tensor of chunks of keys and values.
    fn chunks(&mut self, keys: ValueId, values: ValueId) -> Result<u32> {
        let (keys, values) = (self.graph.value(keys), self.graph.value(values));
        let name = format!("{}|{}", keys.name, values.name);
        let size = size(keys.shape.columns())?;
        if size > MAX_HEAD_SIZE {
            return Err(Error::new(format!(
                "'{name}' has heads of {size} values; the maximum is {MAX_HEAD_SIZE}"
            )));
        }
        let heads = self::size(keys.shape.stride())? / size;
        let all = self.positions()? / BLOCK_POSITIONS as u32;
        let rows = heads.checked_mul(all);
        let rows = rows.ok_or_else(|| Error::new(format!("{heads} heads of {all} blocks exceed 32 bits")))?;
        let (kind, padded) = (TensorKind::Chunks, [rows, chunk_bytes(size) / 2]);
        self.add(ArrayTensor { name, kind, extent: [heads, size], padded })
    }

    /// Adds a tensor, unless it is too large, and returns its number.
    fn add(&mut self, tensor: ArrayTensor) -> Result<u32> {
        let [rows, columns] = tensor.padded;
        if u64::from(rows) * u64::from(columns) > MAX_TENSOR_VALUES {
            let name = &tensor.name;
            return Err(Error::new(format!(
                "'{name}' has {rows}x{columns} values with padding; the maximum is {MAX_TENSOR_VALUES}"
            )));
        }
        self.groups.tensors.push(tensor);
        Ok(self.groups.tensors.len() as u32 - 1)
    }

    /// Positions of the context, padded so that each row of cores has the same
    /// number of blocks.
    fn positions(&self) -> Result<u32> {
        padded(self.graph.key.context as usize, BLOCK_POSITIONS as u32 * self.target.array.compute_rows)
    }

    fn kernel(&self, index: usize, tensors: &[u32]) -> Result<Kernel> {
        let node = &self.graph.nodes[index];
        let padded = |operand: usize| self.groups.tensors[tensors[operand] as usize].padded;
        let [rows, columns] = padded(0);
        let inner = &self.graph.value(node.inputs[0]).shape.extents()[1..];
        let all = rows.checked_mul(columns);
        let all = all.ok_or_else(|| Error::new(format!("{rows}x{columns} values exceed 32 bits")));
        Ok(match node.op {
            Op::Linear if rows == 1 || self.site(index) == NodeSite::EachOutputRow => {
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
                    Span::Full | Span::All => 0,
                    Span::Window(length) => length,
                };
                let keys = self.positions()?;
                Kernel::Attend { rows, heads: columns / size, kv_heads, size, keys, window, scale }
            }
            op => return Err(Error::new(format!("{} has no kernel on the array", op.name()))),
        })
    }

    /// Returns the value that a value is a view of.
    fn root(&self, value: ValueId) -> ValueId {
        root(self.graph, value)
    }

    /// Returns the tensor of a value, added if it is new.
    fn tensor(&mut self, value: ValueId) -> Result<u32> {
        let root = self.root(value);
        if let Some(known) = self.tensor_of[root.0 as usize] {
            return Ok(known);
        }
        let value = self.graph.value(root);
        let (kind, extent, padded) = if value.role == Role::Weight {
            let padded = match *value.shape.extents() {
                [n] => {
                    // The norm weight of heads is as wide as a head; other norm weights are as wide as
                    // the rows that they scale.
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
        let number = self.add(ArrayTensor { name, kind, extent, padded })?;
        self.tensor_of[root.0 as usize] = Some(number);
        Ok(number)
    }

    /// Returns the tensor of cosines and sines of a weight of frequencies, added if
    /// it is new.
    fn cos_sin(&mut self, frequencies: ValueId) -> Result<u32> {
        if let Some(known) = self.tensor_of[frequencies.0 as usize] {
            return Ok(known);
        }
        let value = self.graph.value(frequencies);
        let (rows, size) = (self.graph.key.rows, 2 * size(value.shape.columns())?);
        let all = if rows == 1 { 1 } else { padded(rows as usize, row_granule(self.target))? };
        let (kind, extent, padded) = (TensorKind::CosSin, [rows, size], [all, size]);
        let number = self.add(ArrayTensor { name: value.name.clone(), kind, extent, padded })?;
        self.tensor_of[frequencies.0 as usize] = Some(number);
        Ok(number)
    }

    fn wide(&self, columns: usize) -> Result<u32> {
        padded(columns, column_granule(self.target))
    }
}

/// Returns the value that a value is a view of: the input of its reshapes.
pub fn root(graph: &Graph, value: ValueId) -> ValueId {
    let mut root = value;
    // Inputs come before their users, so one pass backwards over the nodes is enough.
    for node in graph.nodes.iter().rev() {
        if node.op == Op::Reshape && node.output == root {
            root = node.inputs[0];
        }
    }
    root
}

fn size(extent: usize) -> Result<u32> {
    u32::try_from(extent).map_err(|_| Error::new(format!("an extent of {extent} exceeds 32 bits")))
}

fn padded(extent: usize, granule: u32) -> Result<u32> {
    let whole = size(extent)?.div_ceil(granule).checked_mul(granule);
    whole.ok_or_else(|| Error::new(format!("an extent of {extent} exceeds 32 bits")))
}

/// Returns a name for a program, from its kernels.
fn name_of(launches: &[KernelLaunch]) -> String {
    let has = |name: &str| launches.iter().any(|launch| launch.kernel.name() == name);
    let starts = |name: &str| launches.first().is_some_and(|launch| launch.kernel.name() == name);
    match launches {
        [launch] if launch.kernel.name() == "attend" => "flash_attn".to_owned(),
        [launch] => {
            let sizes = launch.kernel.to_string().replace([' ', '='], "_");
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
