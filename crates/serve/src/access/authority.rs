//! Hosts and ports as headers spell them.

use axum::http::uri;

/// A host in lower case, and its port if one is there.
pub type Authority = (String, Option<u16>);

/// The host in lower case and the port of a `host[:port]`.
pub fn parsed(text: &[u8]) -> Option<Authority> {
    let authority = uri::Authority::try_from(text).ok()?;
    // User names before an `@` are no part of a host.
    if authority.as_str().contains('@') || authority.host().is_empty() {
        return None;
    }
    let port = match authority.as_str().strip_prefix(authority.host())? {
        "" => None,
        rest => {
            let digits = rest.strip_prefix(':')?;
            // Numbers may be parsed with a sign.
            Some(digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?)
        }
    };
    // A name may end with the dot of the root.
    let host = authority.host().to_ascii_lowercase();
    Some((host.strip_suffix('.').map_or(host.clone(), str::to_owned), port))
}

/// A header's value as a message repeats it.
pub fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value).chars().filter(|c| c.is_ascii_graphic()).take(100).collect()
}
