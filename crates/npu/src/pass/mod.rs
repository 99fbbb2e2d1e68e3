//! The six passes. Each is a pure function from one form to the next; none
//! calls another, and only tiling searches. At last, launches that are alike are fused.

mod append;
mod feed;
mod fuse;
mod mapping;
mod padding;
pub mod partition;
pub mod place;
mod policy;
mod resident;
pub mod route;
pub mod schedule;
mod site;
pub mod tile;
mod transfer;
mod unfit;

use std::fmt;

use girih_graph::Graph;
use girih_tensor::{Error, Result};

use crate::form::PassForm;
use crate::form::groups::{ArrayProgram, Groups, KernelLaunch};
use crate::form::placed::{Placed, PlacedLaunch};
use crate::form::schedule::Schedule;
use crate::form::tiled::{Tiled, TiledLaunch};
use crate::target::Target;

pub use fuse::FUSED;
pub use mapping::{ArrayMapping, ArrayWeights, TileRule};
pub use policy::{AttentionPlacement, Grouping, Policy};
pub use site::{array_split, without_program};
pub use unfit::Unfit;

/// The version of the passes. Increase it when they produce a different schedule
/// for any program, so that cached schedules of older versions are not used.
pub const VERSION: u32 = 12;

/// The version of simulated times. Increase it when a program takes another time, so
/// that kept groupings are not used.
pub const TIMES_VERSION: u32 = 1;

/// Receives every form, for `--dump`.
pub trait Dump {
    /// Receives a form of a program, or of the whole graph, as text.
    fn form(&mut self, name: &str, program: &str, text: &dyn fmt::Display);
}

/// Ignores every form.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDump;

impl Dump for NoDump {
    fn form(&mut self, _: &str, _: &str, _: &dyn fmt::Display) {}
}

/// Partitions a graph into programs of the array and nodes of the host.
///
/// # Errors
/// When a value is too large for the array.
pub fn groups(graph: &Graph, target: &Target, mapping: &ArrayMapping, dump: &mut dyn Dump) -> Result<Groups> {
    let groups = partition::partition(graph, target, mapping)?;
    checked(groups, "graph", target, dump)
}

/// Compiles one program.
///
/// # Errors
/// An [`Unfit`] when no tiling of a launch fits the target.
pub fn compile(program: &ArrayProgram, target: &Target, dump: &mut dyn Dump) -> Result<Schedule> {
    let (name, arguments) = (program.name.clone(), program.arguments.clone());
    let fitted = program.launches.iter().map(|launch| fit(program, launch, target));
    let (tiled, placed) = fitted.collect::<Result<(Vec<_>, Vec<_>)>>()?;
    let tiled = Tiled { name: name.clone(), arguments: arguments.clone(), launches: tiled };
    checked(tiled, &program.name, target, dump)?;
    let placed = checked(Placed { name, arguments, launches: placed }, &program.name, target, dump)?;
    let routed = checked(route::route(placed, target)?, &program.name, target, dump)?;
    let scheduled = schedule::schedule(&routed, target)?;
    let launches = fuse::fuse(program, scheduled.launches, target);
    let schedule = checked(Schedule { launches, ..scheduled }, &program.name, target, dump)?;
    match resident::overloaded_switch(&schedule.launches, target) {
        None => Ok(schedule),
        Some((tile, sentence)) => Err(Error::new(format!(
            "{}: resident launches together do not fit the switch of tile {tile}: {sentence}",
            program.name
        ))),
    }
}

/// Returns the first tiling of a launch, best first, that can be placed, routed and
/// scheduled, and its placement.
///
/// # Errors
/// When no tiling fits the target.
pub fn fit(
    program: &ArrayProgram,
    launch: &KernelLaunch,
    target: &Target,
) -> Result<(TiledLaunch, PlacedLaunch)> {
    let group = format!("{}: {}", program.name, launch.name);
    let mut closest: Option<Unfit> = None;
    let mut refused: Option<Error> = None;
    for tiled in tile::candidates(launch, target) {
        match place::place(&group, tiled.clone(), target) {
            // The only tiling: later passes say what does not fit.
            Ok(placed) if launch.tiling.is_some() => return Ok((tiled, placed)),
            Ok(placed) => match scheduled(program, placed.clone(), target) {
                Ok(_) => return Ok((tiled, placed)),
                Err(error) => refused = refused.or(Some(error)),
            },
            Err(unfit) => {
                let nearer = closest.as_ref().is_none_or(|known| unfit.need < known.need);
                closest = if nearer { Some(unfit) } else { closest };
            }
        }
    }
    let resource = match launch.tiling {
        None => "tilings that divide it".to_owned(),
        Some(tiling) => format!("tilings like the mapping's, {tiling}, that divide it and fit a core"),
    };
    let none = || Unfit { pass: "tile", group, resource, need: 1, have: 0 };
    Err(refused.unwrap_or_else(|| closest.unwrap_or_else(none).into()))
}

/// Routes and schedules one launch of a program.
fn scheduled(program: &ArrayProgram, placed: PlacedLaunch, target: &Target) -> Result<Schedule> {
    let (name, arguments) = (program.name.clone(), program.arguments.clone());
    let placed = Placed { name, arguments, launches: vec![placed] };
    schedule::schedule(&route::route(placed, target)?, target)
}

/// The words of an error that a form breaks a rule.
const BUG: &str = "this is a bug in girih";

/// Whether an error of [`compile`] says that a form breaks a rule, instead of what does not fit.
pub fn is_broken_rule(error: &Error) -> bool {
    error.to_string().contains(BUG)
}

/// Passes a form to `dump` and refuses it if it has faults, which would corrupt
/// results silently.
fn checked<F: PassForm>(form: F, program: &str, target: &Target, dump: &mut dyn Dump) -> Result<F> {
    dump.form(F::NAME, program, &form);
    match form.faults(target).first() {
        None => Ok(form),
        Some(fault) => {
            let name = F::NAME;
            Err(Error::new(format!("the {name} form of {program} breaks a rule; {BUG}: {fault}")))
        }
    }
}
