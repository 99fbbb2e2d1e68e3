//! What a driver has reported: errors, and that the device is lost.

use std::sync::{Mutex, MutexGuard, PoisonError};

use girih_tensor::{Error, ErrorKind, Result};

/// A panic elsewhere leaves the data whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sentence of a driver that has no memory left.
pub(crate) fn out_of_memory() -> Error {
    let sentence = "the GPU has not enough free memory: choose a smaller context or model";
    Error::with_kind(ErrorKind::OutOfMemory, sentence)
}

/// What the driver of a device has reported.
#[derive(Debug, Default)]
pub(crate) struct FaultLog(Mutex<Faults>);

#[derive(Debug, Default)]
struct Faults {
    /// The reason for which the device is lost.
    lost: Option<String>,
    /// The first error since the last check.
    error: Option<Error>,
    /// What tests have the driver report.
    #[cfg(test)]
    planned: PlannedFault,
}

/// A fault that a test plans, to be reported by a later check.
#[cfg(test)]
#[derive(Debug, Default)]
struct PlannedFault {
    /// The checks so far.
    checks: usize,
    /// The number of the check that reports it, and whether the device is lost; else its memory is short.
    fault: Option<(usize, bool)>,
}

#[cfg(test)]
impl Faults {
    /// Counts a check; that of the planned number finds the fault.
    fn count(&mut self) {
        let number = self.planned.checks;
        self.planned.checks += 1;
        if let Some((_, is_lost)) = self.planned.fault.take_if(|(at, _)| *at == number) {
            if is_lost {
                self.lost = Some("it was removed".to_owned());
            } else {
                self.error = Some(out_of_memory());
            }
        }
    }
}

impl FaultLog {
    /// Notes an error, unless there is one.
    pub fn note(&self, error: Error) {
        locked(&self.0).error.get_or_insert(error);
    }

    /// Notes that the device is lost.
    pub fn lose(&self, reason: String) {
        locked(&self.0).lost.get_or_insert(reason);
    }

    /// Whether the device is lost; then it computes nothing any more.
    pub fn is_lost(&self) -> bool {
        locked(&self.0).lost.is_some()
    }

    /// Reports what went wrong since the last check of this product.
    ///
    /// # Errors
    /// When the driver reported an error, or the device is lost.
    pub fn check(&self, product: &str) -> Result<()> {
        let mut faults = locked(&self.0);
        #[cfg(test)]
        faults.count();
        if let Some(reason) = &faults.lost {
            let sentence = format!("the GPU {product} is lost ({reason}): load the model again");
            return Err(Error::with_kind(ErrorKind::DeviceFailed, sentence));
        }
        faults.error.take().map_or(Ok(()), Err)
    }

    /// The number of checks so far.
    #[cfg(test)]
    pub fn checks(&self) -> usize {
        locked(&self.0).planned.checks
    }

    /// Plans a fault that the check of this number reports.
    #[cfg(test)]
    pub fn plan(&self, check: usize, is_lost: bool) {
        locked(&self.0).planned.fault = Some((check, is_lost));
    }
}
