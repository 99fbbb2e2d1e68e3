//! How the server without keys knows its own page in a browser: by a random number that pages of other
//! origins cannot read.

use std::sync::Arc;

use axum::http::header::{HeaderMap, HeaderName, ORIGIN};
use axum::http::{HeaderValue, StatusCode};
use girih::{Error, Result};
use subtle::ConstantTimeEq;

use super::origins::SEC_FETCH_SITE;
use crate::error::ApiError;
use crate::hexadecimal::hexadecimal;

/// The header in which the page sends the token.
const PAGE_TOKEN: HeaderName = HeaderName::from_static("x-girih-page");

/// The random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// The token of this process, 64 hexadecimal digits.
#[derive(Clone)]
pub struct PageToken(Arc<str>);

impl PageToken {
    /// A token of random bytes of the operating system.
    ///
    /// # Errors
    /// When there are none.
    pub fn random() -> Result<PageToken> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::new(format!("the operating system gives no random bytes: {error}")))?;
        Ok(PageToken(hexadecimal(&bytes).into()))
    }

    /// The token, for a request that only this server's page makes.
    ///
    /// # Errors
    /// Status 403 when a browser says that another page makes it, or none.
    pub fn for_page(&self, headers: &HeaderMap) -> Result<String, ApiError> {
        // Over plain HTTP, browsers send Sec-Fetch-Site to loopback addresses only. Where they do not, pages of
        // other origins send Origin if they want to read the answer; this server's page does not.
        let is_of_page = headers.get_all(SEC_FETCH_SITE).iter().all(|site| site == "same-origin");
        match is_of_page && !headers.contains_key(ORIGIN) {
            true => Ok((*self.0).to_owned()),
            false => Err(refused("only the chat page may read its token")),
        }
    }

    /// Refuses what a page in a browser sends without the token. Other clients send neither `Origin` nor
    /// `Sec-Fetch-Site`; `Sec-Fetch-Site: none` is an address that a person has typed.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let is_of_a_page =
            headers.contains_key(ORIGIN) || headers.get_all(SEC_FETCH_SITE).iter().any(|site| site != "none");
        let mut tokens = headers.get_all(PAGE_TOKEN).iter().map(HeaderValue::as_bytes);
        let is_given = tokens.next().is_some_and(|token| bool::from(token.ct_eq(self.0.as_bytes())));
        match !is_of_a_page || is_given && tokens.next().is_none() {
            true => Ok(()),
            false => Err(refused(
                "the request comes from a page in a browser without this server's page token; load the chat \
                 page again, or start the server with --allowed-origin to call it from other pages",
            )),
        }
    }
}

fn refused(message: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "page_token_invalid", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_differ() {
        let [first, second] = [(); 2].map(|()| PageToken::random().expect("random bytes").0);
        assert_ne!(first, second);
        assert!(first.len() == 64 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
    }

    #[test]
    fn only_pages_need_the_token() {
        let token = PageToken::random().expect("random bytes");
        let own: &str = &token.0;
        let is_allowed = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_str(value).expect("a value"));
            }
            token.check(&headers).is_ok()
        };
        let origin = ("origin", "http://127.0.0.1:8080");
        let same = ("sec-fetch-site", "same-origin");
        assert!(is_allowed(&[]) && is_allowed(&[("sec-fetch-site", "none")]));
        assert!(is_allowed(&[origin, same, ("x-girih-page", own)]));
        let other = "0".repeat(64);
        for pairs in [
            &[origin][..],
            &[same],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none"), origin],
            &[origin, ("x-girih-page", "")],
            &[origin, ("x-girih-page", &own[..63])],
            &[origin, ("x-girih-page", &other)],
            &[origin, ("x-girih-page", own), ("x-girih-page", own)],
        ] {
            assert!(!is_allowed(pairs), "{pairs:?}");
        }
    }
}
