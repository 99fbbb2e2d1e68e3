//! The address of a collector of traces.

#[cfg(feature = "otlp")]
use std::net::{SocketAddr, ToSocketAddrs};

#[cfg(feature = "otlp")]
use axum::http::Uri;
use girih::{Error, ErrorKind, Result};

/// An OpenTelemetry collector, which receives traces by OTLP over HTTP, in Protocol Buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceCollector {
    /// Its host and port, as the header `Host` has them.
    #[cfg(feature = "otlp")]
    pub(super) authority: String,
    /// The path to which spans are posted.
    #[cfg(feature = "otlp")]
    pub(super) path: String,
    /// Its addresses, at least one, all with the same port.
    #[cfg(feature = "otlp")]
    pub(super) addresses: Vec<SocketAddr>,
    #[cfg(not(feature = "otlp"))]
    pub(super) absent: std::convert::Infallible,
}

impl TraceCollector {
    /// The collector at `endpoint`, `http://HOST:PORT[/PATH]`, to which `/v1/traces` is appended, as the
    /// specification of OTLP says of `OTEL_EXPORTER_OTLP_ENDPOINT`. The name of the host is looked up
    /// now and never again, as a confined server cannot.
    ///
    /// # Errors
    /// When the endpoint has another form, its host has no address, or the feature `otlp` is off.
    #[cfg(feature = "otlp")]
    pub fn at(endpoint: &str) -> Result<TraceCollector> {
        let refused = |fault: &str| {
            let sentence = format!(
                "the collector {endpoint:?} {fault}: give http://HOST:PORT, such as http://127.0.0.1:4318"
            );
            Error::with_kind(ErrorKind::Refused, sentence)
        };
        let uri: Uri = endpoint.parse().map_err(|error| refused(&format!("is no address ({error})")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(refused("needs TLS, which traces do not have")),
            _ => return Err(refused("does not begin with http://")),
        }
        let authority = uri.authority().ok_or_else(|| refused("has no host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(refused("has a user name or a query"));
        }
        let port = authority.port_u16().ok_or_else(|| refused("has no port"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let found = (host, port).to_socket_addrs();
        let addresses: Vec<SocketAddr> =
            found.map_err(|error| refused(&format!("has no address ({error})")))?.collect();
        if addresses.is_empty() {
            return Err(refused("has no address"));
        }
        let path = format!("{}/v1/traces", uri.path().trim_end_matches('/'));
        Ok(TraceCollector { authority: authority.to_string(), path, addresses })
    }

    /// The collector at `endpoint`.
    ///
    /// # Errors
    /// Always, as the feature `otlp` is off.
    #[cfg(not(feature = "otlp"))]
    pub fn at(endpoint: &str) -> Result<TraceCollector> {
        let sentence = format!(
            "the collector {endpoint:?} cannot be used: this program was built without traces; build it with \
             --features otlp"
        );
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }

    /// Its TCP port.
    pub fn port(&self) -> u16 {
        #[cfg(feature = "otlp")]
        return self.addresses[0].port();
        #[cfg(not(feature = "otlp"))]
        match self.absent {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "otlp")]
    fn an_endpoint_is_a_base_to_which_the_path_is_appended() {
        let path_of = |endpoint| TraceCollector::at(endpoint).expect("a collector").path;
        assert_eq!(path_of("http://127.0.0.1:4318"), "/v1/traces");
        assert_eq!(path_of("http://[::1]:4318/otlp/"), "/otlp/v1/traces");
        let bad = [
            "https://127.0.0.1:4318",
            "127.0.0.1:4318",
            "http://127.0.0.1",
            "http://me@127.0.0.1:4318",
            "http://127.0.0.1:4318/?a",
            "",
        ];
        for endpoint in bad {
            let error = TraceCollector::at(endpoint).expect_err(endpoint).to_string();
            assert!(error.contains("give http://HOST:PORT"), "{error}");
        }
    }

    #[test]
    #[cfg(not(feature = "otlp"))]
    fn a_program_without_traces_says_so() {
        let error = TraceCollector::at("http://127.0.0.1:4318").expect_err("no traces").to_string();
        assert!(error.contains("--features otlp"), "{error}");
    }
}
