//! Clients that leave at random moments, and more clients than there are places: nothing of them is
//! left, and refusals are quick.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use girih_serve::Server;
use serde_json::json;

use crate::client::Exchange;
use crate::model_server::options;
use crate::raw_client::assert_is_well;

/// A request whose reply is 400 tokens long, whole or streamed.
fn body(is_stream: bool) -> String {
    let ban = json!({"1": -100, "2": -100});
    let prompt = "Once upon a time";
    json!({"prompt": prompt, "stream": is_stream, "max_tokens": 400, "logit_bias": ban, "temperature": 0})
        .to_string()
}

/// The numbers of a generator that only has to be different each time: the splitmix64 of Steele et al.
struct Moments(u64);

impl Moments {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// The connections that the system has for this port, without the listening socket.
fn connections(address: SocketAddr) -> usize {
    let port = format!(":{:04X}", address.port());
    let table = fs::read_to_string("/proc/self/net/tcp").expect("a table");
    let is_open = |line: &&str| {
        let mut columns = line.split_whitespace();
        let is_ours = columns.nth(1).is_some_and(|local| local.ends_with(&port));
        // Neither LISTEN nor TIME_WAIT, which no process holds.
        is_ours && columns.nth(1).is_some_and(|state| state != "0A" && state != "06")
    };
    table.lines().filter(is_open).count()
}

/// The descriptors of this process.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("a folder").count()
}

/// Leaves at a random moment: while it sends, before the reply, or within it.
fn leave(address: SocketAddr, seed: u64) {
    let mut moments = Moments(seed);
    let body = body(moments.below(4) != 0);
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         \r\n{body}",
        body.len()
    );
    let sent = match moments.below(4) {
        0 => moments.below(request.len() as u64) as usize,
        _ => request.len(),
    };
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream.write_all(&request.as_bytes()[..sent]).expect("the server reads");
    stream.set_read_timeout(Some(Duration::from_millis(1 + moments.below(60)))).expect("a timeout");
    let mut left = moments.below(20_000) as usize;
    let mut buffer = [0; 1024];
    while left > 0 {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => left = left.saturating_sub(count),
            _ => break,
        }
    }
}

/// Lets `count` clients leave, 16 at a time, and checks that nothing of them is left.
fn clients_leave(count: u64) {
    let server = Server::start(options()).expect("a server");
    let address = server.address();
    let clients: Vec<_> = (0..16)
        .map(|first| thread::spawn(move || (first..count).step_by(16).for_each(|seed| leave(address, seed))))
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("a client"));
    let state = server.state();
    let begun = Instant::now();
    let activity = loop {
        let loaded = state.models.loaded();
        let activity = loaded[0].activity;
        let left = [
            activity.running,
            activity.waiting,
            activity.suspended,
            activity.blocks_in_use,
            state.live_generations(),
            state.drain.requests(),
            connections(address),
        ];
        if left == [0; 7] {
            break activity;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "left are {left:?}");
        thread::sleep(Duration::from_millis(10));
    };
    // Many clients leave the queue before their reply begins.
    assert!(activity.blocks > 0 && activity.prompts > count / 10, "{activity:?}");
    assert_is_well(address);
    server.stop();
}

#[test]
fn clients_that_leave_leave_nothing() {
    clients_leave(100);
}

/// `cargo test --release --locked -p girih-serve --test it two_thousand -- --ignored --nocapture`
#[test]
#[ignore = "takes some minutes"]
fn two_thousand_clients_that_leave_leave_nothing() {
    clients_leave(16);
    let before = descriptors();
    clients_leave(2000);
    let after = descriptors();
    println!("{before} descriptors before, {after} after");
    assert!(after <= before, "{before} descriptors before, {after} after");
}

/// Four times as many clients as there are places; returns the times of refusals.
fn overload() -> Vec<Duration> {
    let mut options = options();
    options.models[0].run_options.sequences = 2;
    options.models[0].run_options.waiting = 2;
    let server = Server::start(options).expect("a server");
    let address = server.address();
    let client = move || {
        let mut refusals = Vec::new();
        let mut answered = 0;
        while answered < 2 {
            let begun = Instant::now();
            let reply = Exchange::begin(address, "POST /v1/completions", &[], &body(false)).finish();
            match reply.status {
                200 => answered += 1,
                429 | 503 => {
                    refusals.push(begun.elapsed());
                    let seconds = reply.header("retry-after").and_then(|value| value.parse::<u32>().ok());
                    assert!(seconds.is_some_and(|seconds| (1..60).contains(&seconds)), "{reply:?}");
                    thread::sleep(Duration::from_millis(20));
                }
                _ => panic!("{reply:?}"),
            }
        }
        refusals
    };
    let clients: Vec<_> = (0..16).map(|_| thread::spawn(client)).collect();
    let mut times: Vec<Duration> =
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect();
    times.sort();
    server.stop();
    times
}

#[test]
fn more_clients_than_places_are_refused_at_once() {
    let times = overload();
    assert!(!times.is_empty(), "nobody was refused");
    // Without optimization, and beside other tests.
    assert!(times[times.len() / 2] < Duration::from_millis(200), "{times:?}");
}

/// `cargo test --release --locked -p girih-serve --test it refusals_take -- --ignored --nocapture`
#[test]
#[ignore = "measures time"]
fn refusals_take_less_than_50_ms() {
    let times = overload();
    let p99 = times[times.len() * 99 / 100];
    println!("{} refusals, the median took {:?}, p99 {p99:?}", times.len(), times[times.len() / 2]);
    assert!(p99 < Duration::from_millis(50), "{p99:?}");
}
