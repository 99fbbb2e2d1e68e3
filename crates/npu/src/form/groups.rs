//! Groups: which operations form one program of the array, which run on the
//! host, and which tensors pass between them. Programs that differ only in
//! their tensors are one program, bound several times.

use std::fmt;
use std::str::FromStr;

use girih_graph::{Act, BLOCK_POSITIONS, Key, Pairing};
use girih_tensor::{DType, Error, Result};

use super::read::{FormLine, FormLines};
use super::schedule::text::{arguments, parameters, print_arguments};
use super::schedule::{Affine, Argument, ArgumentRole, Parameter, ParameterValue};
use super::tiling::Tiling;
use super::weights::WeightLayout;
use super::{FormFault, PassForm};
use crate::target::Target;

/// A graph, partitioned into programs of the array and nodes of the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// The name of the mapping that partitioned the graph.
    pub policy: String,
    /// The tensors of the array in DRAM; an index here is a tensor's number.
    pub tensors: Vec<ArrayTensor>,
    /// The distinct programs.
    pub programs: Vec<ArrayProgram>,
    /// The actions of one step of the model, in order.
    pub steps: Vec<StepAction>,
}

/// A matrix in DRAM, padded so that tiles divide it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayTensor {
    /// The graph value that the tensor holds or is computed from.
    pub name: String,
    /// What it holds.
    pub kind: TensorKind,
    /// The format of its values: bf16, or Q4NX for weights whose file has it or for which it was
    /// asked.
    pub dtype: DType,
    /// Rows and columns without padding.
    pub extent: [u32; 2],
    /// Rows and columns with padding; the padding of weights is zero.
    pub padded: [u32; 2],
}

/// What a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorKind {
    /// A weight: written when the model is loaded.
    Static,
    /// The cosines and sines of the rows' positions, which the host computes in
    /// each step from a weight of frequencies.
    CosSin,
    /// A value that lives within a step.
    Scratch,
    /// Keys and values of one sequence, in the layout of [`chunk_bytes`]. The
    /// host writes all of them, or those that changed, before a program reads
    /// them. Its `extent` is the number of KV heads, with padding, and the head size.
    Chunks,
    /// Two numbers of 32 bits, which the host computes in each step: the position
    /// of the step's first row, and that of the first key in the chunks. Its
    /// `extent` is one row and the window of the attention; 0 for none.
    Start,
}

/// Bytes of a tensor of [`TensorKind::Start`]: two words, and padding to the
/// alignment of buffers.
pub const START_BYTES: u32 = 64;

/// The first block of positions in the chunks of a step whose first row is at
/// `position`: blocks before it are outside the window of every row. A window of 0
/// is none.
pub fn first_block(position: u32, window: u32) -> u32 {
    if window == 0 {
        0
    } else {
        (u64::from(position) + 1).saturating_sub(window.into()) as u32 / BLOCK_POSITIONS as u32
    }
}

/// The largest position of a step's first row, counted from the first key of its
/// [first block](first_block). The rows of a step and its padding end within the context.
pub fn latest_start(key: Key, window: u32) -> u32 {
    let last = key.context.saturating_sub(key.rows);
    if window == 0 { last } else { last.min(window.saturating_add(BLOCK_POSITIONS as u32 - 2)) }
}

/// The number of blocks of positions that a step of `rows` rows of a sequence of at
/// most `context` positions may attend to. A window of 0 is none.
pub fn attended_blocks(rows: u32, context: u32, window: u32) -> u32 {
    let all = context.div_ceil(BLOCK_POSITIONS as u32);
    // The first key may be the last of its block.
    let near =
        (u64::from(window) + u64::from(rows) + BLOCK_POSITIONS as u64 - 2).div_ceil(BLOCK_POSITIONS as u64);
    if window == 0 { all } else { all.min(u32::try_from(near).unwrap_or(u32::MAX)) }
}

/// Bytes of the keys and values of one head over a block of positions, which is
/// one row of a tensor of [`TensorKind::Chunks`]. The blocks lie in order, all
/// heads of a block together, so a shorter context is a prefix of a longer one.
///
/// ```text
/// row = keys [64, size] | values [64, size]
/// ```
pub fn chunk_bytes(size: u32) -> u32 {
    2 * BLOCK_POSITIONS as u32 * size * 2
}

/// One program of the array, before tiling.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayProgram {
    /// The name, unique within the groups.
    pub name: String,
    /// The buffers that the host binds.
    pub arguments: Vec<Argument>,
    /// The launches, in order.
    pub launches: Vec<KernelLaunch>,
}

/// A launch before tiling: a kernel and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelLaunch {
    /// The name within the program.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// The numbers of its arguments, in the kernel's order.
    pub arguments: Vec<u32>,
    /// The tiling, if the mapping has one.
    pub tiling: Option<Tiling>,
    /// Whether its configuration stays on the array, beside those of other launches.
    pub resident: bool,
}

/// What a launch computes; sizes include padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// `(x [m, k], w [n, k], y [m, n])`: `y = x · wᵀ`.
    Gemm {
        /// Rows.
        m: u32,
        /// Columns of the result.
        n: u32,
        /// Terms of each sum.
        k: u32,
        /// The layout of `w`.
        weights: WeightLayout,
    },
    /// `(w [n, k], y [n, k])`: unpacks Q4NX weights `w` to bf16 groups `y`, for matrix products of
    /// several rows.
    Dequant {
        /// Rows.
        n: u32,
        /// Columns.
        k: u32,
    },
    /// `(x [k], w [.., k], y [..])`: `n` values of `y = w · x`, beginning at `first`.
    Gemv {
        /// The first computed value of the result.
        first: u32,
        /// The number of computed values.
        n: u32,
        /// Terms of each sum.
        k: u32,
        /// The layout of `w`.
        weights: WeightLayout,
    },
    /// `(x [rows, n], w [n], y [rows, n])`: normalizes the first `width`
    /// values of each row; the others are padding.
    RmsNorm {
        /// Rows.
        rows: u32,
        /// Values of a row.
        n: u32,
        /// Values of a row without padding.
        width: u32,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `(x [rows, heads, size], cos_sin [rows, size], y)`: rotates pairs of
    /// components (RoPE).
    Rope {
        /// Rows.
        rows: u32,
        /// Heads of a row.
        heads: u32,
        /// Values of a head.
        size: u32,
        /// Which components form a pair.
        pairing: Pairing,
    },
    /// `(gate [n], up [n], y [n])`: `act(gate) · up`.
    Gate {
        /// Values.
        n: u32,
        /// The activation.
        act: Act,
    },
    /// `(a [n], b [n], y [n])`: `a + b`.
    Add {
        /// Values.
        n: u32,
    },
    /// `(x [rows, n], b [n], y [rows, n])`: adds `b` to each row.
    Bias {
        /// Rows.
        rows: u32,
        /// Values of a row.
        n: u32,
    },
    /// `(q [rows, heads, size], chunks, start, y [rows, heads, size])`: attention
    /// over keys and values in the layout of [`chunk_bytes`], at the positions of a
    /// tensor of [`TensorKind::Start`].
    Attend {
        /// Rows.
        rows: u32,
        /// Query heads.
        heads: u32,
        /// KV heads.
        kv_heads: u32,
        /// Values of a head.
        size: u32,
        /// Positions, a multiple of [`BLOCK_POSITIONS`].
        keys: u32,
        /// The largest position of the first row, counted from the first key, for which
        /// the launch is valid.
        latest: u32,
        /// Whether a row attends to the keys up to its own position only. Otherwise it
        /// attends to all keys.
        causal: bool,
        /// The number of preceding positions that a row attends to; 0 for all.
        window: u32,
        /// The factor of every score.
        scale: f32,
    },
}

/// One action of a step: a host node, or a run of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// The host computes a node of the graph.
    Host {
        /// The index of the node.
        node: u32,
    },
    /// The array runs a program.
    Array {
        /// The index of the program.
        program: u32,
        /// The tensor of each argument.
        tensors: Vec<u32>,
        /// Whether the program runs once for each output row, on that row of its
        /// inputs and outputs.
        each_output_row: bool,
    },
}

impl ArrayTensor {
    /// The size in bytes, with padding.
    pub fn bytes(&self) -> u64 {
        WeightLayout::of(self.dtype).bytes(self.padded[0], self.padded[1])
    }

    /// Bytes from one row to the next of a bf16 tensor.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.padded[1]) * 2
    }
}

impl Kernel {
    /// The name in printed groups.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Gemm { .. } => "gemm",
            Kernel::Gemv { .. } => "gemv",
            Kernel::Dequant { .. } => "dequant",
            Kernel::RmsNorm { .. } => "rms_norm",
            Kernel::Rope { .. } => "rope",
            Kernel::Gate { .. } => "gate",
            Kernel::Add { .. } => "add",
            Kernel::Bias { .. } => "bias",
            Kernel::Attend { .. } => "attend",
        }
    }

    /// Bytes of each operand, in order.
    pub fn operand_bytes(&self) -> Vec<u64> {
        let of = |rows: u32, columns: u32| u64::from(rows) * u64::from(columns) * 2;
        match *self {
            Kernel::Gemm { m, n, k, weights } => vec![of(m, k), weights.bytes(n, k), of(m, n)],
            Kernel::Gemv { first, n, k, weights } => {
                let all = first.saturating_add(n);
                vec![of(1, k), weights.bytes(all, k), of(1, all)]
            }
            Kernel::Dequant { n, k } => {
                vec![WeightLayout::Q4nx.bytes(n, k), WeightLayout::Groups.bytes(n, k)]
            }
            Kernel::RmsNorm { rows, n, .. } => vec![of(rows, n), of(1, n), of(rows, n)],
            Kernel::Rope { rows, heads, size, .. } => {
                let x = of(rows, size) * u64::from(heads);
                vec![x, of(rows, size), x]
            }
            Kernel::Gate { n, .. } | Kernel::Add { n } => vec![of(1, n); 3],
            Kernel::Bias { rows, n } => vec![of(rows, n), of(1, n), of(rows, n)],
            Kernel::Attend { rows, heads, kv_heads, size, keys, .. } => {
                let x = of(rows, size) * u64::from(heads);
                let chunks = u64::from(kv_heads) * u64::from(keys) / BLOCK_POSITIONS as u64;
                vec![x, chunks * u64::from(chunk_bytes(size)), START_BYTES.into(), x]
            }
        }
    }

    /// Which operand is a matrix of weights, and its layout.
    pub fn weights(&self) -> Option<(usize, WeightLayout)> {
        match *self {
            Kernel::Gemm { weights, .. } | Kernel::Gemv { weights, .. } => Some((1, weights)),
            Kernel::Dequant { .. } => Some((0, WeightLayout::Q4nx)),
            _ => None,
        }
    }

    /// Whether the sides of its weights are whole tiles of their layout.
    fn has_whole_tiles(&self) -> bool {
        match *self {
            Kernel::Gemm { n, k, weights, .. } => weights.divides(n, k),
            Kernel::Gemv { first, n, k, weights } => weights.divides(n, k) && weights.divides(first, k),
            Kernel::Dequant { n, k } => WeightLayout::Q4nx.divides(n, k),
            _ => true,
        }
    }

    /// Floating-point operations, for rooflines.
    pub fn flops(&self) -> u64 {
        match *self {
            Kernel::Gemm { m, n, k, .. } => 2 * u64::from(m) * u64::from(n) * u64::from(k),
            Kernel::Dequant { n, k } => 2 * u64::from(n) * u64::from(k),
            Kernel::Gemv { n, k, .. } => 2 * u64::from(n) * u64::from(k),
            Kernel::RmsNorm { rows, n, .. } => 4 * u64::from(rows) * u64::from(n),
            Kernel::Rope { rows, heads, size, .. } => {
                3 * u64::from(rows) * u64::from(heads) * u64::from(size)
            }
            Kernel::Gate { n, .. } => 4 * u64::from(n),
            Kernel::Add { n } => u64::from(n),
            Kernel::Bias { rows, n } => u64::from(rows) * u64::from(n),
            Kernel::Attend { rows, heads, size, keys, .. } => {
                4 * u64::from(rows) * u64::from(heads) * u64::from(size) * u64::from(keys)
            }
        }
    }
}

impl Groups {
    /// The number of program runs in a step with `output_rows` output rows.
    pub fn submissions(&self, output_rows: u32) -> u32 {
        let runs = self.steps.iter().map(|step| match step {
            StepAction::Host { .. } => 0,
            StepAction::Array { each_output_row: true, .. } => output_rows,
            StepAction::Array { each_output_row: false, .. } => 1,
        });
        runs.sum()
    }
}

impl PassForm for Groups {
    const NAME: &'static str = "groups";

    /// The rules: only weights are Q4NX, in whole tiles; a program has launches;
    /// their arguments belong to the program and are as large as the kernel needs;
    /// each argument is bound to a tensor of its size and role.
    fn faults(&self, _: &Target) -> Vec<FormFault> {
        let mut faults: Vec<FormFault> = self.tensors.iter().filter_map(tensor_fault).collect();
        for program in &self.programs {
            if program.launches.is_empty() {
                faults.push(FormFault::new(&program.name, "has no launches"));
            }
            faults.extend(program.launches.iter().flat_map(|launch| launch_faults(program, launch)));
        }
        for (number, step) in self.steps.iter().enumerate() {
            if let StepAction::Array { program, tensors, .. } = step {
                faults.extend(self.binding_fault(number, *program, tensors));
            }
        }
        faults
    }
}

fn tensor_fault(tensor: &ArrayTensor) -> Option<FormFault> {
    let ArrayTensor { name, kind, dtype, padded: [rows, columns], .. } = tensor;
    let sentence = match dtype {
        DType::BF16 => return None,
        DType::Q4NX if *kind != TensorKind::Static => format!("is {dtype}, but no weight"),
        DType::Q4NX if WeightLayout::Q4nx.divides(*rows, *columns) => return None,
        DType::Q4NX => format!("has {rows}x{columns} values in {dtype}: whole tiles are needed"),
        _ => format!("is {dtype}: the array reads bf16 and q4nx"),
    };
    Some(FormFault::new(name, sentence))
}

fn launch_faults(program: &ArrayProgram, launch: &KernelLaunch) -> Vec<FormFault> {
    let part = format!("{}: {}", program.name, launch.name);
    let needs = launch.kernel.operand_bytes();
    if needs.len() != launch.arguments.len() {
        return vec![FormFault::new(
            part,
            format!("has {} operands; {} are needed", launch.arguments.len(), needs.len()),
        )];
    }
    if !launch.kernel.has_whole_tiles() {
        return vec![FormFault::new(part, format!("is {}: its weights are no whole tiles", launch.kernel))];
    }
    let operands = launch.arguments.iter().zip(needs);
    let short = operands.filter_map(|(&number, need)| match program.arguments.get(number as usize) {
        Some(argument) if argument.bytes >= need => None,
        Some(argument) => {
            Some(format!("needs {need} bytes of {}, which has {}", argument.name, argument.bytes))
        }
        None => Some(format!("uses argument {number}, which the program does not have")),
    });
    short.map(|sentence| FormFault::new(&part, sentence)).collect()
}

impl Groups {
    fn binding_fault(&self, step: usize, program: u32, tensors: &[u32]) -> Option<FormFault> {
        let fault = |sentence: String| Some(FormFault::new(format!("step {step}"), sentence));
        let Some(program) = self.programs.get(program as usize) else {
            return fault(format!("runs program {program}, which does not exist"));
        };
        if program.arguments.len() != tensors.len() {
            return fault(format!(
                "binds {} tensors to {} arguments",
                tensors.len(),
                program.arguments.len()
            ));
        }
        for (argument, &number) in program.arguments.iter().zip(tensors) {
            let Some(tensor) = self.tensors.get(number as usize) else {
                return fault(format!("binds tensor {number}, which does not exist"));
            };
            let fixed = argument.role == ArgumentRole::Static;
            if fixed != (tensor.kind == TensorKind::Static) || tensor.bytes() < argument.bytes {
                let (name, role) = (&argument.name, argument.role.name());
                return fault(format!(
                    "binds {} to {name}, which is {role} with {} bytes",
                    tensor.name, argument.bytes
                ));
            }
        }
        let read = program.launches.iter().filter_map(|launch| {
            let (operand, layout) = launch.kernel.weights()?;
            let tensor = self.tensors.get(*tensors.get(*launch.arguments.get(operand)? as usize)? as usize)?;
            Some((launch, layout, tensor))
        });
        for (launch, layout, tensor) in read {
            if (layout == WeightLayout::Q4nx) != (tensor.dtype == DType::Q4NX) {
                let (name, dtype) = (&tensor.name, tensor.dtype);
                return fault(format!(
                    "binds {name}, which is {dtype}, to {}, a {}",
                    launch.name, launch.kernel
                ));
            }
        }
        None
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "groups {}", self.policy)?;
        for (number, ArrayTensor { name, kind, dtype, extent, padded }) in self.tensors.iter().enumerate() {
            let (word, [rows, columns], [all_rows, all_columns]) = (kind_name(*kind), extent, padded);
            write!(f, "tensor {number} {name} {word} {rows}x{columns} in {all_rows}x{all_columns}")?;
            if *dtype != DType::BF16 {
                write!(f, " {dtype}")?;
            }
            writeln!(f)?;
        }
        for program in &self.programs {
            writeln!(f, "program {}", program.name)?;
            print_arguments(&program.arguments, f)?;
            for KernelLaunch { name, kernel, arguments, tiling, resident } in &program.launches {
                write!(f, "launch {name} {kernel} :")?;
                arguments.iter().try_for_each(|argument| write!(f, " {argument}"))?;
                if *resident {
                    f.write_str(" resident")?;
                }
                tiling.iter().try_for_each(|tiling| write!(f, " tile {tiling}"))?;
                writeln!(f)?;
            }
        }
        self.steps.iter().try_for_each(|step| match step {
            StepAction::Host { node } => writeln!(f, "host {node}"),
            StepAction::Array { program, tensors, each_output_row } => {
                let word = if *each_output_row { "each_output_row" } else { "array" };
                write!(f, "{word} {program} :")?;
                tensors.iter().try_for_each(|tensor| write!(f, " {tensor}"))?;
                writeln!(f)
            }
        })
    }
}

fn kind_name(kind: TensorKind) -> &'static str {
    match kind {
        TensorKind::Static => "static",
        TensorKind::CosSin => "cos_sin",
        TensorKind::Scratch => "scratch",
        TensorKind::Chunks => "chunks",
        TensorKind::Start => "start",
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Gemm { m, n, k, weights } => write!(f, "gemm{} m={m} n={n} k={k}", weights.suffix()),
            Kernel::Gemv { first, n, k, weights } => {
                write!(f, "gemv{} first={first} n={n} k={k}", weights.suffix())
            }
            Kernel::Dequant { n, k } => write!(f, "dequant n={n} k={k}"),
            Kernel::RmsNorm { rows, n, width, epsilon } => {
                write!(f, "rms_norm rows={rows} n={n} width={width} epsilon={epsilon:?}f")
            }
            Kernel::Rope { rows, heads, size, pairing } => {
                write!(f, "rope_{} rows={rows} heads={heads} size={size}", pairing.name())
            }
            Kernel::Gate { n, act } => write!(f, "gate_{} n={n}", act.name()),
            Kernel::Add { n } => write!(f, "add n={n}"),
            Kernel::Bias { rows, n } => write!(f, "bias rows={rows} n={n}"),
            Kernel::Attend { rows, heads, kv_heads, size, keys, latest, causal, window, scale } => {
                write!(f, "attend rows={rows} heads={heads} kv_heads={kv_heads} size={size} keys={keys} ")?;
                write!(f, "latest={latest} causal={} window={window} scale={scale:?}f", u8::from(*causal))
            }
        }
    }
}

impl FromStr for Groups {
    type Err = Error;

    fn from_str(text: &str) -> Result<Groups> {
        let mut lines = FormLines::new(text);
        let mut head = lines.need("groups")?;
        let policy = head.word("the policy")?.to_owned();
        head.end()?;
        let mut groups = Groups { policy, tensors: Vec::new(), programs: Vec::new(), steps: Vec::new() };
        while let Some(mut line) = lines.take("tensor") {
            line.need(&groups.tensors.len().to_string())?;
            groups.tensors.push(tensor(&mut line)?);
        }
        while let Some(mut line) = lines.take("program") {
            let name = line.word("the program's name")?.to_owned();
            line.end()?;
            let arguments = arguments(&mut lines)?;
            let mut launches = Vec::new();
            while let Some(mut line) = lines.take("launch") {
                let name = line.word("the launch's name")?.to_owned();
                let kernel = kernel(&mut line)?;
                let mut arguments = Vec::new();
                let (mut tiling, mut resident) = (None, false);
                while let Some(word) = line.optional() {
                    match word {
                        "tile" => {
                            tiling = Some(Tiling::read(kernel.name(), &mut line)?);
                            break;
                        }
                        "resident" => resident = true,
                        _ => arguments.push(line.parsed(word, "a number")?),
                    }
                }
                launches.push(KernelLaunch { name, kernel, arguments, tiling, resident });
            }
            groups.programs.push(ArrayProgram { name, arguments, launches });
        }
        while let Some(step) = step(&mut lines)? {
            groups.steps.push(step);
        }
        lines.end()?;
        Ok(groups)
    }
}

fn tensor(line: &mut FormLine<'_>) -> Result<ArrayTensor> {
    let name = line.word("a name")?.to_owned();
    let kind = match line.word("a kind")? {
        "static" => TensorKind::Static,
        "cos_sin" => TensorKind::CosSin,
        "scratch" => TensorKind::Scratch,
        "chunks" => TensorKind::Chunks,
        "start" => TensorKind::Start,
        word => return Err(line.error(format!("has '{word}', which is not a kind of tensor"))),
    };
    let extent = sides(line)?;
    line.need("in")?;
    let padded = sides(line)?;
    let dtype = line.optional().map_or(Ok(DType::BF16), |word| line.parsed(word, "a format"))?;
    line.end()?;
    Ok(ArrayTensor { name, kind, dtype, extent, padded })
}

/// Reads rows and columns.
fn sides(line: &mut FormLine<'_>) -> Result<[u32; 2]> {
    let word = line.word("rows and columns")?;
    let (rows, columns) =
        word.split_once('x').ok_or_else(|| line.error(format!("has '{word}', which is not a size")))?;
    Ok([line.parsed(rows, "rows")?, line.parsed(columns, "columns")?])
}

/// Reads the numbers at the end of a line.
fn numbers(line: &mut FormLine<'_>) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    while let Some(word) = line.optional() {
        numbers.push(line.parsed(word, "a number")?);
    }
    Ok(numbers)
}

fn step(lines: &mut FormLines<'_>) -> Result<Option<StepAction>> {
    if let Some(mut line) = lines.take("host") {
        let node = line.value("a node")?;
        line.end()?;
        return Ok(Some(StepAction::Host { node }));
    }
    for (word, each_output_row) in [("array", false), ("each_output_row", true)] {
        if let Some(mut line) = lines.take(word) {
            let program = line.value("a program")?;
            line.need(":")?;
            return Ok(Some(StepAction::Array { program, tensors: numbers(&mut line)?, each_output_row }));
        }
    }
    Ok(None)
}

/// Reads a kernel with its sizes, including the colon after them.
fn kernel(line: &mut FormLine<'_>) -> Result<Kernel> {
    let name = line.word("a kernel")?;
    let mut words = Vec::new();
    while !line.skip(":") {
        words.push(line.word("a size")?);
    }
    let sizes = parameters(&mut FormLine::of(&words.join(" ")))?;
    let lacks = |what: &str| line.error(format!("has the kernel {name} without its {what}"));
    let whole = |what: &str| match sizes.iter().find(|size| size.name == what) {
        Some(Parameter { value: ParameterValue::Int(Affine { constant, terms }), .. })
            if terms.is_empty() =>
        {
            u32::try_from(*constant).map_err(|_| lacks(what))
        }
        _ => Err(lacks(what)),
    };
    let float = |what: &str| match sizes.iter().find(|size| size.name == what) {
        Some(Parameter { value: ParameterValue::Float(value), .. }) => Ok(*value),
        _ => Err(lacks(what)),
    };
    let rope = |pairing| {
        Ok(Kernel::Rope { rows: whole("rows")?, heads: whole("heads")?, size: whole("size")?, pairing })
    };
    let (base, weights) = WeightLayout::split(name);
    match base {
        "gemm" => Ok(Kernel::Gemm { m: whole("m")?, n: whole("n")?, k: whole("k")?, weights }),
        "gemv" => Ok(Kernel::Gemv { first: whole("first")?, n: whole("n")?, k: whole("k")?, weights }),
        _ if weights != WeightLayout::Rows => Err(line.error(format!("has '{name}', which is not a kernel"))),
        "dequant" => Ok(Kernel::Dequant { n: whole("n")?, k: whole("k")? }),
        "rms_norm" => Ok(Kernel::RmsNorm {
            rows: whole("rows")?,
            n: whole("n")?,
            width: whole("width")?,
            epsilon: float("epsilon")?,
        }),
        "rope_halves" => rope(Pairing::Halves),
        "rope_neighbours" => rope(Pairing::Neighbours),
        "gate_silu" => Ok(Kernel::Gate { n: whole("n")?, act: Act::Silu }),
        "gate_gelu_tanh" => Ok(Kernel::Gate { n: whole("n")?, act: Act::GeluTanh }),
        "add" => Ok(Kernel::Add { n: whole("n")? }),
        "bias" => Ok(Kernel::Bias { rows: whole("rows")?, n: whole("n")? }),
        "attend" => Ok(Kernel::Attend {
            rows: whole("rows")?,
            heads: whole("heads")?,
            kv_heads: whole("kv_heads")?,
            size: whole("size")?,
            keys: whole("keys")?,
            latest: whole("latest")?,
            causal: match whole("causal")? {
                0 => false,
                1 => true,
                _ => return Err(lacks("causal, which is 0 or 1")),
            },
            window: whole("window")?,
            scale: float("scale")?,
        }),
        _ => Err(line.error(format!("has '{name}', which is not a kernel"))),
    }
}
