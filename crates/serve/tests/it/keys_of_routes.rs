//! The checks around the server's real routes.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use girih_serve::access::ApiKeys;
use girih_serve::{ServeOptions, Server, page};
use serde_json::Value;

use crate::model_server::options;
use crate::raw_client::{exchange, get, post};

/// The keys of a file with this mode.
fn key_file(name: &str, mode: u32) -> girih::Result<ApiKeys> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, "alice:sk-alice\n").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
    ApiKeys::read(&path)
}

/// The key of alice.
fn keys() -> Option<ApiKeys> {
    Some(ApiKeys::parse(b"alice:sk-alice").expect("keys"))
}

fn status(address: SocketAddr, method: &str, path: &str, headers: &str) -> u16 {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}");
    exchange(address, &format!("{head}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"))
        .status
}

#[test]
fn every_route_that_is_described_needs_a_key() {
    let api_keys = keys();
    let server = Server::start(ServeOptions { api_keys, ..options() }).expect("a server");
    let address = server.address();
    let key = "Authorization: Bearer sk-alice\r\n";
    let described = get(address, "/openapi.json", key);
    let document: Value = serde_json::from_str(&described.body).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() >= 8, "{paths:?}");
    let others = ["/metrics", "/openapi.json", "/api/chat", "/v1/messages", "/v1/nothing"].map(str::to_owned);
    for path in paths.keys().cloned().chain(others) {
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"] {
            let found = status(address, method, &path, "");
            let is_open = path == "/health" && matches!(method, "GET" | "HEAD");
            assert_eq!(found, if is_open { 200 } else { 401 }, "{method} {path}");
            let with_key = status(address, method, &path, key);
            assert_ne!(with_key, 401, "{method} {path}");
        }
    }
    for path in page::PATHS {
        assert_eq!(get(address, path, "").status, 200, "{path}");
        assert_eq!(status(address, "POST", path, ""), 401, "{path}");
    }
    server.stop();
}

#[test]
fn unsafe_starts_are_refused() {
    let error = |options: ServeOptions| Server::start(options).err().expect("an error").to_string();
    let open = ServeOptions { host: [0, 0, 0, 0].into(), ..options() };
    assert!(error(open).contains("can be reached by other machines, and there are no keys"));
    let readable = key_file("keys_for_all", 0o644).expect_err("others may read it").to_string();
    assert!(
        readable.ends_with("is a secret, but its mode is 644; other users may not have access: chmod 600")
    );
    let wrong = ServeOptions { allowed_hosts: vec!["http://girih.example".to_owned()], ..options() };
    assert!(error(wrong).contains("is not a host; give NAME or NAME:PORT"));
    let all = ServeOptions { allowed_origins: vec!["*".to_owned()], ..options() };
    assert!(error(all).contains("name the origins, or give --api-keys"));
    let api_keys = Some(key_file("keys_for_group", 0o640).expect("keys"));
    let keyed = ServeOptions { host: [0, 0, 0, 0].into(), api_keys, ..options() };
    Server::start(keyed).expect("a server with keys").stop();
}

#[test]
fn errors_of_the_guard_have_the_form_of_their_api() {
    let api_keys = keys();
    let server = Server::start(ServeOptions { api_keys, ..options() }).expect("a server");
    let error = |path: &str| -> Value {
        let response = post(server.address(), path, "", "{}");
        assert_eq!(response.status, 401, "{path}");
        assert!(response.header("x-request-id").is_some());
        serde_json::from_str(&response.body).expect("JSON")
    };
    assert_eq!(error("/v1/chat/completions")["error"]["type"], "authentication_error");
    assert_eq!(error("/v1/messages")["type"], "error");
    assert!(error("/api/chat")["error"].is_string());
    server.stop();
}

#[test]
fn a_page_in_a_browser_needs_the_token_of_the_server() {
    let server = Server::start(options()).expect("a server");
    let address = server.address();
    let own = format!("Origin: http://{address}\r\nSec-Fetch-Site: same-origin\r\n");
    let token = get(address, "/page-token", "Sec-Fetch-Site: same-origin\r\n");
    assert_eq!((token.status, token.body.len()), (200, 64));
    assert_eq!(token.header("cache-control"), Some("no-store"));
    assert_eq!(token.header("cross-origin-resource-policy"), Some("same-origin"));
    for site in ["same-site", "cross-site", "none"] {
        assert_eq!(get(address, "/page-token", &format!("Sec-Fetch-Site: {site}\r\n")).status, 403, "{site}");
    }
    let with_token = format!("{own}X-Girih-Page: {}\r\n", token.body);
    let tokenize = r#"{"prompt": "Once"}"#;
    assert_eq!(post(address, "/tokenize", &with_token, tokenize).status, 200);
    assert_eq!(get(address, "/v1/models", &with_token).status, 200);
    let other = format!("{own}X-Girih-Page: {}\r\n", "0".repeat(64));
    for headers in [&own, &other, "Sec-Fetch-Site: same-site\r\n"] {
        let refused = post(address, "/tokenize", headers, tokenize);
        assert_eq!(refused.status, 403, "{headers}");
        let body: Value = serde_json::from_str(&refused.body).expect("JSON");
        assert_eq!(body["error"]["code"], "page_token_invalid");
        assert_eq!(get(address, "/metrics", headers).status, 403, "{headers}");
    }
    // Other clients, and addresses that a person types.
    assert_eq!(post(address, "/tokenize", "", tokenize).status, 200);
    assert_eq!(get(address, "/metrics", "Sec-Fetch-Site: none\r\n").status, 200);
    server.stop();

    let api_keys = keys();
    let server = Server::start(ServeOptions { api_keys, ..options() }).expect("a server");
    let address = server.address();
    let keyed = format!("Origin: http://{address}\r\nAuthorization: Bearer sk-alice\r\n");
    assert_eq!(post(address, "/tokenize", &keyed, tokenize).status, 200);
    server.stop();
}
