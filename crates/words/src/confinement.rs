//! What the kernel forbids a whole process that serves strangers, by the layers that also confine
//! the worker of chat templates: Landlock and a filter of system calls (seccomp).
//!
//! The process has to start workers again when they end, so it may run programs, but Landlock lets
//! it run only those that it names. The filter refuses calls that no server needs, rather than
//! allowing a list: threads, files and sockets of a server need many calls, which also differ
//! between kernels and C libraries.

use std::collections::BTreeMap;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
    path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter_all_threads};

use crate::template::sandbox::{PROCESSOR, Reason, enforced};
use crate::template::{SandboxLayer, SandboxStates};

/// What a process may still do with files. Paths that do not exist count for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Files and folders that it may read.
    pub read: Vec<PathBuf>,
    /// Folders in which it may also create, change and remove files.
    pub write: Vec<PathBuf>,
    /// Programs that it may run, with the loaders that they need.
    pub run: Vec<PathBuf>,
}

/// Where libraries are, and what the kernel tells of the machine.
const SYSTEM_PATHS: [&str; 7] =
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/proc", "/sys"];

/// The loaders of programs, which the kernel runs with them.
const LOADERS: [&str; 4] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];

/// The calls that are refused: connections to others and new sockets, control of other processes
/// and of the kernel, other name spaces, and rings of calls that a filter does not see.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_connect,
    libc::SYS_delete_module,
    libc::SYS_execveat,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_listen,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_socket,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Confines this process: it gains no privileges, leaves no core dump, cannot be traced by others of
/// its user, reads and writes only what `allowed` says, and opens no sockets. Threads that run
/// already are not held by Landlock, so this comes before they are started, and after sockets are
/// bound. Returns why layers are off; the others are on.
pub fn confine(allowed: &Confinement) -> SandboxStates {
    // A limit that cannot be set leaves what was there before.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let privileges = set_no_new_privs(true).map_err(|error| error.to_string());
    let landlock = privileges.clone().and_then(|()| restrict(allowed));
    let seccomp = privileges.and_then(|()| refuse_calls());
    BTreeMap::from([(SandboxLayer::Landlock, landlock.err()), (SandboxLayer::Seccomp, seccomp.err())])
}

/// Restricts files, and TCP where the kernel can.
fn restrict(allowed: &Confinement) -> Result<(), Reason> {
    let abi = ABI::V7;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let run = AccessFs::ReadFile | AccessFs::Execute;
    let all = AccessFs::from_all(abi) & !AccessFs::Execute;
    let restrict = || {
        // What the kernel does not know is left out.
        let status = Ruleset::default()
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rules(path_beneath_rules(SYSTEM_PATHS, read))?
            .add_rules(path_beneath_rules(["/dev/null"], read | AccessFs::WriteFile))?
            .add_rules(path_beneath_rules(LOADERS, run))?
            .add_rules(path_beneath_rules(&allowed.run, run))?
            .add_rules(path_beneath_rules(&allowed.read, read))?
            .add_rules(path_beneath_rules(&allowed.write, all))?
            .restrict_self()?;
        Ok(status)
    };
    enforced(&restrict().map_err(|error: RulesetError| error.to_string())?)
}

/// Makes the refused calls of all threads fail with `EPERM`.
fn refuse_calls() -> Result<(), Reason> {
    let processor = PROCESSOR.ok_or("there is no filter for this processor")?;
    let rules = REFUSED.iter().map(|&call| (call, Vec::new())).collect();
    let refusal = SeccompAction::Errno(libc::EPERM as u32);
    let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refusal, processor)
        .and_then(TryInto::try_into)
        .map_err(|error| error.to_string())?;
    apply_filter_all_threads(&filter).map_err(|error| error.to_string())
}
