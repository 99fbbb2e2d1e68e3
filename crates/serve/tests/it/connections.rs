//! Time limits, places, and the end of connections.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use girih_serve::listener::ListenerLimits;

use crate::guarded_server::{Setup, TestServer};
use crate::raw_client::{assert_is_well, connect, get, read_response};

/// The time until the server ends a connection.
fn time_to_end(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    begun.elapsed()
}

fn is_about(found: Duration, millis: u64) -> bool {
    (Duration::from_millis(millis - 100)..Duration::from_millis(millis + 1200)).contains(&found)
}

#[test]
fn a_connection_serves_several_requests_and_ends_when_idle() {
    let server = TestServer::start(Setup::default());
    let mut stream = connect(server.address);
    let request = format!("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let mut answered = Instant::now();
    for _ in 0..3 {
        stream.write_all(request.as_bytes()).expect("the server reads");
        assert_eq!(read_response(&mut stream).expect("a response").status, 200);
        answered = Instant::now();
        // Longer than the time for headers.
        thread::sleep(Duration::from_millis(800));
    }
    time_to_end(&mut stream);
    let idle = answered.elapsed();
    assert!(is_about(idle, 1500), "an idle connection ended after {idle:?}");
}

#[test]
fn slow_headers_end_the_connection() {
    let server = TestServer::start(Setup::default());
    let mut silent = connect(server.address);
    let taken = time_to_end(&mut silent);
    assert!(is_about(taken, 600), "a silent connection ended after {taken:?}");

    let mut slow = connect(server.address);
    let begun = Instant::now();
    slow.write_all(b"GET /health HTTP/1.1\r\n").expect("the server reads");
    let mut writer = slow.try_clone().expect("a clone");
    thread::spawn(move || {
        while writer.write_all(b"a").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    let response = read_response(&mut slow).expect("a response");
    assert_eq!(response.status, 408);
    assert!(is_about(begun.elapsed(), 600), "slow headers ended after {:?}", begun.elapsed());
}

#[test]
fn a_slow_body_is_answered_with_408() {
    let server = TestServer::start(Setup { body_time: Duration::from_millis(600), ..Setup::default() });
    let mut slow = connect(server.address);
    let begun = Instant::now();
    write!(
        slow,
        "POST /length HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n[",
        server.address
    )
    .expect("the server reads");
    let response = read_response(&mut slow).expect("a response");
    assert_eq!(response.status, 408, "{}", response.body);
    assert!(is_about(begun.elapsed(), 600), "a slow body ended after {:?}", begun.elapsed());
    assert!(response.body.contains("the body did not arrive in time"), "{}", response.body);
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let server = TestServer::start(Setup::default());
    let mut stream = connect(server.address);
    write!(stream, "GET /endless HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).expect("the server reads");
    let mut some = [0; 1000];
    stream.read_exact(&mut some).expect("it begins");
    assert_eq!(server.drain.requests(), 1);
    let begun = Instant::now();
    while server.drain.requests() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "the request still runs");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() > Duration::from_millis(400), "it ended after {:?}", begun.elapsed());
}

/// Reads an endless response, 2 MiB in each tenth of a second, for at most three seconds; returns whether the
/// server ended it.
fn is_cut_off(write_bytes_per_second: u64) -> bool {
    let mut setup = Setup::default();
    setup.options.limits.write_bytes_per_second = write_bytes_per_second;
    let server = TestServer::start(setup);
    let mut stream = connect(server.address);
    write!(stream, "GET /endless HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).expect("the server reads");
    let begun = Instant::now();
    let mut some = vec![0; 2 << 20];
    while begun.elapsed() < Duration::from_secs(3) {
        if stream.read_exact(&mut some).is_err() {
            return true;
        }
        thread::sleep(Duration::from_millis(100));
        if server.drain.requests() == 0 {
            return true;
        }
    }
    false
}

#[test]
fn a_client_that_reads_too_slowly_is_cut_off() {
    // It reads 20 MiB per second, without a pause of the length that is allowed.
    assert!(is_cut_off(1 << 30));
    assert!(!is_cut_off(1 << 20), "it is fast enough");
}

#[test]
fn a_client_that_leaves_ends_its_request_though_it_sent_more() {
    let server = TestServer::start(Setup::default());
    for more in ["", "X", "GET /minute HTTP/1.1\r\n"] {
        let mut stream = connect(server.address);
        write!(stream, "GET /minute HTTP/1.1\r\nHost: {}\r\n\r\n{more}", server.address)
            .expect("the server reads");
        while server.drain.requests() == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        // The request goes on as long as the client is there.
        thread::sleep(Duration::from_millis(700));
        assert_eq!(server.drain.requests(), 1, "{more:?}");
        drop(stream);
        let begun = Instant::now();
        while server.drain.requests() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(5), "the request still runs, {more:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_client_that_closes_its_sending_side_has_left() {
    let server = TestServer::start(Setup::default());
    let mut stream = connect(server.address);
    write!(stream, "GET /minute HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).expect("the server reads");
    while server.drain.requests() == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    assert!(time_to_end(&mut stream) < Duration::from_secs(5));
    assert_eq!(server.drain.requests(), 0);
}

#[test]
fn a_panic_is_an_error_of_its_request_only() {
    let server = TestServer::start(Setup::default());
    assert_eq!(get(server.address, "/panic", "").status, 500);
    assert_is_well(server.address);
    let begun = Instant::now();
    while server.drain.requests() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "a request still runs");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn silent_connections_give_up_their_places() {
    let mut setup = Setup::default();
    setup.options.limits =
        ListenerLimits { connections: 20, headers: Duration::from_secs(10), ..setup.options.limits };
    let server = TestServer::start(setup);
    let mut silent: Vec<TcpStream> = (0..50).map(|_| connect(server.address)).collect();
    assert_is_well(server.address);
    assert!(time_to_end(&mut silent[0]) < Duration::from_secs(5), "the first one lost its place");
}

#[test]
fn a_connection_that_lingers_gives_up_its_place() {
    let mut setup = Setup::default();
    setup.options.limits.connections = 1;
    let server = TestServer::start(setup);
    let request = format!("GET /health HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address);
    let mut answered = connect(server.address);
    answered.write_all(request.as_bytes()).expect("the server reads");
    assert_eq!(read_response(&mut answered).expect("a response").status, 200);
    // The first client has not closed its connection.
    assert_is_well(server.address);
}

#[test]
fn a_server_full_of_requests_says_so() {
    let mut setup = Setup::default();
    setup.options.limits.connections = 2;
    let server = TestServer::start(setup);
    let mut running = [connect(server.address), connect(server.address)];
    for stream in &mut running {
        write!(stream, "GET /minute HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).expect("the server reads");
    }
    while server.drain.requests() < 2 {
        thread::sleep(Duration::from_millis(5));
    }
    let begun = Instant::now();
    let mut stream = connect(server.address);
    let response = read_response(&mut stream).expect("a response");
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(server.drain.requests(), 2, "they go on");
}

#[test]
fn closing_ends_idle_connections_and_cuts_off_the_others() {
    let mut server = TestServer::start(Setup::default());
    let address = server.address;
    let endless = thread::spawn(move || {
        let mut stream = connect(address);
        write!(stream, "GET /endless HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("the server reads");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("a response");
        // What follows takes no memory; its end may be an error.
        let _ = io::copy(&mut stream, &mut io::sink());
        status
    });
    let second = thread::spawn(move || get(address, "/second", ""));
    let mut idle = connect(address);
    while server.drain.requests() < 2 {
        thread::sleep(Duration::from_millis(5));
    }
    let begun = Instant::now();
    server.close();
    assert!(begun.elapsed() < Duration::from_secs(3), "the end took {:?}", begun.elapsed());
    assert_eq!(&endless.join().expect("a response"), b"HTTP/1.1 200");
    drop(second.join());
    assert_eq!(idle.read(&mut [0]).expect("an end"), 0);
    assert!(TcpStream::connect(address).is_err(), "the socket is closed");
}
