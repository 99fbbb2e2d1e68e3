//! A client that sends exactly the bytes of a test.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A response.
#[derive(Debug)]
pub struct RawResponse {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl RawResponse {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.set_write_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream
}

/// Sends `request` and returns the first response.
pub fn exchange(address: SocketAddr, request: &str) -> RawResponse {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).expect("the server reads");
    read_response(&mut stream).expect("a response")
}

/// A GET of `path` with the server's own Host and these further headers.
pub fn get(address: SocketAddr, path: &str, headers: &str) -> RawResponse {
    exchange(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n"),
    )
}

/// A POST of JSON.
pub fn post(address: SocketAddr, path: &str, headers: &str, body: &str) -> RawResponse {
    let length = body.len();
    exchange(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Connection: close\r\n{headers}\r\n{body}"
        ),
    )
}

/// Reads one response with a known length or up to the end; `None` if the connection ended first.
pub fn read_response(stream: &mut TcpStream) -> Option<RawResponse> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if !read_some(stream, &mut bytes) {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).expect("headers are text");
    let mut response =
        RawResponse { status: head.split(' ').nth(1)?.parse().ok()?, head, body: String::new() };
    let length = response.header("content-length").map(|length| length.parse::<usize>().expect("a length"));
    while length.is_none_or(|length| bytes.len() < head_end + 4 + length) {
        if !read_some(stream, &mut bytes) {
            break;
        }
    }
    response.body = String::from_utf8_lossy(&bytes[head_end + 4..]).into_owned();
    Some(response)
}

/// Reads what there is; `false` at the end.
fn read_some(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(count) => {
            bytes.extend_from_slice(&buffer[..count]);
            true
        }
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => false,
        Err(error) => panic!("the server neither answers nor ends the connection: {error}"),
    }
}

/// Asserts that the server is up and answers soon, on a busy machine, too.
pub fn assert_is_well(address: SocketAddr) {
    let begun = Instant::now();
    let response = get(address, "/health", "");
    assert_eq!(response.status, 200, "{}", response.head);
    assert!(begun.elapsed() < Duration::from_secs(5), "health took {:?}", begun.elapsed());
}
