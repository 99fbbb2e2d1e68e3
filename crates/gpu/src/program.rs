//! Runs the launches of a program: several submissions and one wait for a step.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use girih_graph::backend::{ExpertsCall, GivenRows, Input, NodeTime, Sequence, Step, Watch, step_count};
use girih_graph::routed_experts::has_no_weights;
use girih_graph::{Extent, Graph, HostRows, Node, RangeFault, Reads, Role, SunkGather, ValueId, sink_gather};
use girih_tensor::{DType, Error, Result};

use crate::device::GpuDevice;
use crate::driver::{BoundKernel, BufferPart, Commands, GpuBuffer};
use crate::group::JoinedNodes;
use crate::launch::{AttendLaunch, BufferRef, Count, GpuLaunch, Instruction};
use crate::lower::{FusedLaunches, Lowering, NodeLaunches, NodeWay};
use crate::output::{DeviceRows, GpuOutput};
use crate::picks::{PICK_BYTES, RowPick, pick_buffers, pick_launches};
use crate::precision::ActPrecision;
use crate::slots::{Slots, value_bytes};
use crate::state::{GpuState, HeldLayout};
use crate::step_table::{TableParts, TableStep, chunks_seen, filled_tiles, group_of};
use crate::temporary::temporary;
use crate::weight_role::{WeightRole, use_of};
use crate::weights::{GpuWeights, bytes_of};

/// The largest number of values of a step that state cannot hold and that are reported.
const FAULTS: usize = 1024;

/// The bytes before the results in the buffer that the host reads: the number of faults.
const HEAD_BYTES: u64 = 16;

/// The largest number of nodes whose times are read.
const TIMED_NODES: usize = 2000;

/// Launches that are submitted together. On an H100, each of 400 in a row took 4.5 µs in one submission, 3.0 µs in 8, and 3.4 µs
/// in 16; encoding takes 2 µs of it.
const LAUNCHES_AT_ONCE: usize = 40;

/// A compiled graph.
#[derive(Debug)]
pub struct GpuProgram {
    device: Arc<GpuDevice>,
    /// Computes all rows of every value.
    all_rows: List,
    /// Computes only the output rows of the values of these names, unless one of them is watched.
    output_rows_only: Option<(List, Vec<String>)>,
    slots: Vec<GpuBuffer>,
    step: GpuBuffer,
    faults: GpuBuffer,
    /// The largest numbers of the runs of result rows, and of the rows.
    picks: [GpuBuffer; 2],
    memory: RefCell<StepBuffers>,
}

/// What a step uses on the host.
#[derive(Debug, Default)]
struct StepBuffers {
    words: Vec<u32>,
    bytes: Vec<u8>,
    staging: Option<GpuBuffer>,
    /// Whether the last step has ended and found no faults, so that their number is 0.
    has_no_faults: bool,
}

/// The launches of one graph.
#[derive(Debug)]
struct List {
    graph: Graph,
    nodes: Vec<NodeLaunches>,
    slots: Slots,
    groups: JoinedNodes,
    /// The number of launches, used or not.
    launches: usize,
    /// The largest number of each result row.
    pick: Option<[GpuLaunch; 2]>,
    parts: TableParts,
    frequencies: Vec<Vec<f32>>,
    /// Whether state may be unable to hold a value.
    may_fail: bool,
    bound: RefCell<BoundLaunches>,
}

/// The pipelines and bindings of launches, made when they first run, for one state.
#[derive(Debug, Default)]
struct BoundLaunches {
    state: u64,
    launches: Vec<Option<BoundKernel>>,
}

/// The sizes of the buffers that the programs of a graph share, and who uses them.
struct ScratchSlots {
    sizes: Vec<u64>,
    all_rows: (Slots, JoinedNodes),
    sunk: Option<(SunkGather, (Slots, JoinedNodes))>,
}

fn plan(graph: &Graph, limit: u64, precision: ActPrecision) -> ScratchSlots {
    let mut sizes = Vec::new();
    let slots = |graph: &Graph, sizes: &mut Vec<u64>| {
        let groups = JoinedNodes::of(graph, limit);
        (Slots::of(graph, &groups, |node| temporary(graph, node, precision), sizes), groups)
    };
    let all_rows = slots(graph, &mut sizes);
    let sunk = sink_gather(graph).map(|sunk| {
        let slots = slots(&sunk.graph, &mut sizes);
        (sunk, slots)
    });
    ScratchSlots { sizes, all_rows, sunk }
}

/// The bytes of scratch memory of a program; `limit` is that of a binding.
pub(crate) fn scratch_bytes(graph: &Graph, limit: u64, precision: ActPrecision) -> u64 {
    let faults = HEAD_BYTES + 12 * FAULTS as u64;
    let table = TableParts::of(graph).bytes(graph);
    let sizes = plan(graph, limit, precision).sizes;
    sizes
        .iter()
        .chain(&pick_buffers(graph))
        .fold(table.saturating_add(faults), |sum, bytes| sum.saturating_add(*bytes))
}

/// The bytes of the results of the largest step, and of what comes before them; or of what experts read that are left to the
/// caller.
pub(crate) fn staging_bytes(graph: &Graph) -> u64 {
    let results = HostRows::plan(graph).saturating_add(HEAD_BYTES).saturating_add(pick_buffers(graph)[1]);
    let left = graph.nodes.iter().filter(|node| has_no_weights(node));
    let read = left.map(|node| node.inputs.iter().map(|id| value_bytes(graph, *id)).sum());
    read.fold(results, u64::max)
}

impl List {
    fn new(graph: Graph, (slots, groups): (Slots, JoinedNodes), weights: &GpuWeights) -> Result<List> {
        let parts = TableParts::of(&graph);
        let nodes =
            Lowering { graph: &graph, weights, slots: &slots, parts: &parts, groups: &groups }.run()?;
        let frequencies = parts
            .rotations()
            .iter()
            .map(|rotation| weights.host(graph.value(rotation.frequencies)).map(<[f32]>::to_vec));
        let frequencies = frequencies.collect::<Result<_>>()?;
        let is_rounded = |dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::Q8_0);
        let may_fail =
            graph.values.iter().any(|value| matches!(value.role, Role::State(_)) && is_rounded(value.dtype));
        let fused =
            |node: &NodeLaunches| node.fused.as_ref().map_or(0, |fused| launches(&fused.instructions));
        let launches = nodes.iter().map(|node| launches(&node.instructions) + fused(node)).sum();
        let pick = pick_launches(&graph, &slots, launches);
        Ok(List {
            graph,
            nodes,
            slots,
            groups,
            launches: launches + pick.as_ref().map_or(0, |pick| pick.len()),
            pick,
            parts,
            frequencies,
            may_fail,
            bound: RefCell::default(),
        })
    }
}

impl List {
    /// The name of a node's result.
    fn name(&self, node: usize) -> &str {
        &self.graph.value(self.graph.nodes[node].output).name
    }

    /// How each node runs, unless a value that fused launches do not make is watched.
    fn ways(&self, watch: &dyn Watch) -> Vec<NodeWay> {
        let mut ways = vec![NodeWay::Alone; self.nodes.len()];
        for node in &self.nodes {
            if let Some(FusedLaunches { absent, skipped, .. }) = &node.fused
                && !absent.iter().any(|absent| watch.wants(self.name(*absent)))
            {
                ways[node.node] = NodeWay::Fused;
                skipped.iter().for_each(|skipped| ways[*skipped] = NodeWay::Skipped);
            }
        }
        ways
    }
}

/// The number of launches, used or not.
fn launches(instructions: &[Instruction]) -> usize {
    let of = |instruction: &Instruction| match instruction {
        Instruction::Launch(_) => 1,
        Instruction::ByRows(variants) | Instruction::Above(_, variants) => variants.len(),
        Instruction::Attend(attend) => 2 + usize::from(attend.tiles.is_some()),
        Instruction::LeftExperts => 0,
    };
    instructions.iter().map(of).sum()
}

/// The counts of a step.
#[derive(Clone, Copy, Debug)]
struct StepCounts {
    rows: u32,
    output_rows: u32,
    sequences: u32,
}

impl StepCounts {
    fn of(self, count: Count) -> u32 {
        match count {
            Count::Rows => self.rows,
            Count::OutputRows => self.output_rows,
            Count::Sequences => self.sequences,
        }
    }
}

impl GpuProgram {
    /// Compiles a graph.
    pub(crate) fn new(graph: &Graph, weights: &GpuWeights) -> Result<GpuProgram> {
        let device = Arc::clone(&weights.device);
        let ScratchSlots { sizes, all_rows, sunk } = plan(graph, device.binding_limit(), weights.precision);
        let all_rows = List::new(graph.clone(), all_rows, weights)?;
        let output_rows_only = sunk.map(|(SunkGather { graph, names }, slots)| {
            Ok::<_, Error>((List::new(graph, slots, weights)?, names))
        });
        let output_rows_only = output_rows_only.transpose()?;
        let lists = [Some(&all_rows), output_rows_only.as_ref().map(|(list, _)| list)];
        let nodes = lists.into_iter().flatten().flat_map(|list| &list.nodes);
        device.prepare(nodes.flat_map(NodeLaunches::kernels).collect())?;
        let slots = sizes.iter().map(|bytes| device.buffer("the scratch memory of a step", *bytes));
        let slots = slots.collect::<Result<_>>()?;
        let step = device.buffer("the table of a step", TableParts::of(graph).bytes(graph))?;
        let faults = device.buffer("the faults of a step", HEAD_BYTES + 12 * FAULTS as u64)?;
        let [runs, rows] = pick_buffers(graph).map(|bytes| device.buffer("the largest results", bytes));
        let picks = [runs?, rows?];
        let memory = RefCell::default();
        Ok(GpuProgram { device, all_rows, output_rows_only, slots, step, faults, picks, memory })
    }

    /// The launches of a step: those that compute only output rows, unless a value whose rows they omit is watched.
    fn list(&self, watch: &dyn Watch) -> &List {
        match &self.output_rows_only {
            Some((list, names)) if !names.iter().any(|name| watch.wants(name)) => list,
            _ => &self.all_rows,
        }
    }

    /// Runs one step.
    pub(crate) fn run(&self, state: &mut GpuState, output: &mut GpuOutput, step: Step<'_>) -> Result<()> {
        let Step { inputs, sequences, watch } = step;
        self.device.check()?;
        let list = self.list(watch);
        let count = |extent| step_count(sequences, extent) as u32;
        let counts = StepCounts {
            rows: count(Extent::Rows),
            output_rows: count(Extent::OutputRows),
            sequences: count(Extent::Sequences),
        };
        let memory = &mut *self.memory.borrow_mut();
        self.bring(list, inputs, sequences, memory)?;
        let mut bound = list.bound.borrow_mut();
        if bound.state != state.id() || bound.launches.is_empty() {
            *bound = BoundLaunches { state: state.id(), launches: Vec::new() };
            bound.launches.resize_with(list.launches, || None);
        }
        let mut run = Run {
            program: self,
            list,
            state,
            bound: &mut bound.launches,
            counts,
            sequences,
            ways: list.ways(watch),
            launched: 0,
            staging: memory.staging.take(),
        };
        let mut commands = if watch.clocks() && self.device.has_timestamps() {
            run.timed(watch)?
        } else {
            run.untimed(watch)?
        };
        run.picks(&mut commands)?;
        memory.staging = run.staging.take();
        let faults = self.results(list, commands, counts, output, memory)?;
        if !faults.is_empty() {
            let found = range_faults(list, state, faults);
            state.note(found);
        }
        Ok(())
    }

    /// Writes inputs and the table of the step.
    fn bring(
        &self,
        list: &List,
        inputs: &[Input<'_>],
        sequences: &[Sequence<'_>],
        memory: &mut StepBuffers,
    ) -> Result<()> {
        let graph = &list.graph;
        let mut given: Vec<(ValueId, &[GivenRows<'_>])> = Vec::new();
        let mut rows_of: Vec<(ValueId, &[f32])> = Vec::new();
        for ((id, _), input) in graph.inputs().zip(inputs) {
            if let Input::Rows(rows) = input {
                rows_of.push((id, rows));
            }
            let Some(slot) = list.slots.value(id) else {
                continue;
            };
            memory.bytes.clear();
            match input {
                Input::Ids(ids) => memory.bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes())),
                Input::Rows(rows) => memory.bytes.extend(bytes_of(rows)),
                Input::Given(runs) => {
                    runs.iter().for_each(|run| memory.bytes.extend(bytes_of(run.values)));
                    given.push((id, runs));
                }
            }
            self.device.write(&self.slots[slot], 0, &memory.bytes);
        }
        let of_given =
            |id: &ValueId| given.iter().find(|(known, _)| known == id).map_or(&[][..], |(_, runs)| runs);
        let runs: Vec<&[GivenRows<'_>]> = list.parts.given_inputs().iter().map(of_given).collect();
        let widths: Vec<usize> =
            list.parts.given_inputs().iter().map(|id| graph.value(*id).shape.stride()).collect();
        let frequencies: Vec<&[f32]> = list.frequencies.iter().map(Vec::as_slice).collect();
        let of_rows = |id: ValueId| rows_of.iter().find(|(known, _)| *known == id).map(|(_, rows)| *rows);
        let rotations = list.parts.rotations().iter();
        let positions: Vec<Option<&[f32]>> =
            rotations.map(|rotation| rotation.positions.and_then(of_rows)).collect();
        let (given, widths) = (&runs[..], &widths[..]);
        let table = TableStep { sequences, given, frequencies: &frequencies, positions: &positions, widths };
        list.parts.words(&table, &mut memory.words);
        memory.bytes.clear();
        memory.bytes.extend(memory.words.iter().flat_map(|word| word.to_le_bytes()));
        self.device.write(&self.step, 0, &memory.bytes);
        if list.may_fail && !std::mem::take(&mut memory.has_no_faults) {
            self.device.write(&self.faults, 0, &[0; 4]);
        }
        self.device.check()
    }

    /// Submits, waits, and reads the results; returns the number of faults with their words.
    fn results(
        &self,
        list: &List,
        mut commands: Commands,
        counts: StepCounts,
        output: &mut GpuOutput,
        memory: &mut StepBuffers,
    ) -> Result<Vec<[u32; 3]>> {
        let graph = &list.graph;
        let result = graph.output().expect("programs are compiled from graphs without faults");
        let rows = counts.of(match graph.value(result).outermost {
            Extent::OutputRows => Count::OutputRows,
            Extent::Sequences => Count::Sequences,
            Extent::Rows | Extent::Fixed | Extent::Context => Count::Rows,
        });
        let slot = list.slots.value(result);
        let brings_rows = output.begin() || slot.is_none();
        let to = output.brought(if brings_rows { rows as usize } else { 0 })?;
        let bytes = to.len() as u64 * 4;
        let pick_bytes = list.pick.as_ref().map_or(0, |_| u64::from(rows) * PICK_BYTES);
        let all = HEAD_BYTES + pick_bytes + bytes;
        let staging = match memory.staging.take() {
            Some(staging) if staging.size() >= all => staging,
            _ => self.device.staging(all)?,
        };
        commands.copy(&self.faults, 0, &staging, 0, HEAD_BYTES);
        if pick_bytes > 0 {
            commands.copy(&self.picks[1], 0, &staging, HEAD_BYTES, pick_bytes);
        }
        if let (Some(slot), true) = (slot, bytes > 0) {
            commands.copy(&self.slots[slot], 0, &staging, HEAD_BYTES + pick_bytes, bytes);
        }
        let (faults, picks) = self.device.submit_and_read(commands, &staging, all, |read| {
            let (head, read) = read.split_at(HEAD_BYTES as usize);
            let (picks, read) = read.split_at(pick_bytes as usize);
            for (to, from) in to.iter_mut().zip(read.as_chunks::<4>().0) {
                *to = f32::from_le_bytes(*from);
            }
            (words_of(head)[0] as usize, words_of(picks))
        })?;
        memory.staging = Some(staging);
        memory.has_no_faults = faults == 0;
        output.keep_picks(picks.as_chunks::<3>().0.iter().copied().map(RowPick::of).collect());
        if let (Some(slot), false) = (slot, brings_rows) {
            let (device, buffer) = (Arc::clone(&self.device), self.slots[slot].clone());
            output.keep(DeviceRows { device, buffer, count: rows as usize });
        }
        if !list.may_fail || faults == 0 {
            return Ok(Vec::new());
        }
        if faults > FAULTS {
            // Which of them the list has depends on the order in which the device ran.
            return Err(Error::new(format!(
                "{faults} keys and values of a step are too large for the KV cache; the GPU lists {FAULTS}: \
                 choose --kv f32"
            )));
        }
        let read = self.device.read(&self.faults, 0, HEAD_BYTES + 12 * FAULTS as u64)?;
        Ok(words_of(&read)[1..].as_chunks::<3>().0.iter().take(faults).copied().collect())
    }
}

/// The words of bytes that a device wrote.
fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// The value of largest magnitude of each row and state that could not be stored, in the order of rows, and in a row
/// of the graph.
fn range_faults(list: &List, state: &GpuState, mut words: Vec<[u32; 3]>) -> Vec<RangeFault> {
    words.sort_unstable_by_key(|[id, row, bits]| (*row, *id, std::cmp::Reverse(bits & 0x7fff_ffff), *bits));
    words.dedup_by_key(|[id, row, _]| (*row, *id));
    let dtype = |name: &str| list.graph.find(name).map_or(DType::F16, |id| list.graph.value(id).dtype);
    let fault = |[id, row, bits]: [u32; 3]| {
        let name = state.name(id as usize).to_owned();
        RangeFault { row, dtype: dtype(&name), name, value: f32::from_bits(bits) }
    };
    words.into_iter().map(fault).collect()
}

/// One step while it is encoded.
struct Run<'a> {
    program: &'a GpuProgram,
    list: &'a List,
    state: &'a GpuState,
    bound: &'a mut Vec<Option<BoundKernel>>,
    counts: StepCounts,
    sequences: &'a [Sequence<'a>],
    /// For each node, how it runs.
    ways: Vec<NodeWay>,
    /// The launches so far.
    launched: usize,
    /// A buffer through which values come to the host.
    staging: Option<GpuBuffer>,
}

impl Run<'_> {
    /// Encodes all nodes, and submits some of them while it encodes the next ones; what it returns is the rest. The step
    /// waits after each value that is watched, and for experts that are left to the caller.
    fn untimed(&mut self, watch: &mut dyn Watch) -> Result<Commands> {
        let device = Arc::clone(&self.program.device);
        let mut commands = device.commands();
        let mut nodes = self.list.nodes.iter().peekable();
        while nodes.peek().is_some() {
            let (first, mut read) = (self.launched, None);
            for node in nodes.by_ref() {
                self.node(node, &mut commands)?;
                read = Some(node).filter(|node| self.is_left(node) || watch.wants(self.name(node)));
                if read.is_some() || self.launched >= first + LAUNCHES_AT_ONCE {
                    break;
                }
            }
            commands = match read {
                Some(node) => {
                    let commands = self.experts(node, commands, watch)?;
                    if watch.wants(self.name(node)) { self.watched(node, commands, watch)? } else { commands }
                }
                None if nodes.peek().is_some() => {
                    device.begin(commands);
                    device.commands()
                }
                None => commands,
            };
        }
        commands.end_pass();
        Ok(commands)
    }

    /// Encodes the search for the largest number of each result row.
    fn picks(&mut self, commands: &mut Commands) -> Result<()> {
        let mut pick = self.list.pick.iter().flatten();
        pick.try_for_each(|launch| self.launch(launch, commands))
    }

    fn name(&self, node: &NodeLaunches) -> &str {
        self.list.name(node.node)
    }

    /// Whether the caller computes a node.
    fn is_left(&self, node: &NodeLaunches) -> bool {
        has_no_weights(&self.list.graph.nodes[node.node])
    }

    /// Submits, and hands the result of a node to the watch.
    fn watched(
        &mut self,
        node: &NodeLaunches,
        commands: Commands,
        watch: &mut dyn Watch,
    ) -> Result<Commands> {
        let id = self.list.graph.nodes[node.node].output;
        if self.list.slots.value(id).is_none() {
            return Ok(commands);
        }
        let value = self.list.graph.value(id);
        let rows = step_count(self.sequences, value.outermost);
        let ([numbers], commands) = self.read([id], rows, commands)?;
        watch.value(&value.name, &value.shape.with_outermost(rows), &numbers);
        Ok(commands)
    }

    /// If the caller computes a node, submits, hands it the operands, and brings the result to the device.
    fn experts(
        &mut self,
        node: &NodeLaunches,
        commands: Commands,
        watch: &mut dyn Watch,
    ) -> Result<Commands> {
        let graph = &self.list.graph;
        let &Node { ref inputs, output, .. } = &graph.nodes[node.node];
        let rows = step_count(self.sequences, graph.value(output).outermost);
        let (&[x, weights], false) = (&inputs[..], rows == 0 || !self.is_left(node)) else {
            return Ok(commands);
        };
        let ([x, weights], commands) = self.read([x, weights], rows, commands)?;
        let value = graph.value(output);
        let result = watch.experts(&ExpertsCall { name: &value.name, rows, x: &x, weights: &weights })?;
        let (have, need) = (result.len(), rows * value.shape.stride());
        let slot = self.list.slots.value(output).filter(|_| have == need).ok_or_else(|| {
            let name = &value.name;
            Error::new(format!(
                "the experts '{name}' have {have} numbers, not {need}; this is a bug in girih"
            ))
        })?;
        self.program.device.write(&self.program.slots[slot], 0, &bytes_of(result));
        Ok(commands)
    }

    /// Submits, and reads rows of values of a step; what it returns beside them are the commands of what follows.
    fn read<const N: usize>(
        &mut self,
        ids: [ValueId; N],
        rows: usize,
        mut commands: Commands,
    ) -> Result<([Vec<f32>; N], Commands)> {
        let GpuProgram { device, slots, .. } = self.program;
        let bytes = ids.map(|id| (rows * self.list.graph.value(id).shape.stride()) as u64 * 4);
        let all = bytes.iter().sum();
        if all == 0 {
            return Ok((ids.map(|_| Vec::new()), commands));
        }
        let staging = match self.staging.take() {
            Some(staging) if staging.size() >= all => staging,
            _ => device.staging(all)?,
        };
        let mut at = 0;
        for (id, bytes) in ids.into_iter().zip(bytes) {
            let slot = self.list.slots.value(id).expect("values of rows have buffers");
            commands.copy(&slots[slot], 0, &staging, at, bytes);
            at += bytes;
        }
        let numbers = device.submit_and_read(commands, &staging, all, |mut read| {
            bytes.map(|bytes| {
                let (own, rest) = read.split_at(bytes as usize);
                read = rest;
                own.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            })
        })?;
        self.staging = Some(staging);
        Ok((numbers, device.commands()))
    }

    /// Encodes a pass for each node, and reports their times.
    fn timed(&mut self, watch: &mut dyn Watch) -> Result<Commands> {
        let device = Arc::clone(&self.program.device);
        let nodes = &self.list.nodes;
        let times = device.times(nodes.len().min(TIMED_NODES) as u32);
        let (mut commands, mut left) = (device.commands(), Vec::new());
        for (index, node) in (0..).zip(nodes) {
            commands.begin_node(&times, index);
            self.node(node, &mut commands)?;
            if self.is_left(node) {
                let begun = Instant::now();
                commands = self.experts(node, commands, watch)?;
                left.push((node.node, begun.elapsed()));
            }
        }
        let times = device.submit_and_time(commands, &times)?;
        for (node, time) in nodes.iter().zip(times) {
            if let Some((_, time)) = left.iter().find(|(left, _)| *left == node.node) {
                self.took_left(node, *time, watch);
            } else if !self.of(node).is_empty() {
                self.took(node, time, watch);
            }
        }
        Ok(device.commands())
    }

    /// Reports the time of experts that the caller computes, with that of what comes before them and of bringing rows.
    fn took_left(&self, node: &NodeLaunches, time: Duration, watch: &mut dyn Watch) {
        let of = &self.list.graph.nodes[node.node];
        let rows = step_count(self.sequences, self.list.graph.value(of.output).outermost);
        let (name, variant) = (self.name(node), &["host"][..]);
        watch.took(&NodeTime { name, op: of.op.name(), variant, rows, bytes: 0, operations: 0, time });
    }

    /// Reports the time and the work of a node.
    fn took(&self, node: &NodeLaunches, time: Duration, watch: &mut dyn Watch) {
        let graph = &self.list.graph;
        let of = &graph.nodes[node.node];
        // A group's time is that of its first node.
        let group = self.list.groups.group(node.node).map(|group| group.iter().map(|matmul| matmul.node));
        let nodes: Vec<usize> = group.map_or_else(|| vec![node.node], Iterator::collect);
        let (mut bytes, mut multiply_adds) = (0, 0);
        for index in nodes {
            let work = graph.work(&graph.nodes[index], self.sequences);
            let operands = graph.nodes[index].inputs.iter().zip(work.reads);
            bytes += operands.map(|(id, reads)| self.read_bytes(*id, reads)).sum::<u64>();
            multiply_adds += work.multiply_adds;
        }
        let rows = match graph.value(of.output).outermost {
            Extent::Context | Extent::Fixed => self.counts.rows as usize,
            extent => step_count(self.sequences, extent),
        };
        let instructions = self.of(node);
        let kernel = match &instructions[instructions.len() - 1] {
            Instruction::Launch(launch) => launch.kernel.name(),
            Instruction::ByRows(variants) | Instruction::Above(_, variants) => {
                self.variant(variants).kernel.name()
            }
            Instruction::Attend(attend) => attend.chunks.kernel.name(),
            Instruction::LeftExperts => return,
        };
        let (name, variant) = (self.name(node), &[kernel][..]);
        let operations = 2 * multiply_adds;
        watch.took(&NodeTime { name, op: of.op.name(), variant, rows, bytes, operations, time });
    }

    /// Bytes of a weight or of state that a node reads.
    fn read_bytes(&self, id: ValueId, reads: Reads) -> u64 {
        let graph = &self.list.graph;
        let value = graph.value(id);
        let weight = || match use_of(graph, id) {
            Ok(WeightRole::Matrix(shape)) => shape.bytes().unwrap_or(0),
            _ => value.shape.elements() as u64 * 4,
        };
        match (value.role, reads) {
            (Role::Weight, Reads::All) => weight(),
            (Role::Weight, Reads::Rows(rows)) => weight() / value.shape.rows().max(1) as u64 * rows,
            (Role::State(_), Reads::Positions(positions)) => {
                positions.distinct * HeldLayout::new(value.dtype, value, false).block_bytes() / 64
            }
            (Role::State(_), Reads::All) if group_of(graph, id).is_some() => {
                self.sequences.len() as u64 * value.row_len() as u64 * 4
            }
            _ => 0,
        }
    }

    /// The variant for the rows of this step.
    fn variant<'l>(&self, variants: &'l [(u32, GpuLaunch)]) -> &'l GpuLaunch {
        let rows = self.counts.of(variants[0].1.count);
        let found = variants.iter().find(|(most, _)| rows <= *most);
        &found.unwrap_or(&variants[variants.len() - 1]).1
    }

    /// What runs at a node in this step.
    fn of<'l>(&self, node: &'l NodeLaunches) -> &'l [Instruction] {
        node.of(self.ways[node.node])
    }

    /// Encodes a node.
    fn node(&mut self, node: &NodeLaunches, commands: &mut Commands) -> Result<()> {
        for instruction in self.of(node) {
            match instruction {
                Instruction::Launch(launch) => self.launch(launch, commands)?,
                Instruction::Above(few, variants) => {
                    let launch = self.variant(variants);
                    if self.counts.of(launch.count) > *few {
                        self.launch(launch, commands)?;
                    }
                }
                Instruction::ByRows(variants) => self.launch(self.variant(variants), commands)?,
                Instruction::Attend(attend) => self.attend(attend, commands)?,
                Instruction::LeftExperts => {}
            }
        }
        Ok(())
    }

    fn launch(&mut self, launch: &GpuLaunch, commands: &mut Commands) -> Result<()> {
        let (first, groups) = launch.grid.sizes(self.counts.of(launch.count));
        if groups.contains(&0) {
            return Ok(());
        }
        let mut words = launch.words.clone();
        words[0] = first;
        self.dispatch(launch, &words, groups, commands)
    }

    /// As many rows at once as the partial results have room for.
    fn attend(&mut self, attend: &AttendLaunch, commands: &mut Commands) -> Result<()> {
        let AttendLaunch { chunks, join, tiles, span, heads, value_size, room } = attend;
        if let (Some(tiles), Some(count)) = (tiles, filled_tiles(self.sequences)) {
            return self.dispatch(tiles, &tiles.words, [*heads, count, 1], commands);
        }
        let seen = chunks_seen(self.sequences, *span).max(1);
        let of_row = u64::from(*heads) * u64::from(seen) * u64::from(value_size + 2);
        // No more than a dimension of a grid.
        let at_once = (room / of_row).clamp(1, 65_535) as u32;
        let mut first = 0;
        while first < self.counts.rows {
            let rows = at_once.min(self.counts.rows - first);
            let mut words = chunks.words.clone();
            (words[0], words[1]) = (rows, first);
            self.dispatch(chunks, &words, [*heads, rows, seen], commands)?;
            first += rows;
            // Rows with one chunk are joined already.
            if seen == 1 {
                continue;
            }
            let mut words = join.words.clone();
            let (all, groups) = join.grid.sizes(rows);
            (words[0], words[1], words[6]) = (all, first - rows, seen);
            self.dispatch(join, &words, groups, commands)?;
        }
        Ok(())
    }

    fn dispatch(
        &mut self,
        launch: &GpuLaunch,
        words: &[u32],
        groups: [u32; 3],
        commands: &mut Commands,
    ) -> Result<()> {
        if self.bound[launch.id].is_none() {
            self.bound[launch.id] = Some(self.bind(launch)?);
        }
        if let Some(bound) = &self.bound[launch.id] {
            commands.launch(bound, words, groups);
        }
        self.launched += 1;
        Ok(())
    }

    fn bind(&self, launch: &GpuLaunch) -> Result<BoundKernel> {
        let GpuProgram { device, slots, step, faults, picks, .. } = self.program;
        let pipeline = device.pipeline(launch.kernel)?;
        let part = |bind: &BufferRef| match bind {
            BufferRef::Slot(index) => BufferPart::whole(&slots[*index]),
            BufferRef::Weight(part) => part.clone(),
            BufferRef::State(index) => BufferPart::whole(self.state.buffer(*index)),
            BufferRef::Step => BufferPart::whole(step),
            BufferRef::Faults => BufferPart::whole(faults),
            BufferRef::Picks(index) => BufferPart::whole(&picks[*index]),
            BufferRef::Unread => device.unread(),
            BufferRef::Unwritten(index) => device.unwritten(*index),
        };
        let parts: Vec<BufferPart> = launch.binds.iter().map(part).collect();
        device.bind(&pipeline, &parts)
    }
}

#[cfg(test)]
mod tests;
