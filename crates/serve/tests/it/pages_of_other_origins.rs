//! Requests as browsers send them for pages of other origins.

use std::net::SocketAddr;

use girih_serve::access::ApiKeys;
use girih_serve::{ServeOptions, Server};
use serde_json::Value;

use crate::model_server::options;
use crate::raw_client::{RawResponse, exchange, get, post};

const TOKENIZE: &str = r#"{"prompt": "Once"}"#;

/// A server that pages of these origins may call.
fn server(origins: &[&str], api_keys: Option<ApiKeys>) -> Server {
    let allowed_origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
    Server::start(ServeOptions { allowed_origins, api_keys, ..options() }).expect("a server")
}

/// The headers by which a browser tells a page.
fn of(origin: &str) -> String {
    format!("Origin: {origin}\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n")
}

fn preflight(address: SocketAddr, origin: &str) -> RawResponse {
    let asked = "Access-Control-Request-Method: POST\r\n\
                 Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n\
                 Access-Control-Request-Private-Network: true\r\n";
    let head = format!("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    exchange(address, &format!("{head}{}{asked}\r\n", of(origin)))
}

#[test]
fn a_page_of_an_allowed_origin_may_call() {
    let server = server(&["http://localhost:3000", "app://obsidian.md"], None);
    let address = server.address();
    for origin in ["http://localhost:3000", "app://obsidian.md"] {
        let asked = preflight(address, origin);
        assert_eq!((asked.status, asked.body.as_str()), (204, ""), "{origin}");
        assert_eq!(asked.header("access-control-allow-origin"), Some(origin));
        assert_eq!(
            asked.header("access-control-allow-headers"),
            Some("authorization,content-type,x-stainless-os")
        );
        assert_eq!(asked.header("access-control-allow-private-network"), Some("true"));
        assert_eq!(asked.header("vary"), Some("Origin"));
        let reply = post(address, "/tokenize", &of(origin), TOKENIZE);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.header("access-control-allow-origin"), Some(origin));
        assert!(
            reply.header("access-control-expose-headers").is_some_and(|names| names.contains("x-request-id"))
        );
        // It may read errors, too.
        let error = post(address, "/tokenize", &of(origin), "[");
        assert_eq!(error.status, 400);
        assert_eq!(error.header("access-control-allow-origin"), Some(origin));
        // But not the token of the chat page, which it does not need.
        assert_eq!(get(address, "/page-token", &format!("Origin: {origin}\r\n")).status, 403);
    }
    // Bodies of the types that need no preflight stay refused.
    let head = format!("POST /tokenize HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    let simple =
        format!("{head}{}Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}", of("app://obsidian.md"));
    assert_eq!(exchange(address, &simple).status, 415);
    server.stop();
}

#[test]
fn a_page_of_another_origin_is_refused_with_the_option_that_allows_it() {
    for origins in [&[][..], &["http://localhost:3000"]] {
        let server = server(origins, None);
        let address = server.address();
        for response in [
            preflight(address, "http://localhost:3001"),
            post(address, "/tokenize", &of("http://localhost:3001"), TOKENIZE),
            get(address, "/v1/models", &of("http://localhost:3001")),
            get(address, "/health", &of("http://localhost:3001")),
        ] {
            assert_eq!(response.status, 403);
            assert_eq!(response.header("access-control-allow-origin"), None);
            assert_eq!(response.header("vary"), (!origins.is_empty()).then_some("Origin"));
            let body: Value = serde_json::from_str(&response.body).expect("JSON");
            assert_eq!(body["error"]["code"], "origin_not_allowed");
            let message = body["error"]["message"].to_string();
            assert!(message.contains("--allowed-origin http://localhost:3001"), "{message}");
        }
        server.stop();
    }
}

#[test]
fn a_link_in_another_page_opens_the_chat_page() {
    let server = server(&[], None);
    let status = |path: &str, mode: &str, dest: &str| {
        let headers =
            format!("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: {mode}\r\nSec-Fetch-Dest: {dest}\r\n");
        get(server.address(), path, &headers).status
    };
    assert_eq!(status("/", "navigate", "document"), 200);
    for (path, mode, dest) in [
        ("/", "navigate", "iframe"),
        ("/", "no-cors", "image"),
        ("/app.js", "no-cors", "script"),
        ("/page-token", "navigate", "document"),
        ("/v1/models", "navigate", "document"),
    ] {
        assert_eq!(status(path, mode, dest), 403, "{path} {mode} {dest}");
    }
    server.stop();
}

#[test]
fn with_keys_all_pages_may_call_that_have_one() {
    let keys = ApiKeys::parse(b"sk-alice").expect("keys");
    let server = server(&["*"], Some(keys));
    let address = server.address();
    for origin in ["https://anywhere.example", "null"] {
        // A preflight has no key.
        assert_eq!(preflight(address, origin).status, 204);
        let without = post(address, "/tokenize", &of(origin), TOKENIZE);
        assert_eq!(without.status, 401);
        assert_eq!(without.header("access-control-allow-origin"), Some(origin));
        let keyed = format!("{}Authorization: Bearer sk-alice\r\n", of(origin));
        assert_eq!(post(address, "/tokenize", &keyed, TOKENIZE).status, 200);
    }
    // Only a browser's question passes without a key.
    let plain = format!("OPTIONS /v1/models HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    assert_eq!(exchange(address, &format!("{plain}{}\r\n", of("null"))).status, 401);
    let unnamed = format!("{plain}Access-Control-Request-Method: POST\r\n\r\n");
    assert_eq!(exchange(address, &unnamed).status, 401);
    server.stop();
}

#[test]
fn a_server_may_be_called_by_its_address() {
    let server = server(&[], None);
    let address = server.address();
    let status = |host: &str| {
        let head = format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        exchange(address, &head).status
    };
    assert_eq!(["192.0.2.7:9000", "[2001:db8::7]", "127.0.0.1"].map(status), [200; 3]);
    assert_eq!(["girih.example", "192.0.2.7.girih.example", "localhost"].map(status), [421; 3]);
    server.stop();
}
