//! A client of HTTP/1.1 for tests: one request for each connection, and replies as they came.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A reply.
#[derive(Debug)]
pub struct HttpReply {
    pub status: u16,
    /// With names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl HttpReply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The data of server-sent events, without the last `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"), "{self:?}");
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut data: Vec<&str> = lines.collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.into_iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }
}

/// An open connection on which a request was sent.
pub struct Exchange(BufReader<TcpStream>);

impl Exchange {
    /// Sends a request.
    pub fn begin(address: SocketAddr, head: &str, headers: &[(&str, &str)], body: &str) -> Exchange {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut text = format!("{head} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            text += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        text += "\r\n";
        stream.write_all(text.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        Exchange(BufReader::new(stream))
    }

    /// Reads up to the next line end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Reads the reply to its end.
    pub fn finish(mut self) -> HttpReply {
        let status = self.line();
        let status = status.split(' ').nth(1).unwrap_or_else(|| panic!("{status:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let is_chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        let mut body = Vec::new();
        if is_chunked {
            while let Ok(size @ 1..) = usize::from_str_radix(&self.line(), 16) {
                let mut chunk = vec![0; size + 2];
                self.0.read_exact(&mut chunk).unwrap();
                body.extend_from_slice(&chunk[..size]);
            }
        } else {
            self.0.read_to_end(&mut body).unwrap();
        }
        HttpReply { status, headers, body: String::from_utf8(body).unwrap() }
    }
}
