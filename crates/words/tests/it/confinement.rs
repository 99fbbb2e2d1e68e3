//! What a confined process can and cannot do, tried in a process of its own.

use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use girih_words::confinement::{Confinement, can_limit_connections, confine};
use girih_words::template::SandboxLayer;

/// A folder with `read`, `write` and `other` in it.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("confinement")
}

#[test]
fn a_confined_process_keeps_only_what_it_was_left() {
    for name in ["read", "write", "other"] {
        fs::create_dir_all(folder().join(name)).expect("a folder");
        fs::write(folder().join(name).join("file"), "text").expect("a file");
    }
    in_a_process_of_its_own("confines_itself");
}

#[test]
fn a_process_that_may_connect_reaches_one_port_by_tcp_only() {
    in_a_process_of_its_own("confines_itself_to_a_port");
}

fn in_a_process_of_its_own(test: &str) {
    let program = std::env::current_exe().expect("the test's own program");
    let test = format!("confinement::{test}");
    let child = [&test, "--exact", "--ignored", "--nocapture", "--test-threads=1"];
    let output = Command::new(program).args(child).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    println!("{text}");
}

#[test]
#[ignore = "confines its process; a test above runs it in a process of its own"]
fn confines_itself_to_a_port() {
    let listen = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (collector, other) = (listen(), listen());
    let address = |socket: &TcpListener| socket.local_addr().expect("an address");
    let allowed = Confinement { connect: Some(address(&collector).port()), ..Confinement::default() };
    let states = confine(&allowed);
    println!("{states:?}");
    if states[&SandboxLayer::Seccomp].is_some() || states[&SandboxLayer::Landlock].is_some() {
        return;
    }
    assert_eq!(TcpStream::connect(address(&collector)).is_ok(), can_limit_connections());
    assert!(TcpStream::connect(address(&other)).is_err());
    assert!(TcpListener::bind("127.0.0.1:0").is_err() && UdpSocket::bind("127.0.0.1:0").is_err());
    assert!(UnixDatagram::unbound().is_err());
}

#[test]
#[ignore = "confines its process; the test above runs it in a process of its own"]
fn confines_itself() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("an address");
    let program = std::env::current_exe().expect("the test's own program");
    let allowed = Confinement {
        read: vec![folder().join("read"), folder().join("missing")],
        write: vec![folder().join("write")],
        devices: Vec::new(),
        run: vec![program.clone()],
        connect: None,
    };
    let states = confine(&allowed);
    println!("{states:?}");
    let status = fs::read_to_string("/proc/self/status").expect("what the kernel tells can be read");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    if states[&SandboxLayer::Seccomp].is_none() {
        assert!(TcpListener::bind("127.0.0.1:0").is_err() && TcpStream::connect(address).is_err());
        assert!(std::os::unix::net::UnixStream::pair().is_ok(), "pairs connect to nobody");
    }
    if states[&SandboxLayer::Landlock].is_none() {
        // A thread that starts now is held, too.
        let tried = std::thread::spawn(try_files).join().expect("a thread");
        assert_eq!(tried, [true, true, true, false, false, false, false], "{tried:?}");
        assert!(Command::new("/bin/sh").args(["-c", "true"]).status().is_err());
    }
    let own =
        Command::new(program).args(["--list"]).env_clear().output().expect("the program may run itself");
    assert!(own.status.success() && !own.stdout.is_empty(), "{own:?}");
}

/// What succeeds: reading and writing what is allowed, then what is not.
fn try_files() -> [bool; 7] {
    let path = |name: &str| folder().join(name);
    [
        fs::read(path("read/file")).is_ok(),
        fs::write(path("write/new"), "text")
            .and_then(|()| fs::rename(path("write/new"), path("write/file")))
            .is_ok(),
        fs::read_dir(path("write")).is_ok(),
        fs::write(path("read/new"), "text").is_ok(),
        fs::read(path("other/file")).is_ok(),
        fs::read("/etc/passwd").is_ok(),
        fs::remove_file(path("read/file")).is_ok(),
    ]
}
