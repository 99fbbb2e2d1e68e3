//! Groups: which operations form one program of the array, which run on the
//! host, and which tensors pass between them. Programs that differ only in
//! their tensors are one program, bound several times.

use std::fmt;
use std::str::FromStr;

use girih_tensor::{DType, Error, Result};

use super::kernel::kernel;
pub use super::kernel::{AttendSizes, ChunkHalf, GateAct, Kernel};
pub use super::keys::{
    START_BYTES, appended_bytes, appended_offset, attended_blocks, chunk_bytes, first_block, latest_start,
    values_offset,
};
use super::read::{FormLine, FormLines};
use super::schedule::text::{arguments, print_arguments};
use super::schedule::{Argument, ArgumentRole};
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
    /// Keys and values of one sequence of the step, in the layout of [`chunk_bytes`]. The
    /// host writes all of them, or those that changed, before a program reads
    /// them, except the position that a program [appends](TensorKind::Appended). The runtime binds it at an
    /// offset that follows from the position, if a window moves over more blocks than a program reads. Its
    /// `extent` is the number of KV heads, with padding, and the head size.
    Chunks,
    /// Keys and values of the rows of the step's only sequence, in the same layout. The host lays them out from
    /// the values of the step. Its `extent` is as that of chunks.
    RowChunks,
    /// The place of the step's only position among the chunks of the same name, which a program
    /// writes. The runtime binds it at an offset that follows from the position. Its `extent` is that
    /// of the chunks.
    Appended,
    /// Numbers of 32 bits, which the host computes in each step: the position of a sequence's first row, that
    /// of the first key in the chunks, and the mutual spans of the rows, as the entry `attend` has them. It has a
    /// row for each sequence. Its `extent` is one row and the window of the attention; 0 for none.
    Start,
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
        /// How often the program runs, and on which rows.
        runs: ProgramRuns,
        /// The program that runs instead if rows have mutual spans, with the same tensors.
        with_spans: Option<u32>,
    },
}

/// How often a step runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramRuns {
    /// Once, on all rows.
    Once,
    /// Once for each output row, on that row of its inputs and outputs.
    EachOutputRow,
    /// Once for each sequence: on its rows, those behind them included, and on its keys, values and positions.
    /// The rows behind are computed again, for the next sequences.
    EachSequence {
        /// The program that runs instead for a sequence with a single row in the step, with the same tensors.
        one_row: u32,
    },
}

impl ProgramRuns {
    /// The number of runs in a step with these numbers of output rows and of sequences.
    pub fn count(self, output_rows: usize, sequences: usize) -> usize {
        match self {
            ProgramRuns::Once => 1,
            ProgramRuns::EachOutputRow => output_rows,
            ProgramRuns::EachSequence { .. } => sequences,
        }
    }
}

impl ArrayProgram {
    /// Whether all launches stay configured.
    pub fn is_resident(&self) -> bool {
        self.launches.iter().all(|launch| launch.resident)
    }
}

impl ArrayTensor {
    /// The size in bytes, with padding.
    pub fn bytes(&self) -> u64 {
        WeightLayout::of(self.dtype).bytes(self.padded[0], self.padded[1])
    }

    /// Bytes of a block of all heads of a tensor of chunks.
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.extent[0]) * self.row_bytes()
    }

    /// Bytes from one row to the next of a bf16 tensor.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.padded[1]) * 2
    }
}

impl Groups {
    /// The number of submissions in a step with these numbers of output rows and of sequences: of runs of programs, except
    /// those that continue the one before.
    pub fn submissions(&self, output_rows: usize, sequences: usize) -> usize {
        let runs = self.steps.iter().enumerate().map(|(at, step)| match step {
            StepAction::Host { .. } => 0,
            StepAction::Array { runs: ProgramRuns::Once, .. } => usize::from(!self.continues(at)),
            StepAction::Array { runs, .. } => runs.count(output_rows, sequences),
        });
        runs.sum()
    }

    /// Whether a program continues the commands of the one before: the launches of both stay configured, and
    /// the host writes no keys and values between them.
    fn continues(&self, at: usize) -> bool {
        let [StepAction::Array { program: before, .. }, StepAction::Array { program, tensors, .. }] =
            self.steps.get(at.saturating_sub(1)..=at).unwrap_or(&[])
        else {
            return false;
        };
        let is_resident =
            |program: u32| self.programs.get(program as usize).is_some_and(ArrayProgram::is_resident);
        let kinds: Vec<TensorKind> =
            tensors.iter().filter_map(|tensor| Some(self.tensors.get(*tensor as usize)?.kind)).collect();
        let is_appended = !kinds.contains(&TensorKind::Chunks) || kinds.contains(&TensorKind::Appended);
        let is_laid = kinds.contains(&TensorKind::RowChunks);
        is_resident(*before) && is_resident(*program) && is_appended && !is_laid
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
            if let StepAction::Array { program, tensors, runs, with_spans } = step {
                let one_row = match *runs {
                    ProgramRuns::EachSequence { one_row } => Some(one_row),
                    ProgramRuns::Once | ProgramRuns::EachOutputRow => None,
                };
                let programs = [Some(*program), one_row, *with_spans].into_iter().flatten();
                faults.extend(programs.filter_map(|program| self.binding_fault(number, program, tensors)));
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
            let appended = argument.role == ArgumentRole::State;
            if fixed != (tensor.kind == TensorKind::Static)
                || appended != (tensor.kind == TensorKind::Appended)
                || tensor.bytes() < argument.bytes
            {
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
            StepAction::Array { program, tensors, runs, with_spans } => {
                write!(f, "{} {program}", runs_word(*runs))?;
                if let ProgramRuns::EachSequence { one_row } = runs {
                    write!(f, " one_row {one_row}")?;
                }
                f.write_str(" :")?;
                tensors.iter().try_for_each(|tensor| write!(f, " {tensor}"))?;
                with_spans.iter().try_for_each(|program| write!(f, " with_spans {program}"))?;
                writeln!(f)
            }
        })
    }
}

/// The word with which a line of a program's run begins.
fn runs_word(runs: ProgramRuns) -> &'static str {
    match runs {
        ProgramRuns::Once => "array",
        ProgramRuns::EachOutputRow => "each_output_row",
        ProgramRuns::EachSequence { .. } => "each_sequence",
    }
}

fn kind_name(kind: TensorKind) -> &'static str {
    match kind {
        TensorKind::Static => "static",
        TensorKind::CosSin => "cos_sin",
        TensorKind::Scratch => "scratch",
        TensorKind::Chunks => "chunks",
        TensorKind::RowChunks => "row_chunks",
        TensorKind::Appended => "appended",
        TensorKind::Start => "start",
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
        "row_chunks" => TensorKind::RowChunks,
        "appended" => TensorKind::Appended,
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

fn step(lines: &mut FormLines<'_>) -> Result<Option<StepAction>> {
    if let Some(mut line) = lines.take("host") {
        let node = line.value("a node")?;
        line.end()?;
        return Ok(Some(StepAction::Host { node }));
    }
    let all = [ProgramRuns::Once, ProgramRuns::EachOutputRow, ProgramRuns::EachSequence { one_row: 0 }];
    for runs in all {
        if let Some(mut line) = lines.take(runs_word(runs)) {
            return array_step(&mut line, runs).map(Some);
        }
    }
    Ok(None)
}

/// Reads a line of a program's runs behind its first word.
fn array_step(line: &mut FormLine<'_>, mut runs: ProgramRuns) -> Result<StepAction> {
    let program = line.value("a program")?;
    if let ProgramRuns::EachSequence { one_row } = &mut runs {
        line.need("one_row")?;
        *one_row = line.value("a program")?;
    }
    line.need(":")?;
    let (mut tensors, mut with_spans) = (Vec::new(), None);
    while let Some(word) = line.optional() {
        if word == "with_spans" {
            with_spans = Some(line.value("a program")?);
            line.end()?;
            break;
        }
        tensors.push(line.parsed(word, "a number")?);
    }
    Ok(StepAction::Array { program, tensors, runs, with_spans })
}
