//! The layers of a worker's sandbox as Linux has them.

use std::collections::BTreeMap;

use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, RestrictionStatus, Ruleset, RulesetAttr, RulesetStatus,
    Scope,
};
use rustix::thread::set_no_new_privs;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

/// Why a layer is off.
pub(crate) type Reason = String;

/// The system calls that need no condition: memory, locks, the clock, random numbers, signals
/// to itself, and the end. Reading, writing and mapping have conditions.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
];

/// The processor for which the filter is made: system calls have other numbers on others.
pub(crate) const PROCESSOR: Option<TargetArch> = if cfg!(target_arch = "x86_64") {
    Some(TargetArch::x86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(TargetArch::aarch64)
} else {
    None
};

/// Forbids this thread, and those that it starts, all that Landlock can forbid.
pub(super) fn forbid_files() -> Result<(), Reason> {
    // Without it, neither layer is allowed to an ordinary user.
    set_no_new_privs(true).map_err(|error| error.to_string())?;
    // What the kernel does not know is left out.
    let restrict = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(ABI::V7))?
            .handle_access(AccessNet::from_all(ABI::V7))?
            .scope(Scope::from_all(ABI::V7))?
            .create()?
            .restrict_self()
    };
    enforced(&restrict().map_err(|error| error.to_string())?)
}

/// Why a restriction is not enforced.
pub(crate) fn enforced(status: &RestrictionStatus) -> Result<(), Reason> {
    match (&status.ruleset, &status.landlock) {
        (RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced, _) => Ok(()),
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => {
            Err("it is off in this kernel".to_owned())
        }
        (RulesetStatus::NotEnforced, _) => Err("this kernel does not have it".to_owned()),
    }
}

/// Makes all system calls of all threads fail with `EPERM`, but those that rendering needs.
pub(super) fn filter_calls() -> Result<(), Reason> {
    let processor = PROCESSOR.ok_or("there is no filter for this processor")?;
    let filter = filter(processor).map_err(|error| error.to_string())?;
    apply_filter_all_threads(&filter).map_err(|error| error.to_string())
}

fn filter(processor: TargetArch) -> Result<BpfProgram, seccompiler::BackendError> {
    let argument = |index, operator, value: u32| {
        SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, u64::from(value))
            .and_then(|condition| SeccompRule::new(vec![condition]))
    };
    let is_not_code = || argument(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    let is = |index, value| argument(index, SeccompCmpOp::Eq, value);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_read, vec![is(0, 0)?]);
    rules.insert(libc::SYS_write, vec![is(0, 1)?, is(0, 2)?]);
    rules.insert(libc::SYS_mmap, vec![is_not_code()?]);
    rules.insert(libc::SYS_mprotect, vec![is_not_code()?]);
    // `abort` sends a signal to its own process.
    rules.insert(libc::SYS_tgkill, vec![is(0, std::process::id())?]);
    SeccompFilter::new(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow, processor)?
        .try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_allows_no_call_that_opens_starts_or_traces() {
        let forbidden = [
            libc::SYS_bpf,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_connect,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_io_uring_setup,
            libc::SYS_ioctl,
            libc::SYS_kill,
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_prctl,
            libc::SYS_process_vm_readv,
            libc::SYS_ptrace,
            libc::SYS_seccomp,
            libc::SYS_sendmsg,
            libc::SYS_socket,
        ];
        assert!(forbidden.iter().all(|call| !ALLOWED.contains(call)));
    }

    #[test]
    fn filters_are_made_for_every_processor() {
        for processor in [TargetArch::x86_64, TargetArch::aarch64] {
            let program = filter(processor).expect("a filter");
            assert!(program.len() > ALLOWED.len(), "{} instructions", program.len());
        }
    }
}
