//! Fetches a file that a stranger names by URL: only from public addresses, and with little.
//!
//! A name is resolved once for each request, the address is checked, and the connection goes to the checked one, so
//! that a name whose address changes in between leads nowhere else.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use girih_tensor::{Error, ErrorKind, Result};
use rustix::io::Errno;
use ureq::config::Config;
use ureq::http::header::{CONTENT_LENGTH, LOCATION};
use ureq::http::{Response, Uri};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body};
use url::Host;

use super::address::Address;
use super::client::{is_redirect, text_of};

/// The maximum number of redirects.
const REDIRECTS_MAX: u32 = 3;

/// The maximum length of a URL.
const URL_BYTES_MAX: usize = 4096;

/// The maximum bytes of the headers of a response.
const HEADER_BYTES_MAX: usize = 32 << 10;

/// What a fetch may take.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// The maximum number of bytes of the file.
    pub bytes: u64,
    /// The time for all of it, redirects included.
    pub time: Duration,
}

/// The addresses of a host of this name, with this port.
type Lookup<'a> = &'a (dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync);

/// How a fetch reaches other machines.
#[derive(Clone, Copy)]
pub struct FetchNetwork<'a> {
    /// Looks up a name.
    pub lookup: Lookup<'a>,
    /// Whether a connection may go to an address.
    pub allows: fn(IpAddr) -> bool,
}

impl std::fmt::Debug for FetchNetwork<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FetchNetwork").finish_non_exhaustive()
    }
}

impl FetchNetwork<'static> {
    /// The system's lookup, and public addresses of other machines only.
    pub fn public() -> FetchNetwork<'static> {
        FetchNetwork { lookup: &system_lookup, allows: |address| is_public(address) && !is_own(address) }
    }
}

/// Fetches the bytes at a URL of http or https, without cookies, keys or a proxy. At most 3 redirects are followed, never
/// from https to http, and each is checked as the first URL is.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`], with a sentence for who named the URL: it does not tell a name that has no address
/// from one whose address is not allowed.
pub fn fetch(url: &str, limits: FetchLimits, network: FetchNetwork<'_>) -> Result<Vec<u8>> {
    if url.len() > URL_BYTES_MAX {
        return Err(refused(format!("the URL has {} bytes; the maximum is {URL_BYTES_MAX}", url.len())));
    }
    let mut address =
        Address::parse(url).map_err(|why| refused(format!("the URL cannot be fetched: {why}")))?;
    let deadline = FetchDeadline { begun: Instant::now(), time: limits.time };
    for _ in 0..=REDIRECTS_MAX {
        let response = requested(&address, deadline, network)?;
        if !is_redirect(response.status()) {
            return body(&address, response, limits.bytes, deadline);
        }
        address = redirected(&address, &response)?;
    }
    Err(refused(format!("{address} is reached after more than {REDIRECTS_MAX} redirects")))
}

/// When a fetch must be complete.
#[derive(Clone, Copy)]
struct FetchDeadline {
    begun: Instant,
    time: Duration,
}

impl FetchDeadline {
    /// What is left of the time.
    fn left(self) -> Result<Duration> {
        let left = self.time.checked_sub(self.begun.elapsed()).filter(|left| !left.is_zero());
        left.ok_or_else(|| refused(format!("the file did not arrive within {:?}", self.time)))
    }
}

/// The response to a request, redirects included.
fn requested(
    address: &Address,
    deadline: FetchDeadline,
    network: FetchNetwork<'_>,
) -> Result<Response<Body>> {
    let addresses = checked_addresses(address, deadline, network)?;
    let config = Agent::config_builder()
        .user_agent(concat!("girih/", env!("CARGO_PKG_VERSION")))
        .accept("image/*")
        .accept_encoding("identity")
        .http_status_as_error(false)
        .max_redirects(0)
        .max_response_header_size(HEADER_BYTES_MAX)
        // By default, ureq reads the environment.
        .proxy(None)
        .timeout_global(Some(deadline.left()?))
        .build();
    let agent = Agent::with_parts(config, DefaultConnector::default(), CheckedAddresses(addresses));
    let sent = agent.get(address.as_str()).call();
    sent.map_err(|error| refused(format!("{address} cannot be fetched: {error}")))
}

/// The addresses of a URL's host to which a connection may go; at least one.
fn checked_addresses(
    address: &Address,
    deadline: FetchDeadline,
    network: FetchNetwork<'_>,
) -> Result<Vec<SocketAddr>> {
    let port = address.port();
    let found = match address.literal_host() {
        Some(Host::Ipv4(ip)) => vec![SocketAddr::new(ip.into(), port)],
        Some(Host::Ipv6(ip)) => vec![SocketAddr::new(ip.into(), port)],
        Some(Host::Domain(name)) => {
            let found = (network.lookup)(name, port).unwrap_or_default();
            deadline.left()?;
            found
        }
        None => Vec::new(),
    };
    let allowed: Vec<SocketAddr> = found.into_iter().filter(|found| (network.allows)(found.ip())).collect();
    match allowed.is_empty() {
        false => Ok(allowed),
        true => Err(refused(format!("{address} cannot be fetched: its host has no public address"))),
    }
}

/// The addresses to which the connection goes, whatever the name has become.
#[derive(Debug)]
struct CheckedAddresses(Vec<SocketAddr>);

impl Resolver for CheckedAddresses {
    fn resolve(
        &self,
        _: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> std::result::Result<ResolvedSocketAddrs, ureq::Error> {
        /// What [`ResolvedSocketAddrs`] holds.
        const MAX: usize = 16;
        let mut all = self.empty();
        self.0.iter().take(MAX).for_each(|address| all.push(*address));
        Ok(all)
    }
}

/// The URL to which a response redirects.
fn redirected(from: &Address, response: &Response<Body>) -> Result<Address> {
    let to = text_of(response.headers(), LOCATION.as_str());
    let to = to.filter(|to| to.len() <= URL_BYTES_MAX).ok_or_else(|| "nowhere".to_owned());
    let next = to.and_then(|to| from.join(to).map_err(|why| format!("to an invalid URL: {why}")));
    let next = next.map_err(|why| refused(format!("{from} redirects {why}")))?;
    match from.is_https() && !next.is_https() {
        false => Ok(next),
        true => Err(refused(format!("{from} redirects to {next}, which is not https"))),
    }
}

/// The bytes of a response.
fn body(address: &Address, response: Response<Body>, max: u64, deadline: FetchDeadline) -> Result<Vec<u8>> {
    let status = response.status().as_u16();
    if status != 200 {
        return Err(refused(format!("{address} cannot be fetched: its server answers {status}")));
    }
    let too_large = || refused(format!("{address} has more than {max} bytes, the maximum"));
    let declared =
        text_of(response.headers(), CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
    if declared.is_some_and(|length: u64| length > max) {
        return Err(too_large());
    }
    let mut reader = response.into_body().into_reader();
    let (mut all, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        deadline.left()?;
        let count = reader.read(&mut piece);
        let count = count.map_err(|error| refused(format!("{address} cannot be fetched: {error}")))?;
        if count == 0 {
            return Ok(all);
        }
        if (all.len() + count) as u64 > max {
            return Err(too_large());
        }
        all.extend_from_slice(&piece[..count]);
    }
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// Asks the system for the addresses of a name.
fn system_lookup(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    /// The system's lookup has no timeout. A thread that still waits ends with the process.
    const TIME: Duration = Duration::from_secs(5);
    let (sender, receiver) = sync_channel(1);
    let name = name.to_owned();
    std::thread::Builder::new().spawn(move || {
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
        // The receiver is gone if the time was over.
        let _ = sender.send(found);
    })?;
    receiver.recv_timeout(TIME).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Checks that the addresses of this machine can be told from others, so that a fetch is refused for them.
///
/// # Errors
/// When the kernel lets sockets be bound to addresses of other machines.
pub fn check_own_addresses() -> Result<()> {
    // Of documentation (RFC 5737 and RFC 3849): no machine has them.
    let strange = [
        ("ipv4", IpAddr::from(Ipv4Addr::new(192, 0, 2, 1))),
        ("ipv6", IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))),
    ];
    match strange.into_iter().find(|(_, address)| is_own(*address)) {
        None => Ok(()),
        Some((family, address)) => Err(refused(format!(
            "the addresses of this machine cannot be told from others, as the kernel binds {address}; set \
             net.{family}.ip_nonlocal_bind to 0"
        ))),
    }
}

/// Whether an address is one of this machine: a socket can be bound to it, or packets to it come from it. A bound or
/// connected UDP socket sends none. Neither would do alone: packets to a secondary address of an interface come from its
/// primary one, and an address that only a route makes local may not be bound. An unknown fault counts as own.
fn is_own(address: IpAddr) -> bool {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => is_own_source(address),
            _ => true,
        },
    }
}

/// Whether packets to an address come from it.
fn is_own_source(address: IpAddr) -> bool {
    let any = match address {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

/// Whether an address is of a machine on the public network: none of those that IANA's registries of special-purpose
/// addresses (RFC 6890) and of multicast have. Addresses of IPv6 that stand for one of IPv4 (mapped, NAT64, 6to4, Teredo)
/// are none.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// The networks of IPv4 that are not public, with the bits of their prefixes.
const SPECIAL_V4: [([u8; 4], u32); 17] = [
    ([0, 0, 0, 0], 8),       // this network
    ([10, 0, 0, 0], 8),      // private
    ([100, 64, 0, 0], 10),   // of providers
    ([127, 0, 0, 0], 8),     // loopback
    ([169, 254, 0, 0], 16),  // link-local, such as metadata of clouds
    ([172, 16, 0, 0], 12),   // private
    ([192, 0, 0, 0], 24),    // protocols
    ([192, 0, 2, 0], 24),    // documentation
    ([192, 31, 196, 0], 24), // AS112
    ([192, 52, 193, 0], 24), // AMT
    ([192, 88, 99, 0], 24),  // 6to4 relays
    ([192, 168, 0, 0], 16),  // private
    ([192, 175, 48, 0], 24), // AS112
    ([198, 18, 0, 0], 15),   // benchmarks
    ([198, 51, 100, 0], 24), // documentation
    ([203, 0, 113, 0], 24),  // documentation
    ([224, 0, 0, 0], 3),     // multicast, reserved, broadcast
];

/// The networks of IPv6 within 2000::/3, the only public one, that are not public.
const SPECIAL_V6: [([u16; 3], u32); 5] = [
    ([0x2001, 0, 0], 23),         // protocols, Teredo
    ([0x2001, 0xdb8, 0], 32),     // documentation
    ([0x2002, 0, 0], 16),         // 6to4
    ([0x2620, 0x4f, 0x8000], 48), // AS112
    ([0x3fff, 0, 0], 20),         // documentation
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    let is_in = |(network, bits): &([u8; 4], u32)| {
        let rest = 32 - bits;
        u32::from(address) >> rest == u32::from(Ipv4Addr::from(*network)) >> rest
    };
    !SPECIAL_V4.iter().any(is_in)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let is_in = |network: Ipv6Addr, bits: u32| {
        u128::from(address) >> (128 - bits) == u128::from(network) >> (128 - bits)
    };
    let is_special =
        SPECIAL_V6.iter().any(|([a, b, c], bits)| is_in(Ipv6Addr::new(*a, *b, *c, 0, 0, 0, 0, 0), *bits));
    is_in(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3) && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known() {
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(is_own(Ipv6Addr::LOCALHOST.into()) || UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err());
        check_own_addresses().unwrap();
    }

    /// Packets to 127.0.0.2 come from 127.0.0.1, as those to a secondary address come from the primary one of its interface.
    #[test]
    fn secondary_addresses_of_this_machine_are_known() {
        let secondary = Ipv4Addr::new(127, 0, 0, 2).into();
        assert!(!is_own_source(secondary) && is_own(secondary));
    }

    #[test]
    fn only_public_addresses_are_public() {
        let is = |text: &str| is_public(text.parse().expect("an address"));
        for public in [
            "8.8.8.8",
            "172.15.0.1",
            "172.32.0.1",
            "100.128.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860::1",
        ] {
            assert!(is(public), "{public}");
        }
        for special in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "192.175.48.1",
            "198.19.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:8.8.8.8",
            "::ffff:127.0.0.1",
            "::8.8.8.8",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2620:4f:8000::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is(special), "{special}");
        }
    }
}
