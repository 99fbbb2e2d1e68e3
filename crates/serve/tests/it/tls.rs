//! TLS: what is served with a certificate, and which files are refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use girih_serve::listener::tls::load;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::guarded_server::{Setup, TestServer};
use crate::raw_client::connect;

/// The files of a certificate for `localhost`, with a key that only its owner can read.
fn files(test: &str) -> (PathBuf, PathBuf) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tls");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&folder).expect("a folder");
    let key = folder.join("key.pem");
    fs::copy(fixtures.join("key.pem"), &key).expect("a copy");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a mode");
    (fixtures.join("certificate.pem"), key)
}

/// Sends a GET of `/health` over TLS and returns everything that comes back.
fn get_health(server: &TestServer, certificate: &Path) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pem = fs::read(certificate).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem).expect("a certificate")).expect("a root");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    runtime.block_on(async {
        let stream = TcpStream::connect(server.address).await.expect("the server accepts");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut stream =
            TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake");
        let port = server.address.port();
        let request = format!("GET /health HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the server reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("a whole response");
        response
    })
}

#[test]
fn a_certificate_serves_tls_only() {
    let (certificate, key) = files("tls_only");
    let mut setup = Setup::default();
    setup.options.tls = Some(load(&certificate, &key).expect("a certificate"));
    let server = TestServer::start(setup);
    let response = get_health(&server, &certificate);
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");

    // Neither plain HTTP nor silence keeps a connection.
    use std::io::{Read, Write};
    let mut plain = connect(server.address);
    plain.write_all(b"GET /health HTTP/1.1\r\n\r\n").expect("the server reads");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    let mut silent = connect(server.address);
    assert_eq!(silent.read(&mut [0]).expect("an end"), 0);
    assert!(get_health(&server, &certificate).starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn files_that_are_no_certificate_or_open_to_others_are_refused() {
    let (certificate, key) = files("tls_refused");
    let error = |certificate: &Path, key: &Path| {
        let error = load(certificate, key).err().expect("an error").to_string();
        error.rsplit_once(": ").map_or(error.clone(), |(_, last)| last.to_owned())
    };
    assert_eq!(error(&key, &key), "has no certificate; a PEM file is needed");
    assert!(
        error(&certificate, &certificate).contains("mode")
            || error(&certificate, &certificate).contains("chmod")
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("a mode");
    let open = load(&certificate, &key).err().expect("an error").to_string();
    assert!(
        open.ends_with("is a secret, but its mode is 644; other users may not have access: chmod 600"),
        "{open}"
    );
}
