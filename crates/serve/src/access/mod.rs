//! Who may call the server: the checks that a request passes before its route sees it.

mod authority;
mod hosts;
mod keys;
mod origins;
mod page_token;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use girih::{Error, ErrorKind, Result, Tenant};

use crate::caller::ApiCaller;
use crate::error::{ApiError, Dialect};
use crate::observe::RequestRecord;
pub use hosts::Hosts;
pub use keys::ApiKeys;
pub use origins::AllowedOrigins;
use origins::ForeignPage;
pub use page_token::PageToken;

/// The route that says that the server lives, and nothing else. It needs no key.
const HEALTH: &str = "/health";

/// The maximum bytes of a request's path and query.
const MAX_TARGET_BYTES: usize = 8 << 10;

/// Who may call the server.
#[derive(Clone)]
pub struct AccessRules {
    /// The keys; without them everybody may call.
    pub keys: Option<ApiKeys>,
    /// What pages in a browser must send where there are no keys.
    pub page_token: PageToken,
    /// The names under which it is called.
    pub hosts: Hosts,
    /// The origins whose pages may call it beside its own.
    pub origins: AllowedOrigins,
    /// The paths that need no key beside `/health`: the files of the page, as a browser has no key
    /// when it opens one. They are the same for everybody.
    pub public: &'static [&'static str],
    /// The maximum number of replies that the holder of a key may have running or waiting.
    pub replies_per_key: u32,
}

/// Refuses an address that other machines can reach, unless calls are checked by keys or the user
/// knows that it is open.
///
/// # Errors
/// [`ErrorKind::Refused`].
pub fn check_address(address: SocketAddr, may_be_open: bool) -> Result<()> {
    if may_be_open || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let sentence = format!(
        "{address} can be reached by other machines, and there are no keys; give --api-keys FILE, or \
         --i-know-it-is-open"
    );
    Err(Error::with_kind(ErrorKind::Refused, sentence))
}

impl AccessRules {
    /// The page of another origin that makes a request, if one does.
    ///
    /// # Errors
    /// When the request is not meant for this server, or the page may not call it.
    fn page(&self, request: &Request) -> std::result::Result<Option<ForeignPage>, ApiError> {
        let (uri, headers) = (request.uri(), request.headers());
        if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
            let message = format!("the method {} is not supported", request.method());
            return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message));
        }
        if uri.path_and_query().is_some_and(|target| target.as_str().len() > MAX_TARGET_BYTES) {
            let message = format!("the path and query have more than {MAX_TARGET_BYTES} bytes");
            return Err(ApiError::new(StatusCode::URI_TOO_LONG, "uri_too_long", message));
        }
        let host = self.hosts.check(request.version(), uri, headers)?;
        match self.is_public(request) && is_followed_link(headers) {
            true => Ok(None),
            false => self.origins.page(host.as_ref(), headers),
        }
    }

    /// Whether a request needs no key.
    fn is_public(&self, request: &Request) -> bool {
        let path = request.uri().path();
        matches!(*request.method(), Method::GET | Method::HEAD)
            && (path == HEALTH || self.public.contains(&path))
    }

    /// Who makes a request, which comes from a page of another origin that may call, or from none.
    ///
    /// # Errors
    /// When it may not be made.
    fn caller(
        &self,
        request: &Request,
        page: Option<&ForeignPage>,
    ) -> std::result::Result<ApiCaller, ApiError> {
        let headers = request.headers();
        let is_public = self.is_public(request);
        let caller = match &self.keys {
            Some(keys) if !is_public => {
                let tenant = keys.tenant(headers).ok_or_else(no_key)?;
                ApiCaller { tenant, max_replies: Some(self.replies_per_key) }
            }
            // A page of an allowed origin cannot read the token, and its origin is known.
            None if !is_public && page.is_none() => {
                self.page_token.check(headers)?;
                ApiCaller::default()
            }
            _ => ApiCaller::default(),
        };
        check_content_type(request.method(), request.uri().path(), headers)?;
        Ok(caller)
    }
}

/// Passes a request on if it may be made, with its [`ApiCaller`]. A page of an allowed origin may read the
/// response, and its browser's question is answered here, as it has no key.
pub async fn check_access(State(access): State<Arc<AccessRules>>, request: Request, next: Next) -> Response {
    let mut response = match access.page(&request) {
        Err(error) => error.response(Dialect::of_path(request.uri().path())),
        Ok(None) => answer(&access, request, next, None).await,
        Ok(Some(page)) => answer_page(&access, request, next, &page).await,
    };
    access.origins.vary(response.headers_mut());
    response
}

/// The response of a request of a page that may call.
async fn answer_page(access: &AccessRules, request: Request, next: Next, page: &ForeignPage) -> Response {
    let preflight = page.preflight(request.method(), request.headers());
    if let Some(response) = preflight {
        return response;
    }
    let mut response = answer(access, request, next, Some(page)).await;
    page.allow(response.headers_mut());
    response
}

/// The response of a request that is no browser's question.
async fn answer(
    access: &AccessRules,
    mut request: Request,
    next: Next,
    page: Option<&ForeignPage>,
) -> Response {
    match access.caller(&request, page) {
        Ok(caller) => {
            if let Some(record) = RequestRecord::current() {
                record.facts().tenant = tenant_name(&caller.tenant);
            }
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => {
            let mut response = error.response(Dialect::of_path(request.uri().path()));
            if response.status() == StatusCode::UNAUTHORIZED {
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            }
            response
        }
    }
}

/// Whether a browser opens an address in a tab of its own, as for a link in a page of another site, which
/// sees nothing of it.
fn is_followed_link(headers: &HeaderMap) -> bool {
    let says = |name: &str, value: &str| headers.get(name).is_some_and(|said| said == value);
    !headers.contains_key(ORIGIN) && says("sec-fetch-mode", "navigate") && says("sec-fetch-dest", "document")
}

/// The name of a tenant; the default one has none.
fn tenant_name(tenant: &Tenant) -> Option<String> {
    let key = tenant.key();
    key.get(1..).map(|name| String::from_utf8_lossy(name).into_owned())
}

fn no_key() -> ApiError {
    let message = "the request has no valid key; send Authorization: Bearer KEY, or x-api-key: KEY";
    ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
}

/// Refuses bodies of the types that a page of another origin can send without asking first. Examples of Ollama's
/// API name no type, or curl names that of a form: on its routes, this is JSON if no browser sends it.
fn check_content_type(method: &Method, path: &str, headers: &HeaderMap) -> std::result::Result<(), ApiError> {
    if *method != Method::POST {
        return Ok(());
    }
    let from_browser = headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site");
    let form = |value: &HeaderValue| value.as_bytes() == b"application/x-www-form-urlencoded";
    if path.starts_with("/api/") && !from_browser && headers.get_all(CONTENT_TYPE).iter().all(form) {
        return Ok(());
    }
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let essence = |value: &HeaderValue| {
        let value = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        value.trim_ascii().eq_ignore_ascii_case(b"application/json")
    };
    match (types.next(), types.next()) {
        (Some(value), None) if essence(value) => Ok(()),
        _ => {
            let message = "the body must be JSON; send Content-Type: application/json";
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn an_address_of_other_machines_needs_keys() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        for own in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(check_address(address(own), false).is_ok(), "{own}");
        }
        for open in ["0.0.0.0:8080", "[::]:8080", "192.168.1.2:80", "[::ffff:10.0.0.1]:1"] {
            assert!(check_address(address(open), false).is_err(), "{open}");
            assert!(check_address(address(open), true).is_ok(), "{open}");
        }
        assert_eq!(
            check_address(address("0.0.0.0:8080"), false).unwrap_err().to_string(),
            "0.0.0.0:8080 can be reached by other machines, and there are no keys; give --api-keys FILE, or \
             --i-know-it-is-open"
        );
    }

    #[test]
    fn a_body_is_json() {
        let is_allowed = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            check_content_type(&Method::POST, "/v1/messages", &headers).is_ok()
        };
        assert!(is_allowed("application/json") && is_allowed("Application/JSON ; charset=utf-8"));
        for other in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", "json"] {
            assert!(!is_allowed(other), "{other}");
        }
        assert!(check_content_type(&Method::POST, "/v1/messages", &HeaderMap::new()).is_err());
        assert!(check_content_type(&Method::GET, "/v1/models", &HeaderMap::new()).is_ok());
    }

    #[test]
    fn ollamas_routes_need_no_type_unless_a_browser_calls() {
        let is_allowed = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            check_content_type(&Method::POST, "/api/chat", &pairs.collect()).is_ok()
        };
        let form = ("content-type", "application/x-www-form-urlencoded");
        assert!(
            is_allowed(&[]) && is_allowed(&[form]) && is_allowed(&[("content-type", "application/json")])
        );
        for browser in [("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "none"), ("origin", "null")] {
            assert!(!is_allowed(&[browser]) && !is_allowed(&[form, browser]), "{browser:?}");
        }
        assert!(!is_allowed(&[("content-type", "text/plain")]));
    }
}
