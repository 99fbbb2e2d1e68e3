//! The layers of Linux: Landlock for files and ports, and a filter of system calls (seccomp).

use std::collections::BTreeMap;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

use super::allowed::Confinement;
use crate::template::layers::{PROCESSOR, Reason, enforced};
use crate::template::{SandboxLayer, SandboxStates};

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
/// its user, reads and writes only what `allowed` says, and opens no sockets but those to connect to the
/// allowed port. Threads that run already are not held by Landlock, so this comes before they are
/// started, and after sockets are bound. Returns why layers are off; the others are on.
///
/// A port is allowed only if [`can_limit_connections`]; else no connection is.
pub fn confine(allowed: &Confinement) -> SandboxStates {
    // A limit that cannot be set leaves what was there before.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let privileges = set_no_new_privs(true).map_err(|error| error.to_string());
    let port = allowed.connect.filter(|_| can_limit_connections());
    let landlock = privileges.clone().and_then(|()| restrict(allowed, port));
    let seccomp = privileges.and_then(|()| refuse_calls(port));
    BTreeMap::from([(SandboxLayer::Landlock, landlock.err()), (SandboxLayer::Seccomp, seccomp.err())])
}

/// Whether the kernel can limit the ports to which a process connects: Landlock since Linux 6.7.
pub fn can_limit_connections() -> bool {
    let needed = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    needed.handle_access(AccessNet::ConnectTcp).is_ok()
}

/// Restricts files, and TCP where the kernel can.
fn restrict(allowed: &Confinement, port: Option<u16>) -> Result<(), Reason> {
    let abi = ABI::V7;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let run = AccessFs::ReadFile | AccessFs::Execute;
    let control = read | AccessFs::WriteFile | AccessFs::IoctlDev;
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
            .add_rules(path_beneath_rules(&allowed.devices, control))?
            .add_rules(path_beneath_rules(&allowed.write, all))?
            .add_rules(port.map(|port| Ok::<_, RulesetError>(NetPort::new(port, AccessNet::ConnectTcp))))?
            .restrict_self()?;
        Ok(status)
    };
    enforced(&restrict().map_err(|error: RulesetError| error.to_string())?)
}

/// Makes the refused calls of all threads fail with `EPERM`. With a port, TCP may connect; Landlock limits
/// where to.
fn refuse_calls(port: Option<u16>) -> Result<(), Reason> {
    let processor = PROCESSOR.ok_or("there is no filter for this processor")?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|&call| (call, Vec::new())).collect();
    if port.is_some() {
        rules.remove(&libc::SYS_connect);
        rules.extend(all_but_tcp().map_err(|error| error.to_string())?);
    }
    let refusal = SeccompAction::Errno(libc::EPERM as u32);
    let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refusal, processor)
        .and_then(TryInto::try_into)
        .map_err(|error| error.to_string())?;
    apply_filter_all_threads(&filter).map_err(|error| error.to_string())
}

/// Rules that refuse what Landlock's rules of TCP ports do not see: other sockets, and connections that
/// sending opens (TCP Fast Open).
fn all_but_tcp() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let is = |argument, operator, value: i32| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, u64::from(value as u32))
    };
    let rule = |conditions: Vec<Result<SeccompCondition, BackendError>>| {
        SeccompRule::new(conditions.into_iter().collect::<Result<_, _>>()?)
    };
    const TYPES: u64 = 0xf; // the other bits of the type are flags
    let mut sockets = vec![
        rule(vec![is(0, SeccompCmpOp::Ne, libc::AF_INET), is(0, SeccompCmpOp::Ne, libc::AF_INET6)])?,
        // Multipath TCP is another protocol.
        rule(vec![is(2, SeccompCmpOp::Ne, 0), is(2, SeccompCmpOp::Ne, libc::IPPROTO_TCP)])?,
    ];
    for kind in (0..=TYPES as i32).filter(|&kind| kind != libc::SOCK_STREAM) {
        sockets.push(rule(vec![is(1, SeccompCmpOp::MaskedEq(TYPES), kind)])?);
    }
    let fast_open =
        |flags| rule(vec![is(flags, SeccompCmpOp::MaskedEq(libc::MSG_FASTOPEN as u64), libc::MSG_FASTOPEN)]);
    Ok(BTreeMap::from([
        (libc::SYS_socket, sockets),
        (libc::SYS_sendto, vec![fast_open(3)?]),
        (libc::SYS_sendmsg, vec![fast_open(2)?]),
        (libc::SYS_sendmmsg, vec![fast_open(3)?]),
    ]))
}
