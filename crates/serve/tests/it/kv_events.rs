//! Events of the KV cache, read by a subscriber that speaks ZMTP as ZeroMQ's does.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use girih_serve::access::ApiKeys;
use girih_serve::{KvEventsOptions, Server};
use serde_json::{Value, json};

use crate::client::Exchange;
use crate::model_server::{get, options, post};

/// A client of a socket for events.
struct ZmqClient(TcpStream);

impl ZmqClient {
    fn connect(address: SocketAddr, kind: &str) -> ZmqClient {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut greeting = [0; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).unwrap();
        let mut client = ZmqClient(stream);
        assert_eq!(client.bytes(64)[..12], [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1]);
        let ready =
            [b"\x05READY\x0bSocket-Type", &(kind.len() as u32).to_be_bytes()[..], kind.as_bytes()].concat();
        client.send(4, &ready);
        client
    }

    /// A subscriber to all topics that begin with this.
    fn subscribe(address: SocketAddr, topic: &str) -> ZmqClient {
        let mut client = ZmqClient::connect(address, "SUB");
        assert_eq!(client.frame().0, 4, "READY");
        client.send(0, &[b"\x01", topic.as_bytes()].concat());
        // The answer to a PING comes when the subscription has been read.
        client.send(4, b"\x04PING\x00\x01hi");
        assert_eq!(client.frame(), (4, b"\x04PONGhi".to_vec()));
        client
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn send(&mut self, flags: u8, body: &[u8]) {
        let head = [flags, body.len() as u8];
        self.0.write_all(&[&head, body].concat()).unwrap();
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let flags = self.bytes(1)[0];
        let length = match flags & 2 {
            0 => usize::from(self.bytes(1)[0]),
            _ => u64::from_be_bytes(self.bytes(8).try_into().unwrap()) as usize,
        };
        (flags & !2, self.bytes(length))
    }

    /// The frames of the next message.
    fn message(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame();
            frames.push(body);
            if flags & 1 == 0 {
                return frames;
            }
        }
    }

    /// The topic, the number and the events of the next message.
    fn events(&mut self) -> (String, u64, Vec<Value>) {
        let [topic, number, payload] = &self.message()[..] else { panic!("a message has three frames") };
        let batch = unpacked(&mut &payload[..]);
        assert!(batch[0].as_f64().unwrap() > 1e9, "seconds since 1970");
        assert_eq!(batch[2], json!(0));
        let number = u64::from_be_bytes(number[..].try_into().unwrap());
        (String::from_utf8(topic.clone()).unwrap(), number, batch[1].as_array().unwrap().clone())
    }
}

/// The value of MessagePack at the front.
fn unpacked(bytes: &mut &[u8]) -> Value {
    let mark = take(bytes, 1)[0];
    match mark {
        0..0x80 => json!(mark),
        0x80..0x90 => {
            let pairs =
                (0..mark & 15).map(|_| (unpacked(bytes).as_str().unwrap().to_owned(), unpacked(bytes)));
            Value::Object(pairs.collect())
        }
        0x90..0xa0 => (0..mark & 15).map(|_| unpacked(bytes)).collect(),
        0xa0..0xc0 => text(bytes, usize::from(mark & 31)),
        0xc0 => Value::Null,
        0xcb => json!(f64::from_be_bytes(take(bytes, 8).try_into().unwrap())),
        0xcc..=0xcf => json!(number(bytes, 1 << (mark - 0xcc))),
        0xd9 => {
            let length = number(bytes, 1) as usize;
            text(bytes, length)
        }
        0xdc => (0..number(bytes, 2)).map(|_| unpacked(bytes)).collect(),
        _ => panic!("{mark:#x}"),
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (front, rest) = bytes.split_at(count);
    *bytes = rest;
    front
}

fn number(bytes: &mut &[u8], count: usize) -> u64 {
    take(bytes, count).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn text(bytes: &mut &[u8], count: usize) -> Value {
    json!(std::str::from_utf8(take(bytes, count)).unwrap())
}

fn kv_events() -> KvEventsOptions {
    let any = || "tcp://127.0.0.1:0".parse().unwrap();
    KvEventsOptions {
        address: any(),
        replay: Some(any()),
        pod: Some("one".to_owned()),
        is_known_to_be_open: false,
    }
}

fn server(keys: Option<&str>) -> (Server, SocketAddr, SocketAddr) {
    let mut options = options();
    options.kv_events = Some(kv_events());
    options.api_keys = keys.map(|keys| ApiKeys::parse(keys.as_bytes()).unwrap());
    let server = Server::start(options).unwrap();
    let (events, replay) = server.kv_events_addresses().unwrap();
    (server, events, replay.unwrap())
}

/// Asks for a reply with a prompt of `tokens` tokens, the first of which is this one.
fn prompt(first: u32, tokens: u32) -> Value {
    let ids: Vec<u32> = std::iter::once(first).chain((1..tokens).map(|at| 300 + at % 100)).collect();
    json!({"prompt": ids, "max_tokens": 1})
}

#[test]
fn blocks_of_prompts_are_published_with_their_tokens() {
    let (server, events, replay) = server(None);
    let mut subscriber = ZmqClient::subscribe(events, "kv@");
    let mut other = ZmqClient::subscribe(events, "kv@two");
    let body = prompt(1, 130);
    assert_eq!(post(server.address(), "/v1/completions", &body).status, 200);
    let (topic, number, first) = subscriber.events();
    assert_eq!((&*topic, number), ("kv@one@stories260k", 0));
    // A prompt may take several steps.
    let mut hashes = first[0]["block_hashes"].as_array().unwrap().clone();
    let mut tokens = first[0]["token_ids"].as_array().unwrap().clone();
    for key in ["parent_block_hash", "lora_id", "lora_name", "extra_keys"] {
        assert_eq!(first[0][key], Value::Null, "{key}");
    }
    assert_eq!((&first[0]["type"], &first[0]["medium"]), (&json!("BlockStored"), &json!("GPU")));
    let mut next = 1;
    while hashes.len() < 2 {
        let (_, number, more) = subscriber.events();
        assert_eq!((number, &more[0]["parent_block_hash"]), (next, hashes.last().unwrap()));
        hashes.extend(more[0]["block_hashes"].as_array().unwrap().clone());
        tokens.extend(more[0]["token_ids"].as_array().unwrap().clone());
        next += 1;
    }
    assert_eq!((hashes.len(), first[0]["block_size"].as_u64()), (2, Some(64)));
    assert_eq!(json!(tokens), json!(body["prompt"].as_array().unwrap()[..128]));

    // The same prompt stores nothing.
    assert_eq!(post(server.address(), "/v1/completions", &body).status, 200);
    assert_eq!(post(server.address(), "/v1/completions", &prompt(2, 70)).status, 200);
    let (_, number, events_of_other) = subscriber.events();
    assert_eq!((number, events_of_other[0]["token_ids"][0].as_u64()), (next, Some(2)));

    let metrics = get(server.address(), "/metrics").body;
    assert!(metrics.contains(&format!("girih_kv_event_messages_total {}\n", next + 1)), "{metrics}");
    assert!(metrics.contains("girih_kv_event_subscribers 2\n"));
    assert!(metrics.contains("girih_kv_event_subscribers_dropped_total 0\n"));

    // A late subscriber asks for what it has missed.
    let mut late = ZmqClient::connect(replay, "DEALER");
    assert_eq!(late.frame().0, 4, "READY");
    late.send(1, &[]);
    late.send(0, &next.to_be_bytes());
    let again = late.message();
    assert_eq!((again.len(), &again[0][..], &again[1][..]), (4, &b""[..], topic.as_bytes()));
    assert_eq!(again[2], next.to_be_bytes());
    assert_eq!(late.message(), [&b""[..], b"", &[0xff; 8], b""]);

    let unload = json!({"model": "stories260k", "keep_alive": 0});
    assert_eq!(post(server.address(), "/api/generate", &unload).status, 200);
    let (_, number, end) = subscriber.events();
    assert_eq!((number, end), (next + 1, vec![json!({"type": "AllBlocksCleared"})]));
    server.stop();
    other.0.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let read = other.0.read(&mut [0; 1]);
    assert!(matches!(read, Ok(0)) || read.is_err(), "it has another topic");
}

#[test]
fn blocks_of_a_key_have_its_name_as_salt() {
    let (server, events, _) = server(Some("alice:secret-of-alice\nbob:secret-of-bob\n"));
    let mut subscriber = ZmqClient::subscribe(events, "");
    let mut hashes = Vec::new();
    for name in ["alice", "bob"] {
        let key = format!("Bearer secret-of-{name}");
        let headers = [("authorization", &*key)];
        let body = prompt(1, 70).to_string();
        let reply = Exchange::begin(server.address(), "POST /v1/completions", &headers, &body).finish();
        assert_eq!(reply.status, 200, "{reply:?}");
        let (_, _, stored) = subscriber.events();
        assert_eq!(stored[0]["extra_keys"], json!([[name]]));
        hashes.push(stored[0]["block_hashes"].clone());
    }
    assert_ne!(hashes[0], hashes[1]);
    server.stop();
}

#[test]
fn other_protocols_and_sockets_are_closed() {
    let (server, events, replay) = server(None);
    let ends = |mut client: TcpStream| {
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut rest = Vec::new();
        let end = client.read_to_end(&mut rest);
        end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
    };
    let mut http = TcpStream::connect(events).unwrap();
    http.write_all(
        format!("GET / HTTP/1.1\r\nhost: {events}\r\naccept: {}\r\n\r\n", "x".repeat(64)).as_bytes(),
    )
    .unwrap();
    assert!(ends(http));
    assert!(ends(ZmqClient::connect(events, "DEALER").0));
    assert!(ends(ZmqClient::connect(replay, "SUB").0));
    let mut huge = ZmqClient::subscribe(events, "");
    huge.0.write_all(&[2, 0, 0, 0, 1, 0, 0, 0, 0]).unwrap();
    assert!(ends(huge.0));
    server.stop();
}

#[test]
fn an_address_that_others_reach_must_be_allowed() {
    let mut options = options();
    let address = "tcp://*:0".parse().unwrap();
    options.kv_events = Some(KvEventsOptions { address, ..kv_events() });
    let error = Server::start(options).err().expect("it is open").to_string();
    assert!(error.contains("tokens of all prompts") && error.contains("--kv-events-open"), "{error}");
}

#[test]
fn a_server_on_all_addresses_must_have_a_name() {
    let mut options = options();
    (options.host, options.is_known_to_be_open) = (Ipv4Addr::UNSPECIFIED.into(), true);
    options.kv_events = Some(KvEventsOptions { pod: None, ..kv_events() });
    let error = Server::listen(options).err().expect("its address is not its own").to_string();
    assert!(error.contains("0.0.0.0:") && error.contains("--kv-events-pod"), "{error}");
}
