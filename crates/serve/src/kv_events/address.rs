//! Where events are published: addresses as ZeroMQ writes them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use girih::{Error, ErrorKind, Result};

/// An address to listen on, written `tcp://ADDRESS:PORT`; `*` is any address of IPv4, and port 0 any free one.
///
/// ```
/// use girih_serve::KvEventsAddress;
///
/// let address: KvEventsAddress = "tcp://127.0.0.1:5557".parse()?;
/// assert_eq!(address.to_string(), "tcp://127.0.0.1:5557");
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvEventsAddress(pub SocketAddr);

/// How events of the KV cache are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsOptions {
    /// Where subscribers connect.
    pub address: KvEventsAddress,
    /// Where subscribers ask for messages that they have missed.
    pub replay: Option<KvEventsAddress>,
    /// What routers call this server; `None` for the address and port of its API.
    pub pod: Option<String>,
    /// Whether other machines may listen. Events have the tokens of all prompts.
    pub is_known_to_be_open: bool,
}

impl FromStr for KvEventsAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<KvEventsAddress> {
        let parsed = text.strip_prefix("tcp://").and_then(|rest| match rest.strip_prefix("*:") {
            Some(port) => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port.parse().ok()?)),
            None => rest.parse().ok(),
        });
        parsed.map(KvEventsAddress).ok_or_else(|| {
            let shown: String = text.chars().take(100).collect();
            let sentence =
                format!("{shown:?} is no address for events; give one such as tcp://127.0.0.1:5557");
            Error::with_kind(ErrorKind::Refused, sentence)
        })
    }
}

impl fmt::Display for KvEventsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}", self.0)
    }
}

impl KvEventsAddress {
    /// Refuses an address that other machines can reach, unless the operator knows that they may listen.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`].
    pub(super) fn check(self, may_be_open: bool) -> Result<()> {
        if may_be_open || self.0.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        let sentence = format!(
            "{self} can be reached by other machines, and events have the tokens of all prompts; listen on \
             127.0.0.1, or allow it with --kv-events-open"
        );
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_checked() {
        let parsed = |text: &str| text.parse::<KvEventsAddress>();
        assert_eq!(parsed("tcp://*:5557").unwrap().to_string(), "tcp://0.0.0.0:5557");
        assert_eq!(parsed("tcp://[::1]:7").unwrap().to_string(), "tcp://[::1]:7");
        for wrong in
            ["127.0.0.1:5557", "tcp://5557", "ipc:///run/x", "tcp://localhost:1", "tcp://*:99999", ""]
        {
            assert!(parsed(wrong).unwrap_err().to_string().contains("is no address"), "{wrong}");
        }
        assert!(parsed("tcp://127.0.0.1:1").unwrap().check(false).is_ok());
        let open = parsed("tcp://*:1").unwrap();
        assert!(open.check(false).unwrap_err().to_string().contains("--kv-events-open"));
        assert!(open.check(true).is_ok());
    }
}
