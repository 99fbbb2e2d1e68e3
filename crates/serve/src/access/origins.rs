//! Pages of other origins: which of them may call the server, and the headers by which browsers let them
//! (the CORS protocol of the Fetch standard).

use std::collections::BTreeSet;

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use girih::{Error, ErrorKind, Result};

use super::authority::{Authority, parsed, shown};
use crate::error::ApiError;

/// The header by which browsers say whether a request comes from a page of the same site.
pub(super) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What a preflight asks before a page of the web calls an address of the local network (Private Network Access).
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");

/// The answer to [`REQUEST_PRIVATE_NETWORK`].
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// The methods of the routes.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, DELETE");

/// The seconds for which a browser may keep the answer to a preflight: Chromium's maximum.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// The headers that pages may read in each response, beside those that any page may.
const EXPOSED: [&str; 2] = ["x-request-id", "retry-after"];

/// How girih's own headers begin, which pages may read, too.
const EXPOSED_PREFIX: &str = "x-girih-";

/// The maximum bytes of an origin; those of extensions have about 60.
const MAX_ORIGIN_BYTES: usize = 300;

/// The origins whose pages may call the server beside its own.
#[derive(Clone, Debug)]
pub enum AllowedOrigins {
    /// These, in the form that browsers send.
    Listed(BTreeSet<String>),
    /// All, also those without a name (`null`).
    All,
}

impl Default for AllowedOrigins {
    /// None.
    fn default() -> AllowedOrigins {
        AllowedOrigins::Listed(BTreeSet::new())
    }
}

impl AllowedOrigins {
    /// The origins of a list: `SCHEME://HOST[:PORT]` each, or `*` for all, which needs keys.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when one is no origin, or `*` stands without keys.
    pub fn new(given: &[String], has_keys: bool) -> Result<AllowedOrigins> {
        let refused = |sentence: String| Error::with_kind(ErrorKind::Refused, sentence);
        if given.iter().any(|origin| origin == "*") {
            return match has_keys {
                true => Ok(AllowedOrigins::All),
                false => Err(refused(
                    "allowed origin '*' would let each page of the web use this server; name the origins, or \
                     give --api-keys FILE"
                        .to_owned(),
                )),
            };
        }
        let listed = given.iter().map(|origin| {
            normalized(origin.as_bytes()).ok_or_else(|| {
                let origin = shown(origin.as_bytes());
                refused(format!(
                    "allowed origin {origin:?} is no origin; give SCHEME://HOST[:PORT] without a path, such as \
                     http://localhost:3000"
                ))
            })
        });
        listed.collect::<Result<_>>().map(AllowedOrigins::Listed)
    }

    /// Whether only pages of the server itself may call it.
    pub fn is_empty(&self) -> bool {
        matches!(self, AllowedOrigins::Listed(listed) if listed.is_empty())
    }

    fn contains(&self, origin: &HeaderValue) -> bool {
        match self {
            AllowedOrigins::All => true,
            AllowedOrigins::Listed(listed) => {
                normalized(origin.as_bytes()).is_some_and(|origin| listed.contains(&origin))
            }
        }
    }

    /// The other origin whose page makes a request to `host`; `None` if this server's page does, or none.
    ///
    /// # Errors
    /// Status 403 when its pages may not call this server.
    pub fn page(
        &self,
        host: Option<&Authority>,
        headers: &HeaderMap,
    ) -> std::result::Result<Option<ForeignPage>, ApiError> {
        let is_own = |origin: &&HeaderValue| {
            let bytes = origin.as_bytes();
            let authority = bytes.strip_prefix(b"http://").or_else(|| bytes.strip_prefix(b"https://"));
            authority.and_then(parsed).is_some_and(|authority| Some(&authority) == host)
        };
        let mut foreign = headers.get_all(ORIGIN).iter().filter(|origin| !is_own(origin));
        let is_single = headers.get_all(ORIGIN).iter().count() == 1;
        match foreign.next() {
            Some(origin) if is_single && self.contains(origin) => {
                return Ok(Some(ForeignPage { origin: origin.clone() }));
            }
            Some(origin) => return Err(refusal(origin)),
            None => {}
        }
        if headers.get_all(SEC_FETCH_SITE).iter().any(|site| site == "cross-site") {
            let message = "the request comes from a page of another site (Sec-Fetch-Site) and has no Origin; the \
                           page must make it with CORS, and --allowed-origin must name its origin";
            return Err(not_allowed(message.to_owned()));
        }
        Ok(None)
    }

    /// Tells caches that responses differ by the origin that asks.
    pub fn vary(&self, headers: &mut HeaderMap) {
        if !self.is_empty() {
            headers.append(VARY, HeaderValue::from_static("Origin"));
        }
    }
}

/// A page of another origin, which may call the server.
#[derive(Clone, Debug)]
pub struct ForeignPage {
    origin: HeaderValue,
}

impl ForeignPage {
    /// The answer to a preflight: the question of a browser whether the page may make a request. It has no
    /// key. `None` if the request is none.
    pub fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response> {
        if *method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        let mut response = StatusCode::NO_CONTENT.into_response();
        let allowed = response.headers_mut();
        allowed.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.clone());
        allowed.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        allowed.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        // Clients send headers of their own, such as `x-stainless-*`, and none of them has a right.
        if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|asked| is_list(asked)) {
            allowed.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        if headers.get(REQUEST_PRIVATE_NETWORK).is_some_and(|asks| asks == "true") {
            allowed.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
        }
        Some(response)
    }

    /// Lets the page read a response and those of its headers that are girih's.
    pub fn allow(&self, headers: &mut HeaderMap) {
        let own = headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with(EXPOSED_PREFIX));
        let exposed: Vec<&str> = EXPOSED.into_iter().chain(own).collect();
        let exposed = HeaderValue::from_str(&exposed.join(", ")).expect("names of headers are valid values");
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.clone());
    }
}

/// Whether a value is a list of names of headers.
fn is_list(value: &HeaderValue) -> bool {
    value.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_, ".contains(byte))
}

/// An origin in the form that browsers send: lower case, without the port that its scheme implies.
fn normalized(origin: &[u8]) -> Option<String> {
    let origin = std::str::from_utf8(origin).ok().filter(|origin| origin.len() <= MAX_ORIGIN_BYTES)?;
    let origin = origin.to_ascii_lowercase();
    let (scheme, rest) = origin.split_once("://")?;
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(is_of_scheme) {
        return None;
    }
    let implied = match scheme {
        "http" => 80,
        "https" => 443,
        // Programs and extensions: their hosts are no names of machines. Pages of files have none.
        _ => {
            let is_of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
            let is_host = rest.chars().all(is_of_host) && (!rest.is_empty() || scheme == "file");
            return is_host.then_some(origin);
        }
    };
    let (host, port) = parsed(rest.as_bytes())?;
    Some(match port.filter(|port| *port != implied) {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    })
}

/// The refusal of a page, with the option that would allow it.
fn refusal(origin: &HeaderValue) -> ApiError {
    let advice = match normalized(origin.as_bytes()) {
        Some(origin) => format!("start the server with --allowed-origin {origin} to allow that"),
        None => "it has no name that --allowed-origin could give".to_owned(),
    };
    let origin = shown(origin.as_bytes());
    not_allowed(format!("the request comes from a page of another origin, {origin:?}: {advice}"))
}

fn not_allowed(message: String) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "localhost:8080";

    fn allowed(origins: &[&str], has_keys: bool) -> Result<AllowedOrigins> {
        let origins: Vec<String> = origins.iter().map(|origin| (*origin).to_owned()).collect();
        AllowedOrigins::new(&origins, has_keys)
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    /// `own`, `foreign`, or the message of the refusal.
    fn found(origins: &[&str], pairs: &[(&'static str, &'static str)]) -> String {
        let origins = allowed(origins, true).expect("origins");
        match origins.page(parsed(HOST.as_bytes()).as_ref(), &headers(pairs)) {
            Ok(None) => "own".to_owned(),
            Ok(Some(_)) => "foreign".to_owned(),
            Err(error) => {
                assert_eq!(error.status.as_u16(), 403);
                error.message
            }
        }
    }

    #[test]
    fn only_the_own_origin_may_call() {
        for origin in ["http://localhost:8080", "http://LocalHost:8080"] {
            assert_eq!(found(&[], &[("origin", origin)]), "own");
        }
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
            let refused = found(&[], &[("origin", origin)]);
            assert!(refused.contains("comes from a page of another origin"), "{origin}: {refused}");
        }
        let both = [("origin", "http://localhost:8080"), ("origin", "http://evil.example")];
        assert!(found(&["http://evil.example"], &both).contains("another origin"));
        assert!(found(&["*"], &[("sec-fetch-site", "cross-site")]).contains("must make it with CORS"));
        assert_eq!(found(&[], &[("sec-fetch-site", "same-origin")]), "own");
        assert_eq!(found(&[], &[("sec-fetch-site", "none")]), "own");
    }

    #[test]
    fn named_origins_may_call_as_they_are_spelled() {
        let origins = ["http://LOCALHOST:3000", "https://chat.example:443", "app://obsidian.md", "file://"];
        for origin in ["http://localhost:3000", "https://chat.example", "app://obsidian.md", "file://"] {
            let pairs = [("origin", origin), ("sec-fetch-site", "cross-site")];
            assert_eq!(found(&origins, &pairs), "foreign", "{origin}");
            assert_eq!(found(&["*"], &pairs), "foreign", "{origin}");
        }
        for origin in [
            "https://localhost:3000",
            "http://localhost:30000",
            "http://localhost:3000.evil.example",
            "http://evil.example?http://localhost:3000",
            "http://chat.example",
            "https://chat.example:8443",
            "https://a.chat.example",
            "app://obsidian.md.evil",
            "null",
        ] {
            assert!(found(&origins, &[("origin", origin)]).contains("another origin"), "{origin}");
        }
        assert_eq!(found(&["*"], &[("origin", "null")]), "foreign");
    }

    #[test]
    fn a_refusal_names_the_option() {
        let refused = |origin| found(&[], &[("origin", origin)]);
        assert_eq!(
            refused("http://localhost:3000"),
            "the request comes from a page of another origin, \"http://localhost:3000\": start the server with \
             --allowed-origin http://localhost:3000 to allow that"
        );
        assert!(
            refused("moz-extension://5a-6b")
                .ends_with("--allowed-origin moz-extension://5a-6b to allow that")
        );
        assert!(refused("null").ends_with("\"null\": it has no name that --allowed-origin could give"));
    }

    #[test]
    fn what_is_no_origin_is_refused_at_the_start() {
        for origin in [
            "localhost:3000",
            "http://localhost:3000/",
            "http://localhost:3000/page",
            "http://",
            "http://a@b",
            "://a",
            "1a://b",
            "app://",
            "app://a/b",
            "chrome-extension://*",
            "null",
            "",
            "http://a,http://b",
        ] {
            let sentence = allowed(&[origin], true).expect_err(origin).to_string();
            assert!(sentence.contains("is no origin; give SCHEME://HOST[:PORT]"), "{sentence}");
        }
        let sentence = allowed(&["http://a", "*"], false).expect_err("no keys").to_string();
        assert!(sentence.contains("name the origins, or give --api-keys"), "{sentence}");
    }

    #[test]
    fn a_preflight_is_answered_with_what_it_asks() {
        let page = ForeignPage { origin: HeaderValue::from_static("app://obsidian.md") };
        let asked = [
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
        ];
        let preflight = |pairs: &[_]| page.preflight(&Method::OPTIONS, &headers(pairs));
        let response = preflight(&asked).expect("a preflight");
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(header("access-control-allow-origin"), Some("app://obsidian.md"));
        assert_eq!(header("access-control-allow-methods"), Some("GET, HEAD, POST, DELETE"));
        assert_eq!(header("access-control-allow-headers"), Some(asked[1].1));
        assert_eq!(header("access-control-max-age"), Some("7200"));
        assert_eq!(header("access-control-allow-private-network"), None);
        assert_eq!(header("access-control-allow-credentials"), None);
        let private = [asked[0], ("access-control-request-private-network", "true")];
        let response = preflight(&private).expect("a preflight");
        assert_eq!(response.headers()["access-control-allow-private-network"], "true");
        let odd = [asked[0], ("access-control-request-headers", "a\"b")];
        assert!(
            !preflight(&odd).expect("a preflight").headers().contains_key("access-control-allow-headers")
        );
        assert!(preflight(&[]).is_none());
        assert!(page.preflight(&Method::POST, &headers(&asked)).is_none());
    }

    #[test]
    fn a_page_may_read_the_headers_of_girih() {
        let page = ForeignPage { origin: HeaderValue::from_static("http://a") };
        let mut headers = headers(&[("x-girih-without-effect", "user"), ("content-type", "text/plain")]);
        page.allow(&mut headers);
        assert_eq!(headers["access-control-allow-origin"], "http://a");
        assert_eq!(
            headers["access-control-expose-headers"],
            "x-request-id, retry-after, x-girih-without-effect"
        );
        let vary = |origins: AllowedOrigins| {
            let mut headers = HeaderMap::new();
            origins.vary(&mut headers);
            headers.contains_key("vary")
        };
        assert!(vary(AllowedOrigins::All) && !vary(AllowedOrigins::default()));
    }
}
