//! The chat page: its built files are part of the program, so it needs neither files nor a network.
//!
//! `web/` holds the sources, and `web/check.sh` builds `crates/serve/page/` from them.

use axum::Router;
use axum::http::HeaderMap;
use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::get;
use sha2::Digest;
use sha2::Sha256;

use crate::access::PageToken;
use crate::error::Dialect;
use crate::hexadecimal::hexadecimal;

/// The routes of the page. They carry no key, as a browser cannot send one before it has the page.
pub const PATHS: [&str; 7] =
    ["/", "/app.js", "/app.css", "/icon.svg", "/favicon.ico", "/LICENSES.txt", TOKEN_PATH];

/// The route of the token by which the server knows its page. It is no part of a file, so that a page
/// that is open when the server starts again can ask for the new one.
const TOKEN_PATH: &str = "/page-token";

/// What the page may do, by Content Security Policy 3: scripts, styles and requests of this server
/// only, and no HTML made of strings except by Svelte's templates.
const POLICY: &str = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; font-src 'none'; media-src 'none'; object-src 'none'; worker-src 'none'; \
    frame-src 'none'; manifest-src 'none'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html";

/// A file of the page, with what its answers need.
#[derive(Clone)]
struct PageFile {
    content_type: &'static str,
    bytes: &'static [u8],
}

/// Browsers ask for it at `/favicon.ico` where they show no page of ours, such as for `/openapi.json`.
const ICON: PageFile = PageFile { content_type: "image/svg+xml", bytes: include_bytes!("../page/icon.svg") };

/// The files, in the order of [`PATHS`].
const FILES: [PageFile; 6] = [
    PageFile { content_type: "text/html; charset=utf-8", bytes: include_bytes!("../page/index.html") },
    PageFile { content_type: "text/javascript; charset=utf-8", bytes: include_bytes!("../page/app.js") },
    PageFile { content_type: "text/css; charset=utf-8", bytes: include_bytes!("../page/app.css") },
    ICON,
    ICON,
    PageFile { content_type: "text/plain; charset=utf-8", bytes: include_bytes!("../page/LICENSES.txt") },
];

/// Serves the page under [`PATHS`].
pub fn page<S: Clone + Send + Sync + 'static>(token: PageToken) -> Router<S> {
    let mut router = Router::new();
    router =
        router.route(TOKEN_PATH, get(|request: HeaderMap| async move { answer_token(&token, &request) }));
    for (path, file) in PATHS.into_iter().zip(FILES) {
        let tag = entity_tag(file.bytes);
        router = router.route(path, get(|request: HeaderMap| async move { answer(&file, &tag, &request) }));
    }
    router
}

/// The file, or 304 if the browser has it. Browsers ask each time (`no-cache`), so that an upgrade
/// of the server never leaves files of two versions together.
fn answer(file: &PageFile, tag: &HeaderValue, request: &HeaderMap) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(file.content_type)),
        (header::ETAG, tag.clone()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    ];
    match has(request, tag) {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, file.bytes).into_response(),
    }
}

/// The token, for the page of this server only.
fn answer_token(token: &PageToken, request: &HeaderMap) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    ];
    match token.for_page(request) {
        Ok(token) => (headers, token).into_response(),
        Err(error) => error.response(Dialect::of_path(TOKEN_PATH)),
    }
}

/// Whether `If-None-Match` names `tag` (RFC 9110, section 13.1.2: a list, compared weakly).
fn has(request: &HeaderMap, tag: &HeaderValue) -> bool {
    let lists = request.get_all(header::IF_NONE_MATCH).into_iter();
    let mut tags = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    tags.any(|given| given == b"*" || given.strip_prefix(b"W/").unwrap_or(given) == tag.as_bytes())
}

/// The quoted digest of a file.
fn entity_tag(bytes: &[u8]) -> HeaderValue {
    let tag = format!("\"{}\"", hexadecimal(&Sha256::digest(bytes)[..16]));
    HeaderValue::from_str(&tag).expect("quotes and hexadecimal digits are valid in headers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    async fn fetch(path: &str, none_match: Option<&str>) -> Response {
        let mut request = Request::get(path);
        if let Some(tags) = none_match {
            request = request.header(header::IF_NONE_MATCH, tags);
        }
        let page = page::<()>(PageToken::random().unwrap());
        page.with_state(()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn each_path_serves_its_file() {
        for (path, file) in PATHS.iter().zip(FILES) {
            let response = fetch(path, None).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], file.content_type);
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), file.bytes);
        }
        assert_eq!(fetch("/app.js.map", None).await.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn a_file_that_the_browser_has_is_not_sent_again() {
        let tag = fetch("/app.js", None).await.headers()[header::ETAG].to_str().unwrap().to_owned();
        for given in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
            let response = fetch("/app.js", Some(&given)).await;
            assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{given}");
            assert_eq!(response.headers()[header::ETAG], tag.as_str());
            assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
        }
        for other in ["\"other\"", "", tag.trim_matches('"')] {
            assert_eq!(fetch("/app.js", Some(other)).await.status(), StatusCode::OK, "{other}");
        }
        assert_ne!(fetch("/app.css", None).await.headers()[header::ETAG], tag.as_str());
    }

    #[tokio::test]
    async fn the_policy_allows_nothing_inline_and_nothing_foreign() {
        for (path, _) in PATHS.iter().zip(FILES) {
            let response = fetch(path, None).await;
            let headers = response.headers();
            assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(headers[header::REFERRER_POLICY], "no-referrer");
            assert_eq!(headers[header::CACHE_CONTROL], "no-cache");
            let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
            let sources: Vec<&str> = policy.split([';', ' ']).filter(|word| word.starts_with('\'')).collect();
            assert!(sources.iter().all(|word| ["'self'", "'none'", "'script'"].contains(word)), "{policy}");
            assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"));
        }
    }

    #[test]
    fn the_files_name_no_other_host() {
        let html = std::str::from_utf8(FILES[0].bytes).unwrap();
        assert!(!html.contains("://") && html.contains("./app.js") && html.contains("./app.css"));
        let css = std::str::from_utf8(FILES[2].bytes).unwrap();
        assert!(!css.contains("url(") && !css.contains("@import"));
    }
}
