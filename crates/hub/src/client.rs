//! The HTTP client: sends requests and the token, follows redirects, and turns
//! a status or a broken connection into an error.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use girih_tensor::{Error, ErrorKind, Result};
use ureq::http::header::{HeaderMap, LOCATION, RETRY_AFTER};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, BodyReader, Proxy, ProxyProtocol};

use super::address::Address;
use super::env::HubEnv;
use super::options::PullOptions;
use super::resolve::check_resolves;

/// The maximum number of redirects of one request; the hub uses one or two.
const REDIRECTS_MAX: u32 = 5;
/// The minimum number of bytes within the stall timeout; a slower connection
/// counts as stalled.
const STALL_BYTES_MIN: u64 = 4096;

/// A failed request, and whether to retry it.
#[derive(Debug)]
pub(super) enum RequestFailure {
    /// A retry would fail, too.
    Permanent(Error),
    /// A retry may succeed; `wait` is the server's `Retry-After`.
    Transient { error: Error, wait: Option<Duration> },
}

impl RequestFailure {
    pub fn transient(sentence: String) -> RequestFailure {
        RequestFailure::Transient { error: Error::new(sentence), wait: None }
    }

    pub fn permanent(sentence: String) -> RequestFailure {
        RequestFailure::Permanent(Error::new(sentence))
    }
}

impl From<Error> for RequestFailure {
    fn from(error: Error) -> RequestFailure {
        RequestFailure::Permanent(error)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
}

/// A file's metadata in the headers of the endpoint; those of a storage host
/// that it redirects to are ignored.
#[derive(Default, Debug)]
pub(super) struct FileMetadata {
    pub commit: Option<String>,
    pub etag: Option<String>,
    pub size: Option<u64>,
}

impl FileMetadata {
    fn update(&mut self, response: &Response<Body>) {
        let headers = response.headers();
        let set = |slot: &mut Option<String>, names: &[&str]| {
            if let Some(value) = names.iter().find_map(|name| text_of(headers, name)) {
                *slot = Some(value.trim_start_matches("W/").trim_matches('"').to_owned());
            }
        };
        set(&mut self.commit, &["x-repo-commit"]);
        set(&mut self.etag, &["x-linked-etag", "etag"]);
        let length = if response.status() == StatusCode::OK { "content-length" } else { "" };
        let size = ["x-linked-size", length].iter().find_map(|name| text_of(headers, name)?.parse().ok());
        self.size = size.or(self.size);
    }
}

/// A header's value; `None` if it is absent or not plain text.
pub(super) fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// A final response: 200, 206 or 416; for a HEAD also the redirect to a storage
/// host.
pub(super) struct HubResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: MeteredBody,
    pub metadata: FileMetadata,
}

/// A client of one endpoint.
pub(super) struct HubClient {
    agent: Agent,
    endpoint: Address,
    token: Option<String>,
    /// Whether a proxy resolves the names of hosts.
    has_proxy: bool,
    /// The least rates of a body: by [`PullOptions::stall_timeout`] and [`PullOptions::rate_min`].
    rates: [MinRate; 2],
}

impl HubClient {
    pub fn new(env: &HubEnv, options: &PullOptions) -> Result<HubClient> {
        let endpoint = Address::parse(&env.endpoint)
            .map_err(|why| Error::new(format!("HF_ENDPOINT {:?} is not a URL: {why}", env.endpoint)))?;
        if !endpoint.is_https() && !endpoint.is_loopback() {
            let text = "http is supported for servers on this machine only; use https";
            return Err(Error::new(text).of(format!("HF_ENDPOINT {endpoint}")));
        }
        // The proxy is set even to `None`: by default ureq reads the environment,
        // which only the command line may read.
        let proxy = if endpoint.is_loopback() { None } else { proxy(env)? };
        let has_proxy = proxy.is_some();
        let agent = Agent::config_builder()
            .user_agent(concat!("girih/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy)
            .timeout_resolve(Some(options.connect_timeout))
            .timeout_connect(Some(options.connect_timeout))
            .timeout_send_request(Some(options.stall_timeout))
            .timeout_recv_response(Some(options.stall_timeout))
            .timeout_per_read(Some(options.stall_timeout))
            .build()
            .new_agent();
        let nanoseconds = u128::from(options.rate_min) * options.rate_window.as_nanos();
        let bytes_min = u64::try_from(nanoseconds.div_ceil(1_000_000_000)).unwrap_or(u64::MAX);
        let rates = [
            MinRate { period: options.stall_timeout, bytes_min: STALL_BYTES_MIN },
            MinRate { period: options.rate_window, bytes_min },
        ];
        Ok(HubClient { agent, endpoint, token: env.token.clone(), has_proxy, rates })
    }

    /// The URL of a path on the endpoint.
    pub fn address(&self, path: &str, query: Option<&str>) -> Address {
        self.endpoint.under(path, query)
    }

    /// Checks that the endpoint's name can be resolved, unless a proxy resolves it.
    pub fn check_host(&self) -> Result<()> {
        if self.has_proxy { Ok(()) } else { check_resolves(&self.endpoint) }
    }

    /// Requests the bytes of `url` from offset `from` on, following redirects.
    pub fn send(&self, method: Method, url: &Address, from: u64) -> Result<HubResponse, RequestFailure> {
        let mut url = url.clone();
        let mut metadata = FileMetadata::default();
        for _ in 0..=REDIRECTS_MAX {
            let response = self.send_once(method, &url, from)?;
            if url.same_origin(&self.endpoint) {
                metadata.update(&response);
            }
            if !is_redirect(response.status()) {
                self.check_status(&url, &response)?;
                return Ok(self.finish(response, metadata));
            }
            let next = redirect_of(&url, &response)?;
            // A HEAD request needs the endpoint's headers; a storage host sends
            // fewer.
            if method == Method::Head && !next.same_origin(&self.endpoint) {
                return Ok(self.finish(response, metadata));
            }
            url = next;
        }
        Err(RequestFailure::permanent(format!(
            "{url}: more than {REDIRECTS_MAX} redirects; the server redirects in a loop"
        )))
    }

    fn send_once(&self, method: Method, url: &Address, from: u64) -> Result<Response<Body>, RequestFailure> {
        let mut request = match method {
            Method::Get => self.agent.get(url.as_str()),
            Method::Head => self.agent.head(url.as_str()),
        };
        if let Some(token) = self.token.as_ref().filter(|_| url.same_origin(&self.endpoint)) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        request.call().map_err(|error| broken(&url.to_string(), error))
    }

    fn finish(&self, response: Response<Body>, metadata: FileMetadata) -> HubResponse {
        let (parts, body) = response.into_parts();
        let body = MeteredBody::new(body, self.rates);
        HubResponse { status: parts.status, headers: parts.headers, body, metadata }
    }

    /// Accepts 200, 206 and 416; any other status is an error.
    fn check_status(&self, url: &Address, response: &Response<Body>) -> Result<(), RequestFailure> {
        let status = response.status().as_u16();
        let why = match status {
            200 | 206 | 416 => return Ok(()),
            429 => "too many requests",
            500..=599 => "a server error",
            // Presigned URLs expire; a retry requests a new one from the
            // endpoint.
            403 if !url.same_origin(&self.endpoint) => "the storage host refuses the presigned URL",
            401 if self.token.is_some() => {
                "the token is invalid, or the model does not exist; check the id and HF_TOKEN"
            }
            401 => "the model does not exist, or is private or gated; check the id, or set HF_TOKEN",
            403 => {
                "access denied; accept the model's terms on its page, then set HF_TOKEN to a token of that account"
            }
            404 => "the model, revision or file does not exist; check the id",
            _ => "an unexpected status; check HF_ENDPOINT",
        };
        let kind = if status == 404 { ErrorKind::NotFound } else { ErrorKind::Other };
        let error = Error::with_kind(kind, format!("{url}: the server answers {status}: {why}"));
        let may_pass =
            matches!(status, 429 | 500..=599) || (status == 403 && !url.same_origin(&self.endpoint));
        if !may_pass {
            return Err(RequestFailure::Permanent(error));
        }
        let wait = text_of(response.headers(), RETRY_AFTER.as_str()).and_then(|value| value.parse().ok());
        Err(RequestFailure::Transient { error, wait: wait.map(Duration::from_secs) })
    }
}

/// The proxy, which is used by CONNECT only: it sees host names, but neither
/// the token nor the bytes.
fn proxy(env: &HubEnv) -> Result<Option<Proxy>> {
    let Some(text) = &env.proxy else { return Ok(None) };
    let refused =
        |_| Error::new("the proxy of HTTPS_PROXY or ALL_PROXY is not a URL such as http://host:port");
    let given = Proxy::new(text).map_err(refused)?;
    if !matches!(given.protocol(), ProxyProtocol::Http | ProxyProtocol::Https) {
        return Err(Error::new(
            "the proxy of HTTPS_PROXY or ALL_PROXY has an unsupported scheme; use an http proxy",
        ));
    }
    let mut builder = Proxy::builder(given.protocol()).host(given.host()).port(given.port());
    if let Some(name) = given.username() {
        builder = builder.username(name);
    }
    if let Some(password) = given.password() {
        builder = builder.password(password);
    }
    builder = env.no_proxy.iter().fold(builder, |builder, host| builder.no_proxy(host));
    builder.build().map(Some).map_err(refused)
}

/// Whether a status leads to another URL.
pub(super) fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn redirect_of(from: &Address, response: &Response<Body>) -> Result<Address, RequestFailure> {
    let location = text_of(response.headers(), LOCATION.as_str());
    let next = location
        .ok_or_else(|| "without a Location header".to_owned())
        .and_then(|to| redirect_target(from, to));
    next.map_err(|why| RequestFailure::permanent(format!("{from}: redirects {why}; refused")))
}

/// The target of a redirect: an https URL, or a URL on this machine if `from`
/// is on this machine.
fn redirect_target(from: &Address, location: &str) -> Result<Address, String> {
    let next = from.join(location).map_err(|why| format!("to an invalid URL: {why}"))?;
    if next.is_https() || (!from.is_https() && next.is_loopback()) {
        return Ok(next);
    }
    Err(format!("to {next}, which is not https"))
}

/// Classifies a transport error. A broken connection is worth a retry; an
/// unknown host, a bad certificate or an invalid URL is not.
fn broken(url: &str, error: ureq::Error) -> RequestFailure {
    match error {
        ureq::Error::Timeout(kind) => {
            RequestFailure::transient(format!("{url}: no progress within the timeout ({kind})"))
        }
        ureq::Error::Io(error) if is_of_connect(error.kind()) => {
            RequestFailure::transient(format!("{url}: cannot connect ({error})"))
        }
        ureq::Error::Io(error) if error.kind() != io::ErrorKind::InvalidData => {
            RequestFailure::transient(format!("{url}: the connection broke ({error})"))
        }
        ureq::Error::ConnectionFailed => RequestFailure::transient(format!("{url}: cannot connect")),
        ureq::Error::BodyStalled => RequestFailure::transient(format!("{url}: the connection broke")),
        ureq::Error::HostNotFound => RequestFailure::permanent(format!(
            "{url}: the host was not found; check the network and HF_ENDPOINT"
        )),
        other => RequestFailure::permanent(format!("{url}: the request failed ({other})")),
    }
}

/// Whether there was no connection yet when an error of this kind occurred.
fn is_of_connect(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(kind, ConnectionRefused | HostUnreachable | NetworkUnreachable | AddrNotAvailable)
}

/// The bytes that must arrive in each period of a length.
#[derive(Clone, Copy)]
struct MinRate {
    period: Duration,
    bytes_min: u64,
}

/// The bytes that have arrived in the current period of a [`MinRate`].
struct RateMeter {
    rate: MinRate,
    start: Instant,
    bytes: u64,
}

impl RateMeter {
    fn new(rate: MinRate) -> RateMeter {
        RateMeter { rate, start: Instant::now(), bytes: 0 }
    }

    /// Counts bytes; returns those of the period if it has ended with too few.
    fn count(&mut self, bytes: u64) -> Option<u64> {
        self.bytes += bytes;
        if self.start.elapsed() < self.rate.period {
            return None;
        }
        let ended = self.bytes;
        *self = RateMeter::new(self.rate);
        (ended < self.rate.bytes_min).then_some(ended)
    }
}

/// A response's body that fails if bytes arrive too slowly or not at all.
pub(super) struct MeteredBody {
    reader: BodyReader<'static>,
    /// Whether the connection has stalled, and its rate over a longer time.
    meters: [RateMeter; 2],
}

impl MeteredBody {
    fn new(body: Body, rates: [MinRate; 2]) -> MeteredBody {
        MeteredBody { reader: body.into_reader(), meters: rates.map(RateMeter::new) }
    }

    /// Reads some bytes; returns 0 at the end of the body.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, RequestFailure> {
        let count = match self.reader.read(buffer) {
            Ok(count) => count,
            Err(error) => return Err(broken("the download", error.into())),
        };
        for meter in &mut self.meters {
            // The end of the body needs no rate.
            if let Some(bytes) = meter.count(count as u64).filter(|_| count > 0) {
                let MinRate { period, bytes_min } = meter.rate;
                return Err(RequestFailure::transient(format!(
                    "the download makes too little progress: {bytes} bytes in {period:?}; {bytes_min} are needed"
                )));
            }
        }
        Ok(count)
    }

    /// Reads the whole body of at most `max` bytes until `deadline`.
    pub fn read_all(mut self, max: u64, deadline: &Deadline) -> Result<Vec<u8>, RequestFailure> {
        let mut all = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = self.read(&mut buffer)?;
            if count == 0 {
                return Ok(all);
            }
            deadline.check()?;
            if all.len() as u64 + count as u64 > max {
                return Err(RequestFailure::permanent(format!(
                    "the response is longer than the cap of {max} bytes"
                )));
            }
            all.extend_from_slice(&buffer[..count]);
        }
    }
}

/// The time at which an answer must be complete.
pub(super) struct Deadline {
    start: Instant,
    timeout: Duration,
}

impl Deadline {
    /// After `timeout` from now on.
    pub fn after(timeout: Duration) -> Deadline {
        Deadline { start: Instant::now(), timeout }
    }

    /// Fails if the time is over.
    pub fn check(&self) -> Result<(), RequestFailure> {
        self.check_after(Duration::ZERO)
    }

    /// Fails if the time will be over after a wait.
    pub fn check_after(&self, wait: Duration) -> Result<(), RequestFailure> {
        if self.start.elapsed().saturating_add(wait) < self.timeout {
            return Ok(());
        }
        let timeout = self.timeout;
        Err(RequestFailure::permanent(format!(
            "the server did not send the list of files within {timeout:?}; pull again later"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_never_leaves_https() {
        let target = |from: &str, to: &str| redirect_target(&Address::parse(from).unwrap(), to);
        assert!(target("https://hub", "https://cdn/x").is_ok());
        assert!(target("http://localhost:1", "http://127.0.0.1:2/x").is_ok());
        for (from, to) in [
            ("https://hub", "http://hub/x"),
            ("https://hub", "http://localhost/x"),
            ("http://localhost", "http://example/x"),
            ("https://hub", "file:///etc/passwd"),
        ] {
            assert!(target(from, to).is_err(), "{from} {to}");
        }
    }

    #[test]
    fn plain_http_to_another_machine_is_refused() {
        let env = HubEnv::new("/nonexistent", "http://mirror.example");
        let error = HubClient::new(&env, &PullOptions::default()).err().unwrap().to_string();
        assert!(error.contains("use https"), "{error}");
    }
}
