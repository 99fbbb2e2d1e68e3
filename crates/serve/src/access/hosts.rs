//! The names under which a server is called. A page of a stranger whose name is made to lead to
//! this machine (DNS rebinding) sends its own name as `Host`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::http::header::{HOST, HeaderMap, HeaderValue};
use axum::http::{StatusCode, Uri, Version};
use girih::{Error, ErrorKind, Result};

use super::authority::{Authority, parsed, shown};
use crate::error::ApiError;

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
            let (host, port) = parsed(name.as_bytes()).ok_or_else(|| {
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

    fn contains(&self, (host, port): &Authority) -> bool {
        // Nobody can make an address lead elsewhere, so a page under one comes from there.
        if is_address(host) {
            return true;
        }
        let full = port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        self.any_port.contains(host) || self.with_port.contains(&full)
    }

    /// Checks that a request is meant for this server. Returns the host that it names; requests of HTTP/1.0
    /// may name none.
    ///
    /// # Errors
    /// Status 421 or 400 when it is not.
    pub fn check(
        &self,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> std::result::Result<Option<Authority>, ApiError> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host),
            (None, _) if version < Version::HTTP_11 => None,
            (None, _) => return Err(bad_request("the request has no Host header; send one")),
            (Some(_), Some(_)) => {
                return Err(bad_request("the request has several Host headers; send one"));
            }
        };
        let own = |host: &HeaderValue| {
            let named = parsed(host.as_bytes()).filter(|named| self.contains(named));
            named.ok_or_else(|| misdirected(host))
        };
        let host = host.map(own).transpose()?;
        // A request's line may name a host too.
        if let Some(authority) = uri.authority()
            && !parsed(authority.as_str().as_bytes()).is_some_and(|named| self.contains(&named))
        {
            return Err(bad_request("the request's line names another host than this server's"));
        }
        Ok(host)
    }
}

fn bad_request(message: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_host", message)
}

fn misdirected(host: &HeaderValue) -> ApiError {
    let host = shown(host.as_bytes());
    let message = format!("this server is not called {host}; start it with --allowed-host to allow that");
    ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host_not_allowed", message)
}

/// Whether a host is an address in the form that browsers send.
fn is_address(host: &str) -> bool {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    host.parse::<Ipv4Addr>().is_ok() || inner.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
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
    fn loopback_names_with_the_port_and_addresses_are_allowed() {
        for host in [
            "127.0.0.1:8080",
            "localhost:8080",
            "LOCALHOST:8080",
            "localhost.:8080",
            "[::1]:8080",
            "192.0.2.7:8080",
            "192.0.2.7",
            "127.0.0.1:9090",
            "[2001:db8::7]:443",
            "[::ffff:127.0.0.1]:8080",
        ] {
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
            "127.1:8080",
            "127.0.0.01:8080",
            "2130706433:8080",
            "0x7f.0.0.1:8080",
            "192.0.2.7.evil.example:8080",
            "[evil.example]:8080",
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
    fn a_requests_line_may_not_name_another_host() {
        let hosts = Hosts::new(SocketAddr::from(([127, 0, 0, 1], 80)), &[]).expect("hosts");
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        let check = |uri| hosts.check(Version::HTTP_11, &Uri::from_static(uri), &headers).is_ok();
        assert!(check("/health") && check("http://localhost/health") && check("http://192.0.2.7/health"));
        assert!(!check("http://evil.example/health"));
    }
}
