//! Command lists: the commands of a program are written once; a submission
//! changes only the addresses of its arguments.

use std::sync::Arc;

use super::runtime::ListUse;
use crate::form::schedule::{DmaAddress, Schedule};
use crate::sim::{PreparedSchedule, Simulator};
use girih_tensor::{Error, Result};

/// Words of a DRAM descriptor, as the command processor writes it.
const DESCRIPTOR_WORDS: u64 = 8;

/// Words of an address in a descriptor.
const ADDRESS_WORDS: u64 = 2;

/// A command list on the device.
#[derive(Debug)]
pub(super) struct CommandList {
    pub schedule: Arc<Schedule>,
    pub prepared: PreparedSchedule,
    pub words: ListAddresses<crate::memory::Binding>,
}

impl CommandList {
    /// Creates the list of a schedule, with no argument bound.
    ///
    /// # Errors
    /// When the schedule was compiled for another target, or is malformed.
    pub fn new(schedule: &Arc<Schedule>, simulator: &Simulator) -> Result<CommandList> {
        let prepared = simulator.prepare(schedule).map_err(Error::from)?;
        Ok(CommandList { schedule: Arc::clone(schedule), prepared, words: ListAddresses::of(schedule) })
    }
}

/// The addresses that a list is bound to, and the words written to bind it. `A`
/// is the type of an address.
#[derive(Debug)]
pub(super) struct ListAddresses<A> {
    /// The number of descriptors of each argument.
    descriptors: Vec<u64>,
    bound: Option<Vec<A>>,
}

impl<A: PartialEq + Clone> ListAddresses<A> {
    /// Creates the unbound addresses of a list.
    pub fn of(schedule: &Schedule) -> ListAddresses<A> {
        let mut descriptors = vec![0; schedule.arguments.len()];
        for descriptor in schedule.launches.iter().flat_map(|launch| &launch.descriptors) {
            if let DmaAddress::Argument(argument, _) = descriptor.address
                && let Some(count) = descriptors.get_mut(argument as usize)
            {
                *count += 1;
            }
        }
        ListAddresses { descriptors, bound: None }
    }

    /// Binds the list and returns the number of words written: all descriptors
    /// the first time or if lists are rebuilt, else only the changed addresses.
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
