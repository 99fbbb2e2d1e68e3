//! Pass 1, from graph to groups: which nodes run on the array and which on the
//! host, and which of them share a program, as the policy determines.

use girih_graph::split::name_in_layer;
use girih_graph::{BLOCK_POSITIONS, Extent, Graph, Key, Op, Span, ValueId};
use girih_tensor::{DType, Error, Result};

use super::append::AppendedStates;
use super::mapping::{ArrayMapping, ArrayWeights};
use super::padding::{ColumnPadding, padded, row_granule, size};
use super::policy::Grouping;
use super::site::{Answer, ArrayNode, ArrayOp, ArrayOperand, answers, window};
use super::tile::block_granule;
use crate::form::groups::{
    ArrayProgram, ArrayTensor, AttendSizes, ChunkHalf, Groups, Kernel, KernelLaunch, ProgramRuns,
    START_BYTES, StepAction, TensorKind, appended_bytes, attended_blocks, chunk_bytes, latest_start,
};
use crate::form::schedule::{Argument, ArgumentRole};
use crate::form::weights::WeightLayout;
use crate::target::Target;

/// The maximum number of results of one launch of the head. A larger head is split
/// into launches of one program: eight for Llama's vocabulary, ten for Qwen's.
const MAX_LAUNCH_VALUES: u32 = 16384;

/// The maximum number of rows for each column of cores with which the cores of a product unpack Q4NX
/// weights themselves. They unpack every tile once for 32 rows; with more rows, one launch that
/// unpacks them for all is faster.
const UNPACKED_ROWS: u32 = 32;

/// The maximum number of values of a tensor, with padding: four gigabytes, because
/// sizes and strides of tiles, in words and bytes, have 32 bits.
const MAX_TENSOR_VALUES: u64 = (1 << 31) - 1;

/// The maximum head size of keys and values in chunks.
const MAX_HEAD_SIZE: u32 = 1 << 16;

/// Partitions `graph`.
///
/// # Errors
/// When a value is too large for the array.
pub fn partition(graph: &Graph, target: &Target, mapping: &ArrayMapping) -> Result<Groups> {
    let policy = mapping.policy;
    let answers = answers(graph, policy);
    let dtype = |weight| array_dtype(graph, &answers, mapping, weight);
    let padding = ColumnPadding::new(graph, &answers, target, dtype)?;
    let mut partitioner = Partitioner {
        graph,
        target,
        mapping,
        answers: &answers,
        appended: AppendedStates::of(graph, &answers, policy.grouping, &padding),
        padding,
        groups: Groups {
            policy: mapping.name.clone(),
            tensors: Vec::new(),
            programs: Vec::new(),
            steps: Vec::new(),
        },
        tensor_of: vec![None; graph.values.len()],
    };
    let mut segment = Vec::new();
    let mut writes = Vec::new();
    for (index, answer) in answers.iter().enumerate() {
        match answer {
            Answer::View(_) => {}
            Answer::Host(..) if partitioner.is_appended(index) => {
                writes.push(StepAction::Host { node: index as u32 });
            }
            Answer::Host(..) | Answer::NoProgram(_) => {
                partitioner.close(&mut segment)?;
                partitioner.groups.steps.append(&mut writes);
                partitioner.groups.steps.push(StepAction::Host { node: index as u32 });
            }
            Answer::Array(node @ ArrayNode { op: ArrayOp::Linear { each_output_row: true, .. }, .. }) => {
                partitioner.close(&mut segment)?;
                partitioner.close(&mut vec![(index, node)])?;
            }
            Answer::Array(node) => {
                let attends = matches!(node.op, ArrayOp::Attend { .. });
                let begins = match policy.grouping {
                    Grouping::Unstitched => true,
                    Grouping::Stitched => attends || enters_attention(graph, index, node.op),
                    Grouping::Joined | Grouping::Resident | Grouping::ByCost => attends,
                };
                if begins {
                    partitioner.close(&mut segment)?;
                }
                segment.push((index, node));
                if attends {
                    partitioner.close(&mut segment)?;
                }
            }
        }
    }
    partitioner.close(&mut segment)?;
    partitioner.groups.steps.append(&mut writes);
    Ok(partitioner.groups)
}

/// Whether a node is the norm before attention: its result reaches a write of
/// state or an attention without passing a sum.
fn enters_attention(graph: &Graph, index: usize, op: ArrayOp) -> bool {
    // A norm of heads is within attention.
    let ArrayOp::Norm { by_head: false, .. } = op else { return false };
    let mut reached = vec![false; graph.values.len()];
    reached[graph.nodes[index].output.0 as usize] = true;
    for node in &graph.nodes[index + 1..] {
        if !node.inputs.iter().any(|input| reached[input.0 as usize]) {
            continue;
        }
        match node.op {
            Op::Write | Op::Attend { .. } | Op::AttendLatent { .. } | Op::SelectKeys { .. } => return true,
            Op::Add => {}
            _ => reached[node.output.0 as usize] = true,
        }
    }
    false
}

/// The state of the pass.
struct Partitioner<'a> {
    graph: &'a Graph,
    target: &'a Target,
    mapping: &'a ArrayMapping,
    answers: &'a [Answer],
    appended: AppendedStates,
    padding: ColumnPadding,
    groups: Groups,
    tensor_of: Vec<Option<u32>>,
}

/// The rows of its tensors that a run of a program uses.
#[derive(Clone, Copy)]
enum ArgumentRows {
    /// All.
    All,
    /// One output row.
    One,
    /// As many as its kernels need, from those of a sequence on.
    Sequence,
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
    fn close(&mut self, segment: &mut Vec<(usize, &ArrayNode)>) -> Result<()> {
        let Some(&(last, node)) = segment.last() else { return Ok(()) };
        let on_output_rows = matches!(node.op, ArrayOp::Linear { each_output_row: true, .. });
        let attends = matches!(node.op, ArrayOp::Attend { .. });
        let mut draft = ProgramDraft::default();
        let sees_spans =
            |node: &ArrayNode| matches!(node.op, ArrayOp::Attend { span, .. } if span != Span::Past);
        let sees_spans = segment.iter().any(|(_, node)| sees_spans(node));
        for (index, node) in segment.drain(..) {
            self.launch(node, self.graph.nodes[index].output, &mut draft)?;
        }
        let all = if on_output_rows { ArgumentRows::One } else { ArgumentRows::All };
        let rows = if attends && self.graph.key.sequences > 1 { ArgumentRows::Sequence } else { all };
        let arguments = self.arguments(&draft, &draft.launches, rows, last);
        let with_spans = if sees_spans { self.with_spans(&draft.launches) } else { None };
        let one_row = self.one_row(&draft.launches);
        let program = self.program(arguments.clone(), draft.launches.clone(), on_output_rows);
        let with_spans = with_spans.map(|launches| self.program(arguments, launches, on_output_rows));
        let runs = match rows {
            ArgumentRows::All => ProgramRuns::Once,
            ArgumentRows::One => ProgramRuns::EachOutputRow,
            ArgumentRows::Sequence => {
                let arguments = self.arguments(&draft, &one_row, rows, last);
                ProgramRuns::EachSequence { one_row: self.program(arguments, one_row, false) }
            }
        };
        let tensors = draft.tensors;
        self.groups.steps.push(StepAction::Array { program, tensors, runs, with_spans });
        Ok(())
    }

    /// The arguments of a program of these launches, whose last node is `last`.
    fn arguments(
        &self,
        draft: &ProgramDraft,
        launches: &[KernelLaunch],
        rows: ArgumentRows,
        last: usize,
    ) -> Vec<Argument> {
        let mut inputs = 0;
        let argument = |(index, (&number, &written)): (usize, (&u32, &bool))| {
            let tensor = &self.groups.tensors[number as usize];
            let role = self.role(tensor, written, last);
            let name = match role {
                ArgumentRole::Input => {
                    inputs += 1;
                    format!("in.{}", inputs - 1)
                }
                ArgumentRole::State => "appended".to_owned(),
                _ => name_in_layer(&tensor.name).to_owned(),
            };
            let bytes = match rows {
                ArgumentRows::One if role != ArgumentRole::Static => tensor.row_bytes(),
                ArgumentRows::One | ArgumentRows::All => tensor.bytes(),
                ArgumentRows::Sequence => needed_bytes(launches, index as u32),
            };
            Argument { name, role, bytes }
        };
        draft.tensors.iter().zip(&draft.written).enumerate().map(argument).collect()
    }

    /// The launches for a sequence with a single row in a step of several sequences.
    fn one_row(&self, launches: &[KernelLaunch]) -> Vec<KernelLaunch> {
        let key = Key { rows: 1, ..self.graph.key };
        let of_one = |launch: &KernelLaunch| {
            let Kernel::Attend(sizes) = launch.kernel else { return launch.clone() };
            let AttendSizes { kv_heads, window, .. } = sizes;
            let blocks = attended_blocks(1, key.context, window);
            let keys =
                blocks.next_multiple_of(block_granule(1, kv_heads, self.target)) * BLOCK_POSITIONS as u32;
            let latest = latest_start(key, window);
            let kernel = Kernel::Attend(AttendSizes { rows: 1, keys, latest, causal: true, ..sizes });
            KernelLaunch { kernel, tiling: self.mapping.tiling(&kernel), ..launch.clone() }
        };
        launches.iter().map(of_one).collect()
    }

    /// The launches for steps whose rows have mutual spans, if these are others. They sweep over all keys.
    fn with_spans(&self, launches: &[KernelLaunch]) -> Option<Vec<KernelLaunch>> {
        let Key { rows, sequences, .. } = self.graph.key;
        if rows == 1 || (sequences == 1 && !may_have_spans(self.graph)) {
            return None;
        }
        let is_causal =
            |launch: &KernelLaunch| matches!(launch.kernel, Kernel::Attend(sizes) if sizes.causal);
        launches.iter().any(is_causal).then(|| launches.iter().map(|launch| self.all_keys(launch)).collect())
    }

    /// A launch, of attention to all keys of mutual spans if it is one of attention.
    fn all_keys(&self, launch: &KernelLaunch) -> KernelLaunch {
        let Kernel::Attend(sizes) = launch.kernel else { return launch.clone() };
        let kernel = Kernel::Attend(AttendSizes { causal: false, ..sizes });
        KernelLaunch { kernel, tiling: self.mapping.tiling(&kernel), ..launch.clone() }
    }

    /// Returns the role of a tensor in the program of a segment whose last node is `last`.
    fn role(&self, tensor: &ArrayTensor, written: bool, last: usize) -> ArgumentRole {
        if tensor.kind == TensorKind::Static {
            return ArgumentRole::Static;
        }
        if !written {
            return ArgumentRole::Input;
        }
        if tensor.kind == TensorKind::Appended {
            return ArgumentRole::State;
        }
        let views = |value: &ValueId| self.graph.value(self.padding.root(*value)).name == tensor.name;
        // The host writes these rows to the state after all programs.
        let is_row = self.graph.find(&tensor.name).is_some_and(|value| self.appended.is_row(value));
        let read_later = self.graph.nodes[last + 1..].iter().any(|node| node.inputs.iter().any(views));
        let leaves = self.graph.output().is_some_and(|output| views(&output));
        if read_later || is_row || leaves { ArgumentRole::Output } else { ArgumentRole::Intermediate }
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

    /// Adds the launches that compute a node and write its result to `output`.
    fn launch(&mut self, node: &ArrayNode, output: ValueId, draft: &mut ProgramDraft) -> Result<()> {
        let operands = node.operands.iter().map(|&operand| self.operand(operand));
        let mut tensors = operands.collect::<Result<Vec<u32>>>()?;
        tensors.push(self.operand(ArrayOperand::Rows(output))?);
        let kernel = self.kernel(node.op, &tensors)?;
        if let [_, ArrayOperand::Chunks { keys, values, .. }, ..] = node.operands[..] {
            self.append([keys, values], tensors[1], draft)?;
        }
        if let Kernel::Gemm { n, k, weights: WeightLayout::Groups, .. } = kernel {
            tensors[1] = self.unpack(tensors[1], [n, k], draft)?;
        }
        let arguments: Vec<u32> = tensors.iter().map(|&tensor| draft.argument(tensor)).collect();
        draft.written[arguments[arguments.len() - 1] as usize] = true;
        let name = name_in_layer(&self.graph.value(output).name).to_owned();
        let parts = self.parts(node.op, kernel);
        for (part, kernel) in parts.iter().enumerate() {
            let name = if parts.len() > 1 { format!("{name}.{part}") } else { name.clone() };
            let tiling = self.mapping.tiling(kernel);
            draft.launches.push(KernelLaunch {
                name,
                kernel: *kernel,
                arguments: arguments.clone(),
                tiling,
                resident: self.resident(),
            });
        }
        if let ArrayOp::Linear { bias: Some(bias), each_output_row } = node.op {
            let (sum, bias) = (tensors[tensors.len() - 1], self.operand(bias)?);
            let [rows, n] = self.groups.tensors[sum as usize].padded;
            let rows = if each_output_row { 1 } else { rows };
            let [sum, bias] = [sum, bias].map(|tensor| draft.argument(tensor));
            let (kernel, arguments) = (Kernel::Bias { rows, n }, vec![sum, bias, sum]);
            let (name, tiling) = (format!("{name}.bias"), self.mapping.tiling(&kernel));
            draft.launches.push(KernelLaunch { name, kernel, arguments, tiling, resident: self.resident() });
        }
        Ok(())
    }

    /// Whether a node writes a state that a program appends to.
    fn is_appended(&self, index: usize) -> bool {
        let node = &self.graph.nodes[index];
        node.op == Op::Write && self.appended.row(node.output).is_some()
    }

    /// Adds the launches that append the keys and the values of the step to their chunks, if a program
    /// does so.
    fn append(&mut self, states: [ValueId; 2], chunks: u32, draft: &mut ProgramDraft) -> Result<()> {
        let [Some(keys), Some(values)] = states.map(|state| self.appended.row(state)) else { return Ok(()) };
        let shape = self.graph.value(states[0]).shape;
        let ArrayTensor { name, extent, .. } = self.groups.tensors[chunks as usize].clone();
        let [heads, size] = [shape.stride() / shape.columns().max(1), shape.columns()].map(size);
        let (heads, size) = (heads?, size?);
        let columns = size_of_bytes(appended_bytes(extent[0], size))?;
        let (kind, dtype) = (TensorKind::Appended, DType::BF16);
        let place = self.add(ArrayTensor { name, kind, dtype, extent, padded: [1, columns] })?;
        for (row, half) in [(keys, ChunkHalf::Keys), (values, ChunkHalf::Values)] {
            let row = self.operand(ArrayOperand::Rows(row))?;
            let arguments = [row, place].map(|tensor| draft.argument(tensor)).to_vec();
            draft.written[arguments[1] as usize] = true;
            let kernel = Kernel::Append { heads, size, half };
            let (name, tiling) = (format!("mixer.append_{}", half.name()), self.mapping.tiling(&kernel));
            draft.launches.push(KernelLaunch { name, kernel, arguments, tiling, resident: self.resident() });
        }
        Ok(())
    }

    /// Whether launches stay configured: in steps of a single row.
    fn resident(&self) -> bool {
        self.mapping.policy.grouping == Grouping::Resident && self.graph.key.rows == 1
    }

    /// Adds the launch that unpacks a matrix of weights, and returns the tensor of its result.
    fn unpack(&mut self, packed: u32, sides: [u32; 2], draft: &mut ProgramDraft) -> Result<u32> {
        let name = format!("{}.unpacked", self.groups.tensors[packed as usize].name);
        let (kind, dtype) = (TensorKind::Scratch, DType::BF16);
        let unpacked = self.add(ArrayTensor { name, kind, dtype, extent: sides, padded: sides })?;
        let kernel = Kernel::Dequant { n: sides[0], k: sides[1] };
        let arguments = [packed, unpacked].map(|tensor| draft.argument(tensor));
        draft.written[arguments[1] as usize] = true;
        let name = name_in_layer(&self.groups.tensors[unpacked as usize].name).to_owned();
        let tiling = self.mapping.tiling(&kernel);
        let arguments = arguments.to_vec();
        draft.launches.push(KernelLaunch { name, kernel, arguments, tiling, resident: self.resident() });
        Ok(unpacked)
    }

    /// Splits the kernel of a large head; returns other kernels unchanged.
    fn parts(&self, op: ArrayOp, kernel: Kernel) -> Vec<Kernel> {
        let (ArrayOp::Linear { each_output_row: true, .. }, Kernel::Gemv { n, k, weights, .. }) =
            (op, kernel)
        else {
            return vec![kernel];
        };
        if weights == WeightLayout::Q4nx || n <= MAX_LAUNCH_VALUES {
            return vec![kernel];
        }
        // Equal parts have one tiling; without them, the last part is smaller.
        let least = n.div_ceil(MAX_LAUNCH_VALUES);
        let divides = |count: &u32| n.is_multiple_of(count * 2 * self.target.array.columns);
        let part = (least..=2 * least).find(divides).map_or(MAX_LAUNCH_VALUES, |count| n / count);
        let firsts = (0..n).step_by(part as usize);
        firsts.map(|first| Kernel::Gemv { first, n: part.min(n - first), k, weights }).collect()
    }

    /// Returns the tensor of an operand, added if it is new.
    fn operand(&mut self, operand: ArrayOperand) -> Result<u32> {
        let graph = self.graph;
        let whole = |rows| padded(rows, if rows == 1 { 1 } else { row_granule(self.target) });
        match operand {
            ArrayOperand::Rows(value) => {
                let root = self.padding.root(value);
                let value = graph.value(root);
                let (rows, columns) = (value.shape.extents()[0], value.shape.stride());
                let all = if value.outermost == Extent::OutputRows { size(rows) } else { whole(rows) };
                let padded = [all?, self.padding.wide(root, columns)?];
                self.tensor(root, TensorKind::Scratch, [rows, columns], padded)
            }
            ArrayOperand::Weight(weight, as_wide_as) => {
                let shape = graph.value(weight).shape;
                let extent = [shape.rows(), shape.columns()];
                let wide = |side: usize| match as_wide_as[side] {
                    Some(value) => self.padding.wide(value, extent[side]),
                    None => size(extent[side]),
                };
                let padded = [wide(0)?, wide(1)?];
                self.tensor(weight, TensorKind::Static, extent, padded)
            }
            ArrayOperand::CosSin(frequencies) => {
                let rows = graph.key.rows as usize;
                let columns = 2 * graph.value(frequencies).shape.columns();
                let padded = [whole(rows)?, size(columns)?];
                self.tensor(frequencies, TensorKind::CosSin, [rows, columns], padded)
            }
            ArrayOperand::Chunks { queries, keys, values, span } => {
                let queries = self.operand(ArrayOperand::Rows(queries))?;
                self.chunks(queries, [keys, values], span)
            }
            ArrayOperand::Start { window } => self.start(window),
        }
    }

    /// Returns the tensor of a value, added if it is new.
    fn tensor(
        &mut self,
        value: ValueId,
        kind: TensorKind,
        extent: [usize; 2],
        padded: [u32; 2],
    ) -> Result<u32> {
        if let Some(known) = self.tensor_of[value.0 as usize] {
            return Ok(known);
        }
        let extent = [size(extent[0])?, size(extent[1])?];
        let name = self.graph.value(value).name.clone();
        let dtype = array_dtype(self.graph, self.answers, self.mapping, value);
        let number = self.add(ArrayTensor { name, kind, dtype, extent, padded })?;
        self.tensor_of[value.0 as usize] = Some(number);
        Ok(number)
    }

    /// Adds the tensor of chunks of the keys and values that a step attends to. The padding
    /// of the queries `q` is heads that attend to zeros.
    fn chunks(&mut self, q: u32, sides: [ValueId; 2], span: Span) -> Result<u32> {
        let [keys, values] = sides.map(|side| self.graph.value(side));
        let name = format!("{}|{}", keys.name, values.name);
        let size = size(keys.shape.columns())?;
        if size > MAX_HEAD_SIZE {
            return Err(Error::new(format!(
                "'{name}' has heads of {size} values; the maximum is {MAX_HEAD_SIZE}"
            )));
        }
        let ArrayTensor { extent: [_, columns], padded: [_, padded], .. } = self.groups.tensors[q as usize];
        let group = columns / self::size(keys.shape.stride())?;
        let heads = padded / group / size;
        let all = self.blocks(span, heads)?;
        let rows = heads.checked_mul(all);
        let rows = rows.ok_or_else(|| Error::new(format!("{heads} heads of {all} blocks exceed 32 bits")))?;
        let kind = if span == Span::All { TensorKind::RowChunks } else { TensorKind::Chunks };
        let padded = [rows, chunk_bytes(size) / 2];
        self.add(ArrayTensor { name, kind, dtype: DType::BF16, extent: [heads, size], padded })
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

    /// Adds the tensor of the positions of the first row and the first key, unless there is
    /// one for this window.
    fn start(&mut self, window: u32) -> Result<u32> {
        let same = |tensor: &ArrayTensor| tensor.kind == TensorKind::Start && tensor.extent[1] == window;
        if let Some(known) = self.groups.tensors.iter().position(same) {
            return Ok(known as u32);
        }
        let name = if window == 0 { "start".to_owned() } else { format!("start.{window}") };
        let padded = [self.graph.key.sequences, START_BYTES / 2];
        let (kind, extent) = (TensorKind::Start, [1, window]);
        self.add(ArrayTensor { name, kind, dtype: DType::BF16, extent, padded })
    }

    /// Blocks of positions that a step attends to, padded so that the cores that share
    /// queries have the same number, also those of a program for a single row of a sequence.
    fn blocks(&self, span: Span, kv_heads: u32) -> Result<u32> {
        let Key { rows, sequences, context, .. } = self.graph.key;
        let granule = block_granule(if sequences == 1 { rows } else { 1 }, kv_heads, self.target);
        let positions = if span == Span::All { rows } else { context };
        padded(attended_blocks(rows, positions, window(span)) as usize, granule)
    }

    /// The kernel of an op with these tensors, the result last.
    fn kernel(&self, op: ArrayOp, tensors: &[u32]) -> Result<Kernel> {
        let padded = |operand: usize| self.groups.tensors[tensors[operand] as usize].padded;
        let [rows, columns] = padded(0);
        let all = rows.checked_mul(columns);
        let all = all.ok_or_else(|| Error::new(format!("{rows}x{columns} values exceed 32 bits")));
        Ok(match op {
            ArrayOp::Linear { bias: _, each_output_row } => {
                let weights = WeightLayout::of(self.groups.tensors[tensors[1] as usize].dtype);
                let (n, k) = (padded(1)[0], columns);
                if rows == 1 || each_output_row {
                    Kernel::Gemv { first: 0, n, k, weights }
                } else {
                    let unpacked =
                        weights == WeightLayout::Q4nx && rows > UNPACKED_ROWS * self.target.array.columns;
                    let weights = if unpacked { WeightLayout::Groups } else { weights };
                    Kernel::Gemm { m: rows, n, k, weights }
                }
            }
            ArrayOp::Norm { epsilon, size: width, by_head: false } => {
                Kernel::RmsNorm { rows, n: columns, width: size(width)?, epsilon }
            }
            ArrayOp::Norm { epsilon, size: head, by_head: true } => {
                let n = size(head)?;
                Kernel::RmsNorm { rows: all? / n, n, width: n, epsilon }
            }
            ArrayOp::LayerNorm { epsilon, size: width } => {
                Kernel::LayerNorm { rows, n: columns, width: size(width)?, epsilon }
            }
            ArrayOp::Gelu => Kernel::Gelu { n: all? },
            ArrayOp::Rope { pairing, size: head } => {
                let size = size(head)?;
                Kernel::Rope { rows, heads: columns / size, size, pairing }
            }
            ArrayOp::Gate { act } => Kernel::Gate { n: all?, act },
            ArrayOp::Add => Kernel::Add { n: all? },
            ArrayOp::Attend { scale, span } => {
                let ArrayTensor { extent: [kv_heads, size], padded: [blocks, _], .. } =
                    self.groups.tensors[tensors[1] as usize];
                let keys = blocks / kv_heads * BLOCK_POSITIONS as u32;
                let window = window(span);
                let latest = if span == Span::All { 0 } else { latest_start(self.graph.key, window) };
                let (heads, causal) = (columns / size, span != Span::All || rows == 1);
                Kernel::Attend(AttendSizes {
                    rows,
                    heads,
                    kv_heads,
                    size,
                    keys,
                    latest,
                    causal,
                    window,
                    scale,
                })
            }
        })
    }
}

/// The format in which the array holds a value: Q4NX for matrices that only matrix products
/// read there, as the mapping chooses, otherwise bf16.
fn array_dtype(graph: &Graph, answers: &[Answer], mapping: &ArrayMapping, value: ValueId) -> DType {
    let is_matrix = |operand: &ArrayOperand| matches!(*operand, ArrayOperand::Weight(weight, [Some(_), Some(_)]) if weight == value);
    let packs = match mapping.weights {
        ArrayWeights::Stored => graph.value(value).dtype == DType::Q4NX,
        ArrayWeights::Q4nx => true,
        ArrayWeights::Bf16 => false,
    };
    let mut programs = answers.iter().filter_map(Answer::program);
    if packs && programs.any(|node| node.operands.iter().any(is_matrix)) { DType::Q4NX } else { DType::BF16 }
}

/// Whether the rows of a step may have mutual spans: some rows must be no tokens.
pub(crate) fn may_have_spans(graph: &Graph) -> bool {
    let has_given = graph.nodes.iter().any(|node| node.op == Op::Splice);
    has_given || graph.inputs().all(|(_, input)| input.dtype != DType::I32)
}

/// The bytes that launches need of an argument.
fn needed_bytes(launches: &[KernelLaunch], argument: u32) -> u64 {
    let operands =
        launches.iter().flat_map(|launch| launch.arguments.iter().zip(launch.kernel.operand_bytes()));
    operands.filter(|(number, _)| **number == argument).map(|(_, bytes)| bytes).max().unwrap_or(0)
}

/// The number of values of 2 bytes.
fn size_of_bytes(bytes: u64) -> Result<u32> {
    u32::try_from(bytes / 2)
        .map_err(|_| Error::new(format!("{bytes} bytes of keys and values exceed 32 bits")))
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

/// Returns a name for a program, from its kernels.
fn name_of(launches: &[KernelLaunch]) -> String {
    let has = |name: &str| launches.iter().any(|launch| launch.kernel.name() == name);
    let mut computing = launches.iter().filter(|launch| launch.kernel.name() != "dequant");
    let first = computing.next().map(|launch| launch.kernel.name());
    let starts = |name: &str| first == Some(name);
    match launches {
        _ if has("attend") => "flash_attn".to_owned(),
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
