//! What attackers send: each is answered as it should be, and the server is up and fast afterwards.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use crate::guarded_server::{Setup, TestServer};
use crate::raw_client::{assert_is_well, connect, exchange, get, post, read_response};

#[test]
fn two_hundred_slow_clients_slow_nobody() {
    let server = TestServer::start(Setup::default());
    let mut slow: Vec<_> = (0..200).map(|_| connect(server.address)).collect();
    for byte in "GET /health HTTP/1.1\r\nX-Slow: aaaaaaaaaaaa".bytes() {
        for stream in &mut slow {
            // Later ones may have been cut off.
            let _ = stream.write_all(&[byte]);
        }
        assert_is_well(server.address);
        thread::sleep(Duration::from_millis(10));
    }
    for stream in &mut slow {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&rest));
    }
    assert_is_well(server.address);
}

#[test]
fn a_flood_of_headers_is_answered_with_431() {
    let server = TestServer::start(Setup::default());
    let start = format!("GET /health HTTP/1.1\r\nHost: {}\r\n", server.address);
    let many: String = (0..101).map(|number| format!("X-{number}: a\r\n")).collect();
    assert_eq!(exchange(server.address, &format!("{start}{many}\r\n")).status, 431);
    let long = format!("X-Long: {}\r\n", "a".repeat(33 << 10));
    assert_eq!(exchange(server.address, &format!("{start}{long}\r\n")).status, 431);
    let endless = format!("X-Long: {}", "a".repeat(1 << 20));
    assert_eq!(exchange(server.address, &format!("{start}{endless}")).status, 431);
    let target = format!("/v1/models?{}", "a".repeat(9 << 10));
    assert_eq!(get(server.address, &target, "").status, 414);
    assert_eq!(get(server.address, "/health", &"X-Few: a\r\n".repeat(90)).status, 200);
    assert_is_well(server.address);
}

#[test]
fn a_body_of_100_mb_is_answered_with_413() {
    let server = TestServer::start(Setup::default());
    let start =
        format!("POST /length HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n", server.address);
    // It says how long it is, and sends all of it before it reads.
    let mut stream = connect(server.address);
    write!(stream, "{start}Content-Length: 100000000\r\n\r\n").expect("the server reads");
    let part = vec![b'a'; 1_000_000];
    for _ in 0..100 {
        stream.write_all(&part).expect("the server reads");
    }
    let response = read_response(&mut stream).expect("a response");
    assert_eq!(response.status, 413);
    let sentence = "the body has more than 4000000 bytes, the maximum; send less";
    assert!(response.body.contains(sentence), "{}", response.body);

    // It does not say how long it is.
    let mut stream = connect(server.address);
    write!(stream, "{start}Transfer-Encoding: chunked\r\n\r\n").expect("the server reads");
    for _ in 0..100 {
        write!(stream, "{:x}\r\n", part.len()).expect("the server reads");
        stream.write_all(&part).expect("the server reads");
        stream.write_all(b"\r\n").expect("the server reads");
    }
    assert_eq!(read_response(&mut stream).expect("a response").status, 413);

    // It waits for permission to send.
    let waiting = format!("{start}Content-Length: 100000000\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(exchange(server.address, &waiting).status, 413);
    assert_is_well(server.address);
}

#[test]
fn bodies_within_their_limit_are_read() {
    let server = TestServer::start(Setup::default());
    let body = format!("\"{}\"", "a".repeat(3_999_998));
    assert_eq!(post(server.address, "/length", "", &body).body, "4000000");
    assert_eq!(post(server.address, "/length", "", &format!("{body} ")).status, 413);
}

#[test]
fn deep_json_is_answered_with_400() {
    let server = TestServer::start(Setup::default());
    for deep in ["[".repeat(100_000), "{\"a\":".repeat(100_000), "[{\"a\":".repeat(1000)] {
        let response = post(server.address, "/length", "", &deep);
        assert_eq!(response.status, 400);
        assert!(response.body.contains("nests deeper than 127 levels"), "{}", response.body);
    }
    assert_is_well(server.address);
}

#[test]
fn json_of_a_million_values_is_answered_with_400() {
    let server = TestServer::start(Setup::default());
    let list = |commas: usize| format!("[{}0]", "0,".repeat(commas));
    assert_eq!(post(server.address, "/length", "", &list(999_998)).status, 200);
    let response = post(server.address, "/length", "", &list(999_999));
    assert_eq!(response.status, 400);
    assert!(response.body.contains("json_too_large"), "{}", response.body);
    assert!(response.body.contains("has more than 1000000 values; send fewer"), "{}", response.body);
    assert_is_well(server.address);
}

#[test]
fn a_rebound_host_and_a_foreign_page_are_refused() {
    let server = TestServer::start(Setup::default());
    let with_host = |host: &str| {
        let request = format!("GET /v1/models HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        exchange(server.address, &request).status
    };
    let port = server.address.port();
    assert_eq!(with_host(&format!("Host: localhost:{port}\r\n")), 200);
    assert_eq!(with_host("Host: evil.example\r\n"), 421);
    assert_eq!(with_host(&format!("Host: evil.example:{port}\r\n")), 421);
    assert_eq!(with_host(&format!("Host: 127.0.0.1.evil.example:{port}\r\n")), 421);
    assert_eq!(with_host(""), 400);
    assert_eq!(with_host(&format!("Host: localhost:{port}\r\nHost: evil.example\r\n")), 400);
    for origin in ["null", "http://evil.example", "http://localhost:1", "chrome-extension://abc"] {
        let response = get(server.address, "/v1/models", &format!("Origin: {origin}\r\n"));
        assert_eq!(response.status, 403, "{origin}");
        assert!(response.header("access-control-allow-origin").is_none());
    }
    let own = format!("Origin: http://127.0.0.1:{port}\r\n");
    assert_eq!(get(server.address, "/", &own).status, 200);
    assert_eq!(get(server.address, "/v1/models", &own).status, 403);
    assert_eq!(get(server.address, "/v1/models", "Sec-Fetch-Site: cross-site\r\n").status, 403);
    let preflight = format!(
        "OPTIONS /length HTTP/1.1\r\nHost: {}\r\nOrigin: http://evil.example\r\nConnection: close\r\n\
         Access-Control-Request-Method: POST\r\nAccess-Control-Request-Private-Network: true\r\n\r\n",
        server.address
    );
    let response = exchange(server.address, &preflight);
    assert_eq!(response.status, 403);
    assert!(!response.head.to_ascii_lowercase().contains("access-control"), "{}", response.head);
    assert_is_well(server.address);
}

#[test]
fn a_body_that_is_not_declared_as_json_is_refused() {
    let server = TestServer::start(Setup::default());
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"]
    {
        let request = format!(
            "POST /length HTTP/1.1\r\nHost: {}\r\nContent-Type: {content_type}\r\nContent-Length: 2\r\n\
             Connection: close\r\n\r\n{{}}",
            server.address
        );
        assert_eq!(exchange(server.address, &request).status, 415, "{content_type}");
    }
}

#[test]
fn every_route_but_health_and_the_page_needs_a_key() {
    let server = TestServer::start(Setup { keys: Some("alice:sk-alice\nsk-bob\n"), ..Setup::default() });
    let address = server.address;
    for path in
        ["/v1/models", "/v1/models/a", "/endless", "/second", "/panic", "/metrics", "/ready", "/nothing"]
    {
        let response = get(address, path, "");
        assert_eq!((response.status, response.header("www-authenticate")), (401, Some("Bearer")), "{path}");
        assert!(response.body.contains("invalid_api_key"), "{}", response.body);
    }
    assert_eq!(post(address, "/length", "", "{}").status, 401);
    assert_eq!(post(address, "/health", "", "{}").status, 401);
    assert_eq!(get(address, "/health", "").status, 200);
    assert_eq!(get(address, "/", "").status, 200);
    for header in ["Authorization: Bearer sk-alice", "authorization: bearer sk-bob", "x-api-key: sk-alice"] {
        assert_eq!(get(address, "/v1/models", &format!("{header}\r\n")).status, 200, "{header}");
    }
    for header in [
        "Authorization: Bearer sk-eve",
        "Authorization: Bearer sk-alic",
        "Authorization: Bearer sk-alice,sk-bob",
        "Authorization: sk-alice",
        "Authorization: Bearer alice:sk-alice",
        "Authorization: Bearer sk-eve\r\nAuthorization: Bearer sk-alice",
        "x-api-key: sk-eve\r\nx-api-key: sk-alice",
        "Cookie: key=sk-alice",
    ] {
        let response = get(address, "/v1/models", &format!("{header}\r\n"));
        assert_eq!(response.status, 401, "{header}");
        assert!(!format!("{response:?}").contains("sk-"), "{response:?}");
    }
    assert_eq!(get(address, "/v1/models?key=sk-alice", "").status, 401);
    let metrics = server.metrics.render(&[], 0, false);
    assert!(metrics.contains("girih_refusals_total{code=\"invalid_api_key\"} 19\n"), "{metrics}");
    assert!(!metrics.contains("sk-"), "{metrics}");
}

#[test]
fn tricks_with_paths_evade_no_key() {
    let server = TestServer::start(Setup { keys: Some("sk-alice\n"), ..Setup::default() });
    for path in [
        "//v1/models",
        "/v1//models",
        "/health/../v1/models",
        "/health/..%2fv1/models",
        "/health%2f..%2fv1%2fmodels",
        "/health/",
        "//health",
        "/health;/v1/models",
        "/%68ealth",
        "/HEALTH",
        "/health%00",
        "/./v1/models",
        "/v1/models/%2e%2e/models",
        "/v1/models/",
        "/%2e%2e/v1/models",
        "/..;/v1/models",
        "/\\v1\\models",
    ] {
        let response = get(server.address, path, "");
        assert!(matches!(response.status, 400 | 401), "{path}: {}", response.head);
    }
    // A name of another host in the request's line is not this server.
    let absolute = get(server.address, "http://evil.example/health", "");
    assert_eq!(absolute.status, 400);
    for line in ["CONNECT evil.example:443", "TRACE /health", "OPTIONS *"] {
        let request = format!("{line} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address);
        let response = exchange(server.address, &request);
        assert!(matches!(response.status, 400 | 401 | 405), "{line}: {}", response.head);
    }
    assert_is_well(server.address);
}

/// Sends `request`, then what hides behind it, and returns everything that the server sends.
fn smuggled(server: &TestServer, headers: &str, body: &str) -> String {
    let mut stream = connect(server.address);
    write!(
        stream,
        "POST /length HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{headers}\r\n\r\n{body}",
        server.address
    )
    .expect("the server reads");
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// The bug: a request that was sent before the response to the one before it was not looked at.
#[test]
fn no_request_hides_behind_another() {
    let server = TestServer::start(Setup::default());
    let hidden = format!("GET /v1/models HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    // The next request of a connection is looked at, too.
    let mut stream = connect(server.address);
    let length = |headers: &str| {
        let start =
            format!("POST /length HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json", server.address);
        format!("{start}\r\n{headers}\r\n\r\n[]")
    };
    for (headers, status) in [("Content-Length: 2", 200), ("Content-Length: 2\r\nContent-Length: 2", 400)] {
        stream.write_all(length(headers).as_bytes()).expect("the server reads");
        assert_eq!(read_response(&mut stream).expect("a response").status, status);
    }
    // So is one that was sent before the response to the one before it, in one piece or in two.
    let first = length("Content-Length: 2");
    let with_chunks = format!("{}\r\n0\r\n\r\n", length("Transfer-Encoding: chunked").trim_end_matches("[]"));
    for first in [first.as_str(), &with_chunks.replace("\r\n\r\n\r\n0", "\r\n\r\n0")] {
        for headers in
            ["Content-Length: 2\r\nContent-Length: 2", "Content-Length: 2\r\nTransfer-Encoding: chunked"]
        {
            let second = length(headers);
            let at = second.find("Content-Type").expect("a header");
            for pause in [0, 50] {
                let mut stream = connect(server.address);
                write!(stream, "{first}{}", &second[..at]).expect("the server reads");
                thread::sleep(Duration::from_millis(pause));
                write!(stream, "{}{hidden}", &second[at..]).expect("the server reads");
                let mut all = Vec::new();
                let _ = stream.read_to_end(&mut all);
                let all = String::from_utf8_lossy(&all);
                assert!(
                    all.starts_with("HTTP/1.1 200 ") && all.contains("HTTP/1.1 400 "),
                    "{headers}: {all}"
                );
                assert_eq!(all.matches("HTTP/1.1 ").count(), 2, "{headers}: {all}");
            }
        }
    }
    // Others that come together are answered.
    let mut stream = connect(server.address);
    let end = length("Content-Length: 2\r\nConnection: close");
    write!(stream, "{first}{first}{end}").expect("the server reads");
    let mut all = String::new();
    stream.read_to_string(&mut all).expect("responses");
    assert_eq!(all.matches("HTTP/1.1 200 ").count(), 3, "{all}");
    assert_is_well(server.address);
}

#[test]
fn no_request_hides_in_another() {
    let server = TestServer::start(Setup::default());
    let hidden = format!("GET /v1/models HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let chunked = format!("0\r\n\r\n{hidden}");
    // Two headers say how long the body is, even if they agree: the connection ends.
    for headers in [
        format!("Content-Length: {}\r\nTransfer-Encoding: chunked", chunked.len()),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {}", chunked.len()),
        "Content-Length: 5\r\nTransfer-Encoding: chunked".to_owned(),
        format!("Content-Length: {0}\r\ncontent-length: {0}", chunked.len()),
    ] {
        let all = smuggled(&server, &headers, &chunked);
        assert_eq!(all.matches("HTTP/1.1 ").count(), 1, "{headers}: {all}");
        assert!(all.starts_with("HTTP/1.1 400 ") && all.contains("Content-Length"), "{headers}: {all}");
    }
    // No two readers agree on the length of these.
    for headers in [
        "Content-Length: 0\r\nContent-Length: 40",
        "Content-Length: 0, 40",
        "Content-Length: +5",
        "Content-Length: -1",
        "Content-Length: 0x10",
        "Content-Length: 99999999999999999999",
        "Content-Length : 5",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: \x0bchunked",
        " Transfer-Encoding: chunked",
        "X: a\r\n folded: b",
        "X: a\nContent-Length: 5\r",
    ] {
        let all = smuggled(&server, headers, &hidden);
        assert!(all.starts_with("HTTP/1.1 400 "), "{headers:?}: {all}");
        assert_eq!(all.matches("HTTP/1.1 ").count(), 1, "{headers:?}: {all}");
    }
    // Sizes of chunks that are none.
    for size in ["-1", "0x5", "ffffffffffffffffff", "", "5 5"] {
        let body = format!("{size}\r\nhello\r\n0\r\n\r\n{hidden}");
        let all = smuggled(&server, "Transfer-Encoding: chunked", &body);
        assert!(all.starts_with("HTTP/1.1 400 "), "{size:?}: {all}");
        assert_eq!(all.matches("HTTP/1.1 ").count(), 1, "{size:?}: {all}");
    }
    assert_is_well(server.address);
}

#[test]
fn what_is_not_http_is_answered_with_400() {
    let server = TestServer::start(Setup::default());
    for request in [
        "GARBAGE\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET  /health HTTP/1.1\r\n\r\n",
        "GET /health\0 HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost\r\n\r\n",
    ] {
        let begun = Instant::now();
        let mut stream = connect(server.address);
        stream.write_all(request.as_bytes()).expect("the server reads");
        let response = read_response(&mut stream).expect("a response");
        assert!(matches!(response.status, 400 | 505), "{request:?}: {}", response.head);
        assert!(begun.elapsed() < Duration::from_secs(5), "{request:?}");
    }
    assert_is_well(server.address);
}

#[test]
fn a_compressed_body_is_answered_with_415() {
    let server = TestServer::start(Setup::default());
    for coding in ["gzip", "identity, gzip", "br", ""] {
        let response = post(server.address, "/length", &format!("Content-Encoding: {coding}\r\n"), "[]");
        assert_eq!(response.status, 415, "{coding:?}: {}", response.body);
        assert!(response.body.contains("send it without"), "{}", response.body);
    }
    for coding in ["identity", "Identity"] {
        let response = post(server.address, "/length", &format!("Content-Encoding: {coding}\r\n"), "[]");
        assert_eq!((response.status, response.body.as_str()), (200, "2"), "{coding}");
    }
}
