//! The six passes. Each is a pure function from one form to the next; none
//! calls another, and only tiling searches.

mod mapping;
pub mod partition;
pub mod place;
pub mod route;
pub mod schedule;
pub mod tile;

use std::fmt;

use girih_graph::Graph;
use girih_tensor::{Error, Result};

use crate::Target;
use crate::form::Form;
use crate::form::groups::{Groups, Program};
use crate::form::placed::Placed;
use crate::form::schedule::Schedule;
use crate::form::tiled::Tiled;

pub use mapping::{Mapping, TileRule};
pub use partition::{Attention, Grouping, Policy, Stays, stays};

/// Raised when the passes make another schedule of some program than before:
/// schedules that were kept under an older one are not taken for theirs.
pub const VERSION: u32 = 3;

/// A pass could not meet a limit of the target: news for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The pass.
    pub pass: &'static str,
    /// The program and launch that it was about.
    pub group: String,
    /// What ran out.
    pub resource: String,
    /// How much is needed.
    pub need: u64,
    /// How much there is.
    pub have: u64,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unfit { pass, group, resource, need, have } = self;
        write!(f, "{pass}: {group} needs {need} {resource}; the target has {have}")
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Error {
        Error::new(unfit.to_string())
    }
}

/// Sees every form as it is made: for `--dump`.
pub trait Dump {
    /// A form, of this program (or of the whole graph), as text.
    fn form(&mut self, name: &str, program: &str, text: &dyn fmt::Display);
}

/// Drops every form.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDump;

impl Dump for NoDump {
    fn form(&mut self, _: &str, _: &str, _: &dyn fmt::Display) {}
}

/// Cuts a graph into programs and host work.
///
/// # Errors
/// When the graph has an op that no kernel computes.
pub fn groups(graph: &Graph, target: &Target, mapping: &Mapping, dump: &mut dyn Dump) -> Result<Groups> {
    let groups = partition::partition(graph, target, mapping)?;
    keep(groups, "graph", target, dump)
}

/// Compiles one program.
///
/// # Errors
/// An [`Unfit`] when no tiling of it fits the target.
pub fn compile(program: &Program, target: &Target, dump: &mut dyn Dump) -> Result<Schedule> {
    let mut tiled =
        Tiled { name: program.name.clone(), arguments: program.arguments.clone(), launches: Vec::new() };
    let mut placed =
        Placed { name: program.name.clone(), arguments: program.arguments.clone(), launches: Vec::new() };
    for task in &program.launches {
        let (tiles, places) = fit(program, task, target)?;
        tiled.launches.push(tiles);
        placed.launches.push(places);
    }
    keep(tiled, &program.name, target, dump)?;
    let placed = keep(placed, &program.name, target, dump)?;
    let routed = keep(route::route(placed, target)?, &program.name, target, dump)?;
    keep(schedule::schedule(&routed, target)?, &program.name, target, dump)
}

/// The first tiling of a launch, best first, that can be placed, and its places.
///
/// # Errors
/// When no tiling fits the target.
pub fn fit(
    program: &Program,
    task: &crate::form::groups::Task,
    target: &Target,
) -> Result<(crate::form::tiled::TiledLaunch, crate::form::placed::PlacedLaunch)> {
    let group = format!("{}: {}", program.name, task.name);
    let mut closest: Option<Unfit> = None;
    for tiled in tile::candidates(task, target) {
        match place::place(&group, tiled.clone(), target) {
            Ok(placed) => return Ok((tiled, placed)),
            Err(unfit) => {
                let nearer = closest.as_ref().is_none_or(|known| unfit.need < known.need);
                closest = if nearer { Some(unfit) } else { closest };
            }
        }
    }
    let resource = match task.tiling {
        None => "tilings that divide it".to_owned(),
        Some(tiling) => format!("tilings like the mapping's, {tiling}, that divide it and fit a core"),
    };
    let none = || Unfit { pass: "tile", group, resource, need: 1, have: 0 };
    Err(closest.unwrap_or_else(none).into())
}

/// Shows a form and refuses one with faults: they would be silent corruption.
fn keep<F: Form>(form: F, program: &str, target: &Target, dump: &mut dyn Dump) -> Result<F> {
    dump.form(F::NAME, program, &form);
    match form.faults(target).first() {
        None => Ok(form),
        Some(fault) => {
            let name = F::NAME;
            Err(Error::new(format!(
                "the {name} form of {program} is wrong at {fault}; this is a fault of girih"
            )))
        }
    }
}
