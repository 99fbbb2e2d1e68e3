//! Fuses resident launches that differ only in their transfers and loop counts, such as the products of queries,
//! keys and values: their cores go from one matrix to the next without waiting for the command processor.

use crate::form::groups::{ArrayProgram, Kernel, KernelLaunch};
use crate::form::schedule::{
    Affine, CoreInstruction, Descriptor, Launch, ParameterValue, ProcessorCommand, Push, TileKind,
};
use crate::target::Target;

/// The mark between the names of the launches that one launch was made of.
pub const FUSED: char = '+';

/// Fuses each launch with the later ones that are alike and do not depend on what lies between.
pub(super) fn fuse(program: &ArrayProgram, launches: Vec<Launch>, target: &Target) -> Vec<Launch> {
    let mut fused: Vec<(Launch, Vec<&KernelLaunch>)> = Vec::new();
    for (launch, kernel) in launches.into_iter().zip(&program.launches) {
        let free = fused.iter().rposition(|(_, kernels)| kernels.iter().any(|other| depends(kernel, other)));
        let earliest = free.map_or(0, |at| at + 1);
        let found = (earliest..fused.len()).find_map(|at| Some((at, joined(&fused[at].0, &launch, target)?)));
        match found {
            Some((at, joined)) => {
                fused[at].0 = joined;
                fused[at].1.push(kernel);
            }
            None => fused.push((launch, vec![kernel])),
        }
    }
    fused.into_iter().map(|(launch, _)| launch).collect()
}

/// Whether a launch reads or overwrites what an earlier one writes, or overwrites what it reads. The last
/// argument of a kernel is its result. Keys and values of a position are appended to one argument, but to
/// different words. Attention reads them through another argument, of the same memory.
fn depends(later: &KernelLaunch, earlier: &KernelLaunch) -> bool {
    match (later.kernel, earlier.kernel) {
        (Kernel::Append { half, .. }, Kernel::Append { half: other, .. }) if half != other => return false,
        (Kernel::Attend(_), Kernel::Append { .. }) | (Kernel::Append { .. }, Kernel::Attend(_)) => {
            return true;
        }
        _ => {}
    }
    let (Some(written), Some(other)) = (later.arguments.last(), earlier.arguments.last()) else {
        return true;
    };
    later.arguments.contains(other) || earlier.arguments.contains(written)
}

/// Returns the launch that does the work of two, if they are alike.
fn joined(first: &Launch, second: &Launch, target: &Target) -> Option<Launch> {
    let is_alike = first.resident
        && second.resident
        && first.buffers == second.buffers
        && first.locks == second.locks
        && first.starts == second.starts
        && first.routes == second.routes
        && first.cascades == second.cascades
        && in_tiles(first).eq(in_tiles(second));
    if !is_alike {
        return None;
    }
    let mut launch = first.clone();
    launch.name = format!("{}{FUSED}{}", first.name, second.name);
    let mut cores = second.cores.iter();
    for core in &mut launch.cores {
        let other = cores.next().filter(|other| other.tile == core.tile)?;
        let [CoreInstruction::Loop { count, body }] = &mut core.program[..] else { return None };
        let [CoreInstruction::Loop { count: more, body: same }] = &other.program[..] else { return None };
        *count = Some(count.checked_add(*more)?).filter(|_| body == same && is_uniform(body))?;
    }
    let (begun, ended) = without_last_waits(&first.commands);
    let (more, last) = without_last_waits(&second.commands);
    let ids = shim_descriptors(&mut launch, second, target)?;
    let pushed = more.iter().map(|command| renumbered(command, &ids)).collect::<Option<Vec<_>>>()?;
    launch.commands = [begun, &pushed, ended, last].concat();
    cores.next().is_none().then_some(launch)
}

/// Whether every iteration of the outermost loop calls the same with the same values, so that it may go on
/// counting where another launch would begin at 0. Buffers take turns from launch to launch anyway.
fn is_uniform(body: &[CoreInstruction]) -> bool {
    let counts = |value: &Affine| value.terms.iter().any(|term| term.depth == 0);
    body.iter().all(|instruction| match instruction {
        CoreInstruction::Loop { body, .. } => is_uniform(body),
        CoreInstruction::Acquire(_) | CoreInstruction::Release(_) => true,
        CoreInstruction::Call(call) => {
            let mut integers = call.parameters.iter().filter_map(|parameter| match &parameter.value {
                ParameterValue::Int(value) => Some(value),
                ParameterValue::Float(_) => None,
            });
            !integers.any(counts) && !call.operands.iter().any(|operand| counts(&operand.offset))
        }
    })
}

/// The descriptors of memory and compute tiles.
fn in_tiles(launch: &Launch) -> impl Iterator<Item = &Descriptor> {
    launch.descriptors.iter().filter(|one| one.tile.kind() != TileKind::Shim)
}

/// The new number of each shim descriptor: its column, its old number, its new one.
type NewNumbers = Vec<(u8, u8, u8)>;

/// Adds the shim descriptors of another launch under free numbers; none if a tile has too few.
fn shim_descriptors(launch: &mut Launch, other: &Launch, target: &Target) -> Option<NewNumbers> {
    let mut numbers = NewNumbers::new();
    for one in other.descriptors.iter().filter(|one| one.tile.kind() == TileKind::Shim) {
        let of_tile = launch.descriptors.iter().filter(|known| known.tile == one.tile);
        let id = of_tile.map(|known| known.id + 1).max().unwrap_or(0);
        if u32::from(id) >= target.shim.dma.descriptors || one.next.is_some() {
            return None;
        }
        numbers.push((one.tile.column, one.id, id));
        launch.descriptors.push(Descriptor { id, ..one.clone() });
    }
    Some(numbers)
}

/// The command with the new number of its descriptor; none for a loop.
fn renumbered(command: &ProcessorCommand, numbers: &NewNumbers) -> Option<ProcessorCommand> {
    match command {
        ProcessorCommand::Loop { .. } => None,
        ProcessorCommand::Wait(channel) => Some(ProcessorCommand::Wait(*channel)),
        ProcessorCommand::Push(push) => {
            let is_old = |(column, old, _): &&(u8, u8, u8)| {
                *column == push.channel.tile.column && *old == push.descriptor
            };
            let (_, _, descriptor) = *numbers.iter().find(is_old)?;
            Some(ProcessorCommand::Push(Push { descriptor, ..push.clone() }))
        }
    }
}

/// Divides commands into those before the last waits, and these.
fn without_last_waits(commands: &[ProcessorCommand]) -> (&[ProcessorCommand], &[ProcessorCommand]) {
    let is_wait = |command: &ProcessorCommand| matches!(command, ProcessorCommand::Wait(_));
    let end = commands.iter().rposition(|command| !is_wait(command)).map_or(0, |last| last + 1);
    commands.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::groups::{AttendSizes, ChunkHalf};
    use crate::form::schedule::{Argument, ArgumentRole, CoreCall, Term};
    use crate::form::weights::WeightLayout;
    use crate::pass::{NoDump, compile};

    fn target() -> Target {
        Target::named("xdna2-strix").unwrap()
    }

    /// The launches of a program of products `y[n] = w · x` of these arguments, `x`, `w` and `y`.
    fn products(of: &[(u32, [u32; 3])], resident: bool) -> Vec<Launch> {
        let weights = WeightLayout::Q4nx;
        let launch = |(at, (n, arguments)): (usize, &(u32, [u32; 3]))| KernelLaunch {
            name: format!("p{at}"),
            kernel: Kernel::Gemv { first: 0, n: *n, k: 512, weights },
            arguments: arguments.to_vec(),
            tiling: None,
            resident,
        };
        let launches: Vec<KernelLaunch> = of.iter().enumerate().map(launch).collect();
        let arguments = (0..8).map(|number| Argument {
            name: format!("a{number}"),
            role: ArgumentRole::Intermediate,
            bytes: weights.bytes(4096, 512),
        });
        let program = ArrayProgram { name: "products".to_owned(), arguments: arguments.collect(), launches };
        compile(&program, &target(), &mut NoDump).unwrap().launches
    }

    fn names(launches: &[Launch]) -> Vec<&str> {
        launches.iter().map(|launch| launch.name.as_str()).collect()
    }

    #[test]
    fn products_of_one_vector_are_one_launch() {
        let fused = products(&[(1024, [0, 1, 2]), (512, [0, 3, 4]), (512, [0, 5, 6])], true);
        assert_eq!(names(&fused), ["p0+p1+p2"]);
        let [CoreInstruction::Loop { count, .. }] = &fused[0].cores[0].program[..] else { panic!() };
        assert_eq!(*count, (1024 + 512 + 512) / 32 / 16, "tile rows of a core");
        let apart = products(&[(1024, [0, 1, 2]), (512, [0, 3, 4])], false);
        assert_eq!(names(&apart), ["p0", "p1"], "launches that configure the array stay apart");
    }

    /// The second product reads the result of the first; the third does not, and joins the first.
    #[test]
    fn a_launch_does_not_pass_what_it_depends_on() {
        let launches = products(&[(512, [0, 1, 2]), (512, [2, 3, 4]), (512, [0, 5, 6])], true);
        assert_eq!(names(&launches), ["p0+p2", "p1"]);
        // The second overwrites what the first and the third read.
        let overwritten = products(&[(512, [0, 1, 2]), (512, [2, 3, 0]), (512, [0, 5, 6])], true);
        assert_eq!(names(&overwritten), ["p0", "p1", "p2"]);
    }

    #[test]
    fn a_shim_has_a_limited_number_of_descriptors() {
        let six: Vec<(u32, [u32; 3])> = (0..6).map(|_| (512, [0, 1, 2])).collect();
        assert_eq!(names(&products(&six, true)).len(), 6, "each overwrites the result of the one before");
        let many: Vec<(u32, [u32; 3])> = (2..8).map(|result| (512, [0, 1, result])).collect();
        let fused = products(&many, true);
        assert_eq!(
            names(&fused),
            ["p0+p1+p2+p3+p4", "p5"],
            "three descriptors each in the first column, of 16"
        );
    }

    #[test]
    fn keys_and_values_of_a_position_lie_apart() {
        let append = |half, row| KernelLaunch {
            name: String::new(),
            kernel: Kernel::Append { heads: 2, size: 64, half },
            arguments: vec![row, 9],
            tiling: None,
            resident: true,
        };
        let [keys, values] = [append(ChunkHalf::Keys, 0), append(ChunkHalf::Values, 1)];
        assert!(!depends(&values, &keys) && depends(&keys, &keys));
    }

    #[test]
    fn attention_depends_on_what_was_appended_through_another_argument() {
        let launch = |kernel, arguments: [u32; 2]| KernelLaunch {
            name: String::new(),
            kernel,
            arguments: arguments.to_vec(),
            tiling: None,
            resident: true,
        };
        let append = launch(Kernel::Append { heads: 2, size: 64, half: ChunkHalf::Keys }, [0, 9]);
        let sizes = AttendSizes {
            rows: 1,
            heads: 2,
            kv_heads: 2,
            size: 64,
            keys: 64,
            latest: 63,
            causal: true,
            window: 0,
            scale: 1.0,
        };
        let attend = launch(Kernel::Attend(sizes), [1, 2]);
        assert!(depends(&attend, &append) && depends(&append, &attend));
    }

    /// A loop that goes on counting would compute other values.
    #[test]
    fn a_launch_that_uses_its_outermost_counter_is_not_joined() {
        let mut launches = products(&[(512, [0, 1, 2]), (512, [0, 3, 4])], true);
        let [launch] = &mut launches[..] else { panic!() };
        let [CoreInstruction::Loop { body, .. }] = &mut launch.cores[0].program[..] else { panic!() };
        assert!(is_uniform(body));
        let set = |body: &mut [CoreInstruction], depth| {
            fn call(body: &mut [CoreInstruction]) -> Option<&mut CoreCall> {
                body.iter_mut().find_map(|instruction| match instruction {
                    CoreInstruction::Call(call) => Some(call),
                    CoreInstruction::Loop { body, .. } => call(body),
                    CoreInstruction::Acquire(_) | CoreInstruction::Release(_) => None,
                })
            }
            call(body).unwrap().operands[0].offset =
                Affine { constant: 0, terms: vec![Term { depth, factor: 64 }] };
        };
        set(body, 1);
        assert!(is_uniform(body));
        set(body, 0);
        assert!(!is_uniform(body));
        let other = launch.clone();
        assert_eq!(joined(launch, &other, &target()), None);
    }
}
