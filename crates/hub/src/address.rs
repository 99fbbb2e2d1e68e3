//! Absolute http and https URLs. The `url` crate parses and joins them; this
//! module rejects everything that downloads do not need.

use std::fmt;
use std::io;

use girih_file::shorten;
use url::{Host, ParseError, Url};

/// An absolute http or https URL without user, password or fragment.
#[derive(Clone, Debug)]
pub(super) struct Address(Url);

impl Address {
    pub fn parse(text: &str) -> Result<Address, String> {
        if !text.contains("://") {
            return Err("it has no scheme".to_owned());
        }
        Address::checked(text, Url::parse(text))
    }

    /// Returns this URL with `path` appended to its path, and with `query`.
    pub fn under(&self, path: &str, query: Option<&str>) -> Address {
        let mut url = self.0.clone();
        url.set_path(&format!("{}/{path}", self.0.path().trim_end_matches('/')));
        url.set_query(query);
        Address(url)
    }

    /// Resolves a `Location` header relative to this URL.
    pub fn join(&self, location: &str) -> Result<Address, String> {
        Address::checked(location, self.0.join(location))
    }

    fn checked(text: &str, parsed: Result<Url, ParseError>) -> Result<Address, String> {
        // `Url` drops white space and reads a backslash as a slash.
        if text.contains('\\') || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(no_host());
        }
        let mut url = parsed.map_err(|error| error.to_string())?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("its scheme is {:?}; https is needed", url.scheme()));
        }
        // `Url` takes the text after three slashes for the host.
        let is_empty = text.get(url.scheme().len()..).is_some_and(|rest| rest.starts_with(":///"));
        if is_empty || !url.username().is_empty() || url.password().is_some() {
            return Err(no_host());
        }
        url.set_fragment(None);
        Ok(Address(url))
    }

    pub fn same_origin(&self, other: &Address) -> bool {
        self.0.origin() == other.0.origin()
    }

    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    pub fn is_loopback(&self) -> bool {
        match self.0.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
    }

    /// The name or number of the host.
    pub fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }

    /// The host, as a name or as an address.
    pub fn literal_host(&self) -> Option<Host<&str>> {
        self.0.host()
    }

    /// The port, which the scheme has if the URL has none.
    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or_default()
    }

    /// Asks the system for an address of the host.
    pub fn resolve(&self) -> io::Result<()> {
        self.0.socket_addrs(|| None).map(drop)
    }

    /// The whole URL with its query, which is a secret in presigned URLs.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for Address {
    /// Writes the URL without its query, for errors: a server may redirect to a long one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.as_str();
        f.write_str(&shorten(all.split('?').next().unwrap_or_default()))
    }
}

fn no_host() -> String {
    "its host is not a plain host name".to_owned()
}

/// Percent-encodes a path or a query's value; slashes are kept.
pub(super) fn encode(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    text.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_joined_as_in_a_browser() {
        let base = Address::parse("https://Hub.Example:443/a/b?x=1").unwrap();
        let cases = [
            ("/c?q", "https://hub.example/c?q"),
            ("c", "https://hub.example/a/c"),
            ("//cdn:8/c", "https://cdn:8/c"),
            ("http://cdn/c#part", "http://cdn/c"),
            ("https://cdn", "https://cdn/"),
            ("/c?to=http://x", "https://hub.example/c?to=http://x"),
            ("c?to=http:///x", "https://hub.example/a/c?to=http:///x"),
            ("?y", "https://hub.example/a/b?y"),
            ("../c/%2Fd", "https://hub.example/c/%2Fd"),
        ];
        for (location, want) in cases {
            assert_eq!(base.join(location).unwrap().as_str(), want);
        }
        for location in [
            "file:///etc/passwd",
            "ftp://x/",
            "https://user@host/",
            "https:///x",
            "https://a b/",
            "https://a\\b/",
        ] {
            assert!(base.join(location).is_err(), "{location}");
        }
        assert_eq!(base.to_string(), "https://hub.example/a/b");
    }

    #[test]
    fn a_path_is_appended_to_the_endpoints_path() {
        for endpoint in ["https://hub/mirror", "https://hub/mirror/"] {
            let endpoint = Address::parse(endpoint).unwrap();
            let path = format!("a/resolve/{}", encode("b c?/x%2F.json"));
            let found = endpoint.under(&path, Some("blobs=true"));
            assert_eq!(found.as_str(), "https://hub/mirror/a/resolve/b%20c%3F/x%252F.json?blobs=true");
        }
        assert_eq!(Address::parse("https://hub").unwrap().under("a", None).as_str(), "https://hub/a");
        assert_eq!(Address::parse("hub.example").unwrap_err(), "it has no scheme");
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for host in ["localhost", "localhost:1", "127.0.0.1:80", "127.9.9.9", "[::1]:2", "[::1]"] {
            assert!(Address::parse(&format!("http://{host}/")).unwrap().is_loopback(), "{host}");
        }
        for host in ["127.0.0.1.evil.example", "localhost.example", "10.0.0.1", "[::2]", "example:127"] {
            assert!(!Address::parse(&format!("http://{host}/")).unwrap().is_loopback(), "{host}");
        }
    }

    #[test]
    fn paths_are_percent_encoded() {
        assert_eq!(encode("a b/c?#%é.json"), "a%20b/c%3F%23%25%C3%A9.json");
    }
}
