//! The priority of threads.

/// The lowest priority of ordinary threads (`nice` 19).
const LOWEST_PRIORITY: i32 = 19;

/// Gives the calling thread the lowest priority, so that it runs almost only on idle CPUs.
/// Does nothing where the call would change the priority of the whole process.
pub(crate) fn set_lowest_priority() {
    // Linux sets the priority of a thread with the call for processes, and never refuses a lower one.
    if cfg!(target_os = "linux") {
        let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_gets_the_lowest_priority() {
        let own = || rustix::process::getpriority_process(None).unwrap();
        let before = own();
        std::thread::spawn(move || {
            set_lowest_priority();
            assert_eq!(own(), LOWEST_PRIORITY);
        })
        .join()
        .unwrap();
        assert_eq!(own(), before);
    }
}
