//! The names under which a server is called. A page of a stranger whose name is made to lead to
//! this machine (DNS rebinding) sends its own name as `Host`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use axum::http::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{StatusCode, Uri, Version};
use girih::{Error, ErrorKind, Result};

use crate::error::ApiError;

/// The header by which browsers say whether a request comes from a page of the same site.
pub(super) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names under which a server is called.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// Names with a port, in lower case.
    with_port: BTreeSet<String>,
    /// Names that any port may follow: those that a user has given without one.
    any_port: BTreeSet<String>,
}

impl Hosts {
    /// The names of a server that listens on `address`: this one, the loopback names with its
    /// port, and `allowed`, each a name or a `name:port`. A name without a port stands for all
    /// ports, as the server may lie behind a proxy.
    ///
    /// # Errors
    /// When one of `allowed` is not a host.
    pub fn new(address: SocketAddr, allowed: &[String]) -> Result<Hosts> {
        let mut hosts = Hosts { with_port: BTreeSet::new(), any_port: BTreeSet::new() };
        let port = address.port();
        for name in ["localhost", "127.0.0.1", "[::1]"] {
            hosts.add(name, port);
        }
        if !address.ip().is_unspecified() {
            hosts.add(&name_of(address.ip()), port);
        }
        for name in allowed {
            let (host, port) = parse(name.as_bytes()).ok_or_else(|| {
                let sentence = format!("allowed host {name:?} is not a host; give NAME or NAME:PORT");
                Error::with_kind(ErrorKind::Refused, sentence)
            })?;
            match port {
                Some(port) => hosts.add(&host, port),
                None => drop(hosts.any_port.insert(host)),
            }
        }
        Ok(hosts)
    }

    fn add(&mut self, name: &str, port: u16) {
        self.with_port.insert(format!("{name}:{port}"));
        // Clients leave out the ports that their scheme implies.
        if matches!(port, 80 | 443) {
            self.with_port.insert(name.to_owned());
        }
    }

    fn contains(&self, host: &str, port: Option<u16>) -> bool {
        let full = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        self.any_port.contains(host) || self.with_port.contains(&full)
    }

    /// Checks that a request is meant for this server, and that no page of another origin made it.
    pub fn check(
        &self,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> std::result::Result<(), ApiError> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host),
            (None, _) if version < Version::HTTP_11 => None,
            (None, _) => return Err(bad_request("the request has no Host header; send one")),
            (Some(_), Some(_)) => {
                return Err(bad_request("the request has several Host headers; send one"));
            }
        };
        let host = host.map(|host| parse(host.as_bytes()).ok_or_else(|| misdirected(host))).transpose()?;
        if let Some((name, port)) = &host
            && !self.contains(name, *port)
        {
            return Err(misdirected(&headers[HOST]));
        }
        // A request's line may name a host too.
        if let Some(authority) = uri.authority()
            && !parse(authority.as_str().as_bytes()).is_some_and(|(name, port)| self.contains(&name, port))
        {
            return Err(bad_request("the request's line names another host than this server's"));
        }
        check_origin(host.as_ref(), headers)
    }
}

/// Refuses requests of pages of other origins.
fn check_origin(
    host: Option<&(String, Option<u16>)>,
    headers: &HeaderMap,
) -> std::result::Result<(), ApiError> {
    let foreign = |found: &str| {
        let message = format!("{found}: only pages of this server may call it from a browser");
        ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message)
    };
    let is_own = |origin: &HeaderValue| {
        let bytes = origin.as_bytes();
        let authority = bytes.strip_prefix(b"http://").or_else(|| bytes.strip_prefix(b"https://"));
        authority.and_then(parse).is_some_and(|authority| Some(&authority) == host)
    };
    if !headers.get_all(ORIGIN).iter().all(is_own) {
        return Err(foreign("the request's Origin is not this server"));
    }
    if headers.get_all(SEC_FETCH_SITE).iter().any(|site| site == "cross-site") {
        return Err(foreign("the request comes from a page of another site (Sec-Fetch-Site)"));
    }
    Ok(())
}

fn bad_request(message: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_host", message)
}

fn misdirected(host: &HeaderValue) -> ApiError {
    let host = String::from_utf8_lossy(host.as_bytes());
    let host: String = host.chars().filter(|c| c.is_ascii_graphic()).take(100).collect();
    let message = format!("this server is not called {host}; start it with --allowed-host to allow that");
    ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host_not_allowed", message)
}

/// The host in lower case and the port of a `host[:port]`.
fn parse(text: &[u8]) -> Option<(String, Option<u16>)> {
    let authority = Authority::try_from(text).ok()?;
    // User names before an `@` are no part of a host.
    if authority.as_str().contains('@') || authority.host().is_empty() {
        return None;
    }
    let port = match authority.as_str().strip_prefix(authority.host())? {
        "" => None,
        rest => {
            let digits = rest.strip_prefix(':')?;
            // Numbers may be parsed with a sign.
            Some(digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?)
        }
    };
    // A name may end with the dot of the root.
    let host = authority.host().to_ascii_lowercase();
    Some((host.strip_suffix('.').map_or(host.clone(), str::to_owned), port))
}

/// An address as a host.
fn name_of(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(allowed: &[&str], pairs: &[(&'static str, &'static str)]) -> u16 {
        let address = SocketAddr::from(([127, 0, 0, 1], 8080));
        let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let hosts = Hosts::new(address, &allowed).expect("hosts");
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let checked = hosts.check(Version::HTTP_11, &Uri::from_static("/v1/models"), &headers);
        checked.err().map_or(200, |error| error.status.as_u16())
    }

    #[test]
    fn loopback_names_with_the_port_are_allowed() {
        for host in ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "localhost.:8080", "[::1]:8080"] {
            assert_eq!(status(&[], &[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost",
            "localhost:80",
            "localhost:8080.evil.example",
            "127.0.0.1.evil.example:8080",
            "evil@localhost:8080",
            "localhost:8080@evil.example",
            "0.0.0.0:8080",
            "127.1:8080",
            "[::ffff:127.0.0.1]:8080",
            "",
            ":8080",
            "localhost:",
            "localhost:+8080",
            "localhost:8080/",
        ] {
            assert_eq!(status(&[], &[("host", host)]), 421, "{host}");
        }
    }

    #[test]
    fn a_request_has_one_host() {
        assert_eq!(status(&[], &[]), 400);
        assert_eq!(status(&[], &[("host", "localhost:8080"), ("host", "localhost:8080")]), 400);
    }

    #[test]
    fn hosts_may_be_allowed_with_and_without_a_port() {
        let allowed = ["girih.example", "other.example:81"];
        assert_eq!(status(&allowed, &[("host", "girih.example")]), 200);
        assert_eq!(status(&allowed, &[("host", "GIRIH.example:443")]), 200);
        assert_eq!(status(&allowed, &[("host", "other.example:81")]), 200);
        assert_eq!(status(&allowed, &[("host", "other.example")]), 421);
        assert!(Hosts::new(SocketAddr::from(([127, 0, 0, 1], 80)), &["http://a".to_owned()]).is_err());
    }

    #[test]
    fn only_the_own_origin_may_call() {
        let host = ("host", "localhost:8080");
        assert_eq!(status(&[], &[host, ("origin", "http://localhost:8080")]), 200);
        assert_eq!(status(&[], &[host, ("origin", "http://LocalHost:8080")]), 200);
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://localhost:3000",
            "http://localhost",
            "http://127.0.0.1:8080",
            "file://localhost:8080",
            "http://localhost:8080.evil.example",
            "app://obsidian.md",
        ] {
            assert_eq!(status(&[], &[host, ("origin", origin)]), 403, "{origin}");
        }
        let both = [host, ("origin", "http://localhost:8080"), ("origin", "http://evil.example")];
        assert_eq!(status(&[], &both), 403);
        assert_eq!(status(&[], &[host, ("sec-fetch-site", "cross-site")]), 403);
        assert_eq!(status(&[], &[host, ("sec-fetch-site", "same-origin")]), 200);
        assert_eq!(status(&[], &[host, ("sec-fetch-site", "none")]), 200);
    }

    #[test]
    fn a_requests_line_may_not_name_another_host() {
        let hosts = Hosts::new(SocketAddr::from(([127, 0, 0, 1], 80)), &[]).expect("hosts");
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        let check = |uri| hosts.check(Version::HTTP_11, &Uri::from_static(uri), &headers).is_ok();
        assert!(check("/health") && check("http://localhost/health"));
        assert!(!check("http://evil.example/health"));
    }
}
