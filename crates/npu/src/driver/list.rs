//! Command lists: a program's commands are written once; what a submission
//! changes are the addresses of its arguments.

use std::sync::Arc;

use super::runtime::ListUse;
use crate::form::schedule::{DmaAddress, Schedule};
use crate::sim::{Prepared, Simulator};
use girih_tensor::{Error, Result};

/// Words of a descriptor that reaches DRAM, as the command processor writes it.
const DESCRIPTOR_WORDS: u64 = 8;

/// Words of an address in a descriptor.
const ADDRESS_WORDS: u64 = 2;

/// A command list that stays with the device.
#[derive(Debug)]
pub(super) struct CommandList {
    pub schedule: Arc<Schedule>,
    pub prepared: Prepared,
    pub words: Words<crate::memory::Binding>,
}

impl CommandList {
    /// The list of a schedule; no argument is bound yet.
    ///
    /// # Errors
    /// When the schedule was made for another target, or is malformed.
    pub fn new(schedule: &Arc<Schedule>, simulator: &Simulator) -> Result<CommandList> {
        let prepared = simulator.prepare(schedule).map_err(Error::from)?;
        Ok(CommandList { schedule: Arc::clone(schedule), prepared, words: Words::of(schedule) })
    }
}

/// Which words of a list are written to bind it, whatever an address is.
#[derive(Debug)]
pub(super) struct Words<A> {
    /// Descriptors that reach each argument.
    descriptors: Vec<u64>,
    bound: Option<Vec<A>>,
}

impl<A: PartialEq + Clone> Words<A> {
    /// Those of a schedule's list.
    pub fn of(schedule: &Schedule) -> Words<A> {
        let mut descriptors = vec![0; schedule.arguments.len()];
        for descriptor in schedule.launches.iter().flat_map(|launch| &launch.descriptors) {
            if let DmaAddress::Argument(argument, _) = descriptor.address
                && let Some(count) = descriptors.get_mut(argument as usize)
            {
                *count += 1;
            }
        }
        Words { descriptors, bound: None }
    }

    /// Words that are written so that the list works on these addresses: all
    /// of its descriptors the first time or if it is rebuilt, else only the
    /// addresses that are not those of the last time.
    pub fn bind(&mut self, addresses: &[A], lists: ListUse) -> u64 {
        let words = match &self.bound {
            Some(bound) if lists == ListUse::Patched => {
                let changed = bound.iter().zip(addresses).map(|(old, new)| old != new);
                let patched = changed.zip(&self.descriptors).filter(|(changed, _)| *changed);
                patched.map(|(_, count)| count * ADDRESS_WORDS).sum()
            }
            _ => self.descriptors.iter().sum::<u64>() * DESCRIPTOR_WORDS,
        };
        self.bound = Some(addresses.to_vec());
        words
    }
}
