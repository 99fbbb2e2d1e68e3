//! The simulator: configures the array for each launch and runs the launch.

use std::collections::HashMap;

use girih_tensor::{Error, Result};

use super::fault::{FaultKind, SimFault};
use super::held::HeldConfiguration;
use super::launch::{HazardCheck, LaunchEnd, LaunchSim};
use super::plan::{LaunchPlan, PreparedSchedule};
use super::store::LaunchMemory;
use super::time::{Cycle, EventOrder};
use super::watch::{LaunchReport, SimEvent, SimReport, SimUnwatched, SimWatch};
use crate::form::schedule::Schedule;
use crate::kernel::KernelTimes;
use crate::memory::{Binding, SimMemory};
use crate::target::Target;

/// A simulated array that runs schedules.
///
/// It remembers two things: the current configuration, because a launch with
/// the same one does not write it again, and the time of each timed launch,
/// because an equal launch takes the same time.
#[derive(Debug)]
pub struct Simulator {
    target: Target,
    table: KernelTimes,
    hazards: bool,
    held: HeldConfiguration,
    timed: HashMap<u64, LaunchReport>,
}

impl Simulator {
    /// Creates an array of this target without a configuration.
    ///
    /// # Errors
    /// When no kernel times are known for its cores.
    pub fn new(target: &Target) -> Result<Simulator> {
        let table = KernelTimes::of(target)?;
        Ok(Simulator {
            target: target.clone(),
            table,
            hazards: true,
            held: HeldConfiguration::default(),
            timed: HashMap::new(),
        })
    }

    /// Replaces the kernel times.
    pub fn with_table(mut self, table: KernelTimes) -> Simulator {
        self.table = table;
        self.timed.clear();
        self
    }

    /// Sets whether runs check for unordered accesses. This doubles the time of runs that compute
    /// values. The default is yes.
    pub fn look_for_hazards(&mut self, look: bool) {
        self.hazards = look;
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The kernel times.
    pub fn table(&self) -> &KernelTimes {
        &self.table
    }

    /// Prepares a schedule for running. This takes longer than a short run.
    ///
    /// # Errors
    /// When it was compiled for another target, or when it is malformed.
    pub fn prepare(&self, schedule: &Schedule) -> Result<PreparedSchedule, SimFault> {
        let malformed = |error: Error| SimFault {
            kind: FaultKind::Malformed,
            cycle: 0,
            sentence: format!("{}: {error}", schedule.name),
        };
        let base = schedule.target.split('@').next();
        if base != self.target.name.split('@').next() {
            let made_for = &schedule.target;
            let sentence = format!("it was made for {made_for}, not for {}", self.target.name);
            return Err(malformed(Error::new(sentence)));
        }
        let plan = |launch| LaunchPlan::new(schedule, launch, &self.target, &self.table);
        let plans = schedule.launches.iter().map(plan).collect::<Result<_>>().map_err(malformed)?;
        Ok(PreparedSchedule { name: schedule.name.clone(), arguments: schedule.arguments.clone(), plans })
    }

    /// Runs all launches of a schedule from one dispatch.
    ///
    /// `bindings` gives the bytes of `memory` for each argument. It may be
    /// empty if `memory` holds no values; then only time is simulated.
    ///
    /// Returns the first fault; memory keeps the contents it had then.
    pub fn run(
        &mut self,
        schedule: &Schedule,
        bindings: &[Binding],
        memory: &mut SimMemory<'_>,
        watch: &mut dyn SimWatch,
        order: EventOrder,
    ) -> Result<SimReport, SimFault> {
        let program = self.prepare(schedule)?;
        self.run_prepared(&program, bindings, memory, watch, order)
    }

    /// Runs a schedule that this array has [prepared](Simulator::prepare).
    ///
    /// # Errors
    /// As [`Simulator::run`].
    pub fn run_prepared(
        &mut self,
        program: &PreparedSchedule,
        bindings: &[Binding],
        memory: &mut SimMemory<'_>,
        watch: &mut dyn SimWatch,
        order: EventOrder,
    ) -> Result<SimReport, SimFault> {
        let mut report = SimReport::new(self.target.cycles(self.target.control.dispatch_us * 1e-6));
        let mut run = RunContext { program, bindings, memory, watch, order };
        for (number, plan) in program.plans.iter().enumerate() {
            let configure = match &plan.registers {
                Some(registers) => {
                    let following = program.plans[number + 1..].iter();
                    let following = following.map_while(|next| next.registers.as_ref());
                    self.held.write(registers, following, &self.target)
                }
                None if self.held.replace(plan.configuration) => 0,
                None => self.configure(plan),
            };
            run.watch.event(report.cycles, &SimEvent::Launch { name: &plan.name, configure });
            report.cycles += configure;
            let launch = self.launch(plan, &mut run, report.cycles)?;
            report.add(launch, configure);
        }
        Ok(report)
    }

    /// Forgets the configuration, as if another program had run.
    pub fn forget(&mut self) {
        self.held.forget();
    }

    /// Cycles to configure the array for a launch: the registers of its tiles
    /// and the programs of its cores.
    fn configure(&self, plan: &LaunchPlan) -> Cycle {
        let control = &self.target.control;
        let tiles = control.configure_us + control.configure_tile_us * plan.tiles as f64;
        self.target.cycles(tiles * 1e-6 + control.configure_byte_ns * plan.program_bytes * 1e-9)
    }

    fn launch(
        &mut self,
        plan: &LaunchPlan,
        run: &mut RunContext<'_, '_>,
        begin: Cycle,
    ) -> Result<LaunchReport, SimFault> {
        let known = matches!(run.memory, SimMemory::TimeOnly)
            && run.order == EventOrder::Earliest
            && !run.watch.wants_all();
        if known && let Some(launch) = self.timed.get(&plan.identity) {
            return Ok(LaunchReport { begin, ..launch.clone() });
        }
        let check = match run.memory {
            SimMemory::Values(_) => HazardCheck::Exact,
            SimMemory::TimeOnly => HazardCheck::ByTile,
        };
        let outcome = self.run_launch(plan, run, begin, check);
        let is_settled = matches!(outcome, Ok(LaunchEnd { is_suspected: false, .. }));
        if self.hazards && check == HazardCheck::ByTile && !is_settled {
            // A check by tile only suspects; the exact one reports the first fault, if there is one.
            let (watch, memory) = (&mut SimUnwatched, &mut SimMemory::TimeOnly);
            let mut again = RunContext { watch, memory, ..*run };
            self.run_launch(plan, &mut again, begin, HazardCheck::Exact)?;
        }
        let launch = outcome?.report;
        if known {
            self.timed.insert(plan.identity, launch.clone());
        }
        Ok(launch)
    }

    fn run_launch(
        &self,
        plan: &LaunchPlan,
        run: &mut RunContext<'_, '_>,
        begin: Cycle,
        check: HazardCheck,
    ) -> Result<LaunchEnd, SimFault> {
        let store = LaunchMemory::new(run.program, plan, run.bindings, run.memory, &self.target)?;
        let mut machine = LaunchSim::new(plan, &self.target, &self.table, store, run.watch, run.order, begin);
        if self.hazards {
            machine.look_for_hazards(run.program, check);
        }
        machine.run()
    }
}

/// The context that all launches of a run share.
struct RunContext<'a, 'm> {
    program: &'a PreparedSchedule,
    bindings: &'a [Binding],
    memory: &'a mut SimMemory<'m>,
    watch: &'a mut dyn SimWatch,
    order: EventOrder,
}
